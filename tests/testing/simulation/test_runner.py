"""One seed is one world: the same trace whenever, wherever and after whatever it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from podium.runtime.journal import replay
from podium.testing.simulation import Report, run_seed, run_seeds
from podium.testing.simulation.journals import judge_journal

SEEDS = range(100, 140)
BUSY = max(range(20), key=lambda seed: run_seed(seed).steps)
"""A world in which much happens, whatever is drawn today."""
SCRIPT = """
import json
from podium.testing.simulation import run_seed
print(json.dumps([run_seed(seed).digest for seed in {seeds}]))
"""


def digests_of_a_process(hash_seed: str, seeds: list[int], *, pure: str) -> list[str]:
    """The digests as another process computes them."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PODIUM_PURE": pure,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(seeds=seeds)], env=environment, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


@pytest.mark.rule("ORCH-INV-003")
def test_a_seed_gives_the_same_trace_in_every_process_and_order() -> None:
    forwards = [run_seed(seed).digest for seed in SEEDS]
    backwards = [run_seed(seed).digest for seed in reversed(SEEDS)]
    assert backwards[::-1] == forwards
    assert digests_of_a_process("1", list(SEEDS), pure="1") == forwards
    assert digests_of_a_process("2", list(SEEDS), pure="") == forwards  # on the compiled core, where there is one
    assert len(set(forwards)) == len(SEEDS)


def test_a_trace_says_what_happened() -> None:
    lines: list[str] = []
    report = run_seed(BUSY, lines=lines)
    assert any(line.startswith("submit ") for line in lines)
    assert sum(line.startswith("[") for line in lines) == report.steps
    assert run_seed(BUSY).digest == report.digest


def test_processes_add_nothing() -> None:
    done: list[int] = []
    alone = run_seeds(0, 60)
    assert run_seeds(0, 60, jobs=2, on_progress=done.append) == alone
    assert done == [50, 60]
    assert (alone.seeds, alone.first, alone.violations, alone.failed) == (60, 0, 0, ())
    assert alone.requests > 60
    assert Report.of(0, [run_seed(seed) for seed in range(60)]) == alone


def test_a_world_becomes_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "seed.jsonl"
    report = run_seed(BUSY, journal=path)
    assert report == run_seed(BUSY)
    assert replay(path).is_same
    assert replay(path).events == report.events
    assert judge_journal(path) == []


def test_a_journal_in_which_something_is_missing_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "seed.jsonl"
    run_seed(BUSY, journal=path)
    lines = path.read_bytes().splitlines(keepends=True)
    first_start = next(number for number, line in enumerate(lines) if b"StartJob" in line)
    path.write_bytes(b"".join(lines[: first_start + 1]))
    assert any(violation.startswith("no terminal") for violation in judge_journal(path))
    path.write_bytes(b"".join(lines)[:-10])
    assert judge_journal(path)[0].endswith("is incomplete")
