"""Rules 001-099, on the core: who may do what."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from podium.core.effects import Effect
from podium.core.graph import EdgeMode, Graph
from podium.core.orchestrator import Orchestrator
from tests.support.core_world import Replicas, World, chain, voice

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "podium"
NOT_FOR_CLIENTS = {
    f"podium.core.{name}" for name in ("ending", "forwarding", "orchestrator", "plan", "stage_pool", "state")
}


def builders(name: str) -> list[str]:
    """Every function of podium, its test kit left out, that makes an object of class `name`, as file and function."""
    return [
        f"{path.relative_to(SOURCE)}: {function.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if "testing" not in path.parts
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and name in set(called(function))
    ]


def called(function: ast.AST) -> Iterator[str]:
    """The plain names that are called in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


@pytest.mark.rule("ORCH-INV-001")
def test_one_function_starts_jobs() -> None:
    assert builders("StartJob") == ["core/forwarding.py: _start"]


@pytest.mark.rule("ORCH-INV-001")
@pytest.mark.parametrize("effect", ["FeedJob", "EndInput", "StopJob", "EmitOutput"])
def test_only_the_core_moves_work(effect: str) -> None:
    assert builders(effect)
    assert all(place.startswith("core/") for place in builders(effect))


@pytest.mark.rule("ORCH-INV-101")
def test_one_function_makes_a_request_terminal() -> None:
    """The shell has one more, for callers that hear nothing of the core any more."""
    assert builders("EndRequest") == ["core/ending.py: end_request", "runtime/outlet.py: _failed"]


@pytest.mark.rule("ORCH-INV-002")
@pytest.mark.parametrize("path", sorted((SOURCE / "transports").rglob("*.py")), ids=lambda path: path.name)
def test_a_stage_client_knows_nothing_to_choose_with(path: Path) -> None:
    imported = {
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    assert imported & NOT_FOR_CLIENTS == set()


@pytest.mark.rule("ORCH-INV-003")
def test_the_core_may_not_import_what_would_tempt_it() -> None:
    """import-linter holds this; here is only that it is told to."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    forbidden = next(contract for contract in contracts if contract["id"] == "pure-core")
    assert "podium.core" in forbidden["source_modules"]
    assert {"asyncio", "threading", "time", "random", "os", "logging"} <= set(forbidden["forbidden_modules"])


@pytest.mark.rule("ORCH-INV-003")
@pytest.mark.parametrize("seed", range(3))
def test_the_same_events_at_the_same_times_have_the_same_effects(seed: int) -> None:
    def run() -> list[Effect]:
        world = World(*voice(), replicas=3)
        for number in range(20):
            world.submit(f"r{number}", priority=number % 3)
        Replicas(world, seed=seed, faults=True).run(events=60)
        world.lose("a", 1)
        world.abort("r3", "r4")
        Replicas(world, seed=seed).run(events=40)
        world.wait(500.0)
        return world.effects

    assert run() == run()


@pytest.mark.rule("ORCH-INV-003")
def test_the_core_looks_at_no_clock() -> None:
    """Times are arguments: whatever they are, a core goes by them."""
    early, late = (Orchestrator(Graph(chain(EdgeMode.COMPLETE))) for _ in range(2))
    assert early.expire(0.0) == late.expire(1e12) == []
