"""Checks that each file of the core is covered, branch by branch, by its own test file: the second half of `make unit`.

Reads the data that `pytest --cov --cov-context=test` left. What runs at import (no context) counts for everyone. Silent
when all is well, so that pytest's summary stays the last line.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "podium" / "core"


def report(source: Path) -> tuple[float, str]:
    """The percentage of `source` that its own tests cover, and coverage's table for it."""
    own_tests = f"tests/core/test_{source.stem}.py"
    data = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    data.load()
    data.set_option("report:contexts", ["^$", "^" + re.escape(own_tests) + "::"])
    table = io.StringIO()
    percentage = data.report(include=[str(source)], file=table, skip_empty=False, skip_covered=False)
    return percentage, table.getvalue()


def main() -> int:
    incomplete = 0
    for source in sorted(CORE.glob("*.py")):
        if source.name == "__init__.py":
            continue
        percentage, table = report(source)
        if percentage < 100:
            incomplete += 1
            row = table.splitlines()[2]
            print(f"tests/core/test_{source.stem}.py alone leaves parts of its file uncovered:\n    {row}")
    return 1 if incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
