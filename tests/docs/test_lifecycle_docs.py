"""The page about states says what the tables say."""

from __future__ import annotations

from podium.core.events import FinishReason
from podium.core.lifecycle import JOBS, REPLICAS, JobState, ReplicaState
from tools.lifecycle_docs import PAGE, diagram, moves, render


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "make it again: python -m tools.lifecycle_docs"


def test_a_diagram_has_every_move_once() -> None:
    assert diagram(REPLICAS, ReplicaState.LIVE).splitlines() == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> live",
        "    live --> draining: drain",
        "    live --> gone: lose",
        "    draining --> gone: leave, lose",
        "    gone --> [*]",
        "```",
    ]


def test_a_table_has_every_state() -> None:
    rows = moves(JOBS).splitlines()[2:]
    assert len(rows) == len(JobState)
    assert rows[0] == "| `waiting` | ready → `queued`, cancel → `stopped`, skip → `skipped` |"
    assert rows[-1] == "| `skipped` | the end |"


def test_every_finish_reason_is_explained() -> None:
    section = render().partition("### What a finish means")[2].partition("\n## ")[0]
    assert [line.split("|")[1].strip(" `") for line in section.splitlines() if line.startswith("| `")] == list(
        FinishReason
    )
