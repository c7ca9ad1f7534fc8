"""`podium replay`: the same effects, different ones, a cut file, and a file that is no journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.core.events import Event, ReplicaJoined, RequestSubmitted
from podium.core.graph import Graph, Modality, Stage, StageKind
from podium.core.identity import ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.runtime.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two steps: a replica joins, and a request starts on it."""
    stage = Stage(name="thinker", kind=StageKind.FUNCTION, produces=Modality.TEXT, output="text")
    core = Orchestrator(Graph([stage]))
    writer = Journal(tmp_path / "steps.journal")
    writer.on_start(core)
    events: list[Event] = [ReplicaJoined(ReplicaKey("thinker", 0, 0)), RequestSubmitted(ticket=1, request_id="r")]
    for now, event in enumerate(events):
        writer.on_step([event], float(now), core.step([event], float(now)))
    writer.on_end()
    return tmp_path / "steps.journal"


def run(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, ["replay", *arguments], catch_exceptions=False)
    return result.exit_code, result.output.splitlines()


def test_a_journal_of_this_core_gives_the_same_effects(journal: Path) -> None:
    assert run(str(journal)) == (0, [f"{journal}: 2 steps, 2 events: same effects"])


def test_a_core_that_decides_otherwise_is_told_line_by_line(journal: Path) -> None:
    journal.write_text(journal.read_text(encoding="utf-8").replace('"priority":0', '"priority":7', 1), encoding="utf-8")
    code, lines = run(str(journal))

    assert (code, lines[0]) == (1, f"{journal}: 2 steps, 2 events: 1 step differs")
    assert lines[1] == "line 3"
    assert lines[2].startswith("  recorded [")
    assert lines[3].startswith("  replayed [")


def test_differences_for_programs(journal: Path) -> None:
    journal.write_text(journal.read_text(encoding="utf-8").replace('"priority":0', '"priority":7', 1), encoding="utf-8")
    code, lines = run(str(journal), "--json")
    document = json.loads("\n".join(lines))

    assert (code, document["same"], document["steps"], document["events"]) == (1, False, 2, 2)
    (difference,) = document["differences"]
    assert difference["line"] == 3
    assert [effects[0]["priority"] for effects in (difference["recorded"], difference["replayed"])] == [0, 7]


def test_a_line_that_was_not_written_to_its_end_is_left_out(journal: Path) -> None:
    journal.write_bytes(journal.read_bytes()[:-20])

    assert run(str(journal)) == (
        0,
        [f"{journal}: 1 steps, 1 events: same effects", "the last line is incomplete and was left out"],
    )


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello\n", encoding="utf-8")
    code, lines = run(str(tmp_path / "text.txt"))
    json_code, json_lines = run(str(tmp_path / "text.txt"), "--json")

    assert (code, json_code) == (2, 2)
    assert lines[0].startswith("error: configuration: ")
    assert json.loads("\n".join(json_lines))["error"]["kind"] == "configuration"
