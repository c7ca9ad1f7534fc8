"""What once happened in a world breaks no rule ever again: every journal in tests/journals is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.testing.simulation.journals import judge_journal

JOURNALS = sorted((Path(__file__).resolve().parents[1] / "journals").glob("*.jsonl"))


def test_there_are_journals() -> None:
    assert JOURNALS


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_a_journal_breaks_no_rule(path: Path) -> None:
    assert judge_journal(path) == []
