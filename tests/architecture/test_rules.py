"""`make rules`: what counts as a citation, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.rules import Page, collect

CONTRACT = """
### ORCH-INV-100 · The end is the end
*In force.* Nothing more is started.

### ORCH-INV-113 · Companions come as a bundle
*Later.* All of them.

### ORCH-INV-205 · An abort keeps what there is {#abort}
*In force.* Everything.
"""

EXAMPLE = """
import pytest
pytestmark = [pytest.mark.rule("ORCH-INV-100")]

@pytest.mark.rule("ORCH-INV-113")
class TestExample:
    @pytest.mark.rule("ORCH-INV-206")
    @pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.rule("ORCH-INV-205"))])
    def test_marked(self, number):
        pass
"""


@pytest.fixture
def page(tmp_path: Path) -> Page:
    path = tmp_path / "contract.md"
    path.write_text(CONTRACT, encoding="utf-8")
    page = Page(path, "rule")
    page.read()
    return page


def test_rules_are_read_with_title_and_state(page: Page) -> None:
    assert [(entry.number, entry.title, entry.is_in_force) for entry in page.entries.values()] == [
        ("ORCH-INV-100", "The end is the end", True),
        ("ORCH-INV-113", "Companions come as a bundle", False),
        ("ORCH-INV-205", "An abort keeps what there is", True),
    ]


def test_a_rule_in_force_without_a_test_is_a_fault(page: Page) -> None:
    page.cite("ORCH-INV-100", "tests/test_a.py::test_a")
    assert page.faults() == ["ORCH-INV-205 has no test: An abort keeps what there is"]


def test_an_unknown_rule_is_a_fault(page: Page) -> None:
    for number in ("ORCH-INV-100", "ORCH-INV-205", "ORCH-INV-999"):
        page.cite(number, "tests/test_a.py::test_a")
    assert page.faults() == ["tests/test_a.py::test_a cites ORCH-INV-999, which is not in docs/contract.md"]


def test_a_number_that_comes_twice_is_refused(page: Page) -> None:
    page.path.write_text(CONTRACT + CONTRACT, encoding="utf-8")
    with pytest.raises(ValueError, match="ORCH-INV-100 comes twice"):
        Page(page.path, "rule").read()


def test_a_page_that_is_not_written_yet_refuses_nothing(tmp_path: Path) -> None:
    page = Page(tmp_path / "cases.md", "case")
    page.read()
    page.cite("B001", "tests/test_a.py::test_a")
    assert page.faults() == []


def test_marks_of_module_class_function_and_parameter_count(page: Page, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_example.py").write_text(EXAMPLE, encoding="utf-8")
    collect([page], tests)
    example = "tests/test_example.py::TestExample::test_marked"
    assert {number: dict(tests) for number, tests in page.citations.items()} == {
        "ORCH-INV-100": {example: 2},
        "ORCH-INV-113": {example: 2},
        "ORCH-INV-205": {example: 1},
        "ORCH-INV-206": {example: 2},
    }
