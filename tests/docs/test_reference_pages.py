"""The reference pages name what the code has: every exit code, option, key and limit with its default."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from typer.main import get_command

from podium.cli.main import app
from podium.cli.problems import EXIT_CODES
from podium.core.admission import EngineLimits
from podium.core.graph import Limits
from podium.runtime.pipeline_file import PIPELINE_KEYS, STAGE_KEYS, parse_pipeline
from tests.runtime.fake_catalog import FakeCatalog

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMAND_LINE = (DOCS / "cli.md").read_text(encoding="utf-8")
PIPELINE_FILES = (DOCS / "pipelines.md").read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """The rows of all tables, by their first cell."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_exit_code_is_on_the_page() -> None:
    assert {code: rows(COMMAND_LINE)[str(code)] for code in EXIT_CODES} == {
        code: [meaning] for code, meaning in EXIT_CODES.items()
    }


def test_every_verb_and_option_is_on_the_page() -> None:
    command = get_command(app)
    verbs = command.commands  # type: ignore[attr-defined]
    options = [option for parameter in verbs["generate"].params for option in parameter.opts if option.startswith("--")]

    assert [verb for verb in verbs if f"## `podium {verb} " not in COMMAND_LINE] == []
    assert [option for option in options if option not in COMMAND_LINE] == []


@pytest.mark.parametrize("limits", [Limits, EngineLimits])
def test_every_limit_is_on_the_page_with_its_default(limits: type[msgspec.Struct]) -> None:
    defaults = msgspec.structs.asdict(limits())

    assert {name: float(rows(PIPELINE_FILES)[name][-1]) for name in defaults} == defaults


def test_every_key_is_on_the_page() -> None:
    assert [key for key in STAGE_KEYS if key not in rows(PIPELINE_FILES)] == []
    assert [key for key in PIPELINE_KEYS if f"\n{key}:" not in PIPELINE_FILES] == []


def test_the_example_on_the_page_is_right_but_for_its_names() -> None:
    example = re.search(r"```yaml\n(.*?)```", PIPELINE_FILES, re.DOTALL)
    assert example is not None
    text = example[1]
    for word, known in (("vllm\n", "fake\n"), ("backend: function", "backend: fake"), ("sentences", "text")):
        text = text.replace(word, known)

    assert (
        parse_pipeline(text.replace("function: my_package", "model: my_package"), "example", FakeCatalog()).name
        == "voice"
    )
