"""`podium explore`: the list of worlds, a world that is right, and one in which a rule is violated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from podium.cli import explore as verb
from podium.cli.main import app
from podium.core.events import ReplicaJoined, RequestSubmitted
from podium.core.identity import ReplicaKey
from podium.runtime.journal import replay
from podium.testing.explorer.outside import Step
from podium.testing.explorer.search import Exploration, Violation
from podium.testing.explorer.worlds import WORLDS

WORLD = WORLDS[0].name
STEPS = (
    *(Step(0.0, ReplicaJoined(ReplicaKey(stage.name, 0, 0))) for stage in WORLDS[0].stages),
    Step(0.0, RequestSubmitted(ticket=1, request_id="r1")),
    Step(3.0, None),
)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explore", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_worlds_are_listed() -> None:
    code, text = run("--list")
    assert (code, [world.name for world in WORLDS if world.name not in text]) == (0, [])

    code, text = run("--list", "--deep", "--json", "--world", WORLD)
    (row,) = json.loads(text)
    assert (code, row["name"], row["about"]) == (0, WORLD, WORLDS[0].about)
    assert row["bound"] > WORLDS[0].bound


def test_a_world_without_a_violation() -> None:
    code, text = run("--world", WORLD, "--max-states", "50", "--json")
    document = json.loads(text)

    assert (code, document["violations"], document["exhausted"]) == (0, 0, False)
    assert document["states"] == document["worlds"][0]["states"] > 50
    assert document["worlds"][0]["violation"] is None
    code, text = run("--world", WORLD, "--max-states", "50")
    assert code == 0
    assert "not exhausted" in text
    assert "0 violations" in text


def test_a_violation_is_told_with_the_way_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    violation = Violation("ORCH-INV-204: nobody waits", in_silence=False, steps=STEPS)
    found = Exploration(
        world=WORLD, states=7, transitions=9, longest=3, exhausted=False, seconds=0.1, violation=violation
    )

    def explore_all(*_: object, **__: object) -> Iterator[Exploration]:
        yield found

    monkeypatch.setattr(verb, "explore_all", explore_all)
    code, text = run("--world", WORLD, "--journals", str(tmp_path))
    journal = tmp_path / f"{WORLD}.journal"

    assert code == 1
    assert f"{WORLD}: ORCH-INV-204: nobody waits" in text
    assert "RequestSubmitted ticket=1 request_id=r1" in text
    assert "at 3 s  time passes" in text
    assert f"podium replay {journal}" in text
    assert replay(journal).is_same
    code, text = run("--world", WORLD, "--journals", str(tmp_path), "--json")
    document = json.loads(text)["worlds"][0]
    assert (code, document["journal"], len(document["trace"])) == (1, str(journal), len(STEPS))


def test_a_world_that_there_is_not_is_refused() -> None:
    code, text = run("--world", "flat")

    assert code == 2
    assert "there is no world 'flat'" in text
