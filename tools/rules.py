"""Prints the contract's rules, each with the tests that cite it: `make rules`.

The rules are read from docs/contract.md, the cases (if there are any) from docs/cases.md, the citations from the tests
as pytest collects them, so that marks on modules, classes and single parameters count. Fails when a rule in force has
no test, or when a test cites what does not exist.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"^### (?P<number>[A-Z][A-Z0-9-]*\d) · (?P<title>.+?)\s*(?:\{.*\})?$")
LATER = "*Later.*"
MARKS = ("rule", "case")
CONFIGURATION = ROOT / "pyproject.toml"


@dataclass
class Entry:
    """A rule or a case: a heading `### NUMBER · title`; text that starts with `*Later.*` says: not in force yet."""

    number: str
    title: str
    is_in_force: bool = True


@dataclass
class Page:
    """A page with numbered entries, and the mark by which tests cite them."""

    path: Path
    mark: str
    entries: dict[str, Entry] = field(default_factory=dict)
    citations: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def read(self) -> None:
        """Read the entries.

        Raises:
            ValueError: A number comes twice.
        """
        if not self.path.exists():
            return
        last: Entry | None = None
        for line in self.path.read_text(encoding="utf-8").splitlines():
            if heading := ENTRY.match(line):
                last = Entry(heading["number"], heading["title"])
                if last.number in self.entries:
                    raise ValueError(f"{self.path.name}: {last.number} comes twice")
                self.entries[last.number] = last
            elif last is not None and line.startswith(LATER):
                last.is_in_force = False

    def cite(self, number: str, test: str) -> None:
        self.citations[number][test] = self.citations[number].get(test, 0) + 1

    def faults(self) -> list[str]:
        faults = [
            f"{entry.number} has no test: {entry.title}"
            for entry in self.entries.values()
            if entry.is_in_force and entry.number not in self.citations
        ]
        if not self.path.exists():
            return faults
        faults += [
            f"{next(iter(self.citations[number]))} cites {number}, which is not in docs/{self.path.name}"
            for number in sorted(self.citations.keys() - self.entries.keys())
        ]
        return faults

    def print(self, *, brief: bool) -> None:
        for entry in self.entries.values():
            tests = self.citations.get(entry.number, {})
            count = f"{len(tests)} test{'' if len(tests) == 1 else 's'}"
            state = count if tests or entry.is_in_force else "later"
            print(f"{entry.number}  {entry.title}  [{state}]")
            if not brief:
                for test, times in sorted(tests.items()):
                    print(f"    {test}" + (f"  ×{times}" if times > 1 else ""))

    def summary(self) -> str:
        in_force = [entry for entry in self.entries.values() if entry.is_in_force]
        tested = sum(1 for entry in in_force if entry.number in self.citations)
        later = len(self.entries) - len(in_force)
        return f"{tested} of {len(in_force)} {self.mark}s in force have tests; {later} come later"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--citations", type=Path, help="write here, as JSON, what each test cites")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a plugin of pytest (`-p tools.rules`): note what each collected test cites."""
    found: dict[str, list[tuple[str, str]]] = {mark: [] for mark in MARKS}
    for item in items:
        test = item.nodeid.split("[", maxsplit=1)[0]
        for mark, citations in found.items():
            numbers = {number for one in item.iter_markers(mark) for number in one.args}
            citations += [(number, test) for number in sorted(numbers)]
    target: Path = config.getoption("--citations")
    target.write_text(json.dumps(found), encoding="utf-8")


def collect(pages: list[Page], tests: Path) -> None:
    """Let pytest collect `tests`, in a process of its own: what they import stays out of this one.

    Raises:
        RuntimeError: The tests cannot be collected.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "citations.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "tools.rules",
            "-p",
            "no:cacheprovider",
        ]
        command += [f"--citations={target}", f"--rootdir={tests.parent}", f"--config-file={CONFIGURATION}", str(tests)]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if run.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            raise RuntimeError(f"pytest cannot collect the tests:\n{run.stdout}{run.stderr}")
        found = json.loads(target.read_text(encoding="utf-8"))
    for page in pages:
        for number, test in found[page.mark]:
            page.cite(number, test)


def main() -> int:
    parser = argparse.ArgumentParser(description="The contract's rules and the tests that cite them.")
    parser.add_argument("--brief", action="store_true", help="only the count of tests for each rule")
    brief = parser.parse_args().brief
    pages = [Page(ROOT / "docs" / "contract.md", "rule"), Page(ROOT / "docs" / "cases.md", "case")]
    try:
        for page in pages:
            page.read()
        collect(pages, ROOT / "tests")
    except (RuntimeError, ValueError) as failure:
        print(failure, file=sys.stderr)
        return 2
    for page in pages:
        page.print(brief=brief)
    faults = [fault for page in pages for fault in page.faults()]
    print()
    for page in pages:
        if page.entries:
            print(page.summary())
    sys.stdout.flush()
    for fault in faults:
        print(f"FAULT  {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
