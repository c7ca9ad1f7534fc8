"""Thousands of whole engines, each from one seed: whatever fails, every promise is kept. See docs/simulation.md."""

from __future__ import annotations

import pytest

from podium.testing.simulation import run_seeds

SEEDS = 4000
BLOCKS = 8
"""The seeds run in so many tests, for the sake of several processors."""
HAPPENS = {
    "abort answered",
    "abort unconfirmed",
    "asked",
    "begin done",
    "call done",
    "call failed",
    "call hangs",
    "commit done",
    "pause abort done",
    "pause keep done",
    "pause wait done",
    "resume done",
    "roll back done",
    "sleep done",
    "wake up done",
    "close hangs",
    "died",
    "end aborted",
    "end completed",
    "end deadline_exceeded",
    "end duplicate_request_id",
    "end engine_stopped",
    "end invalid_request",
    "end left",
    "end overloaded",
    "end processor_failed",
    "end replica_lost",
    "end stage_failed",
    "end stage_unavailable",
    "end wait_timeout",
    "finish abort",
    "finish error",
    "finish length",
    "hangs",
    "lost",
    "lost before any output",
    "lost before the end",
    "lost between outputs",
    "not started",
    "outbox full",
    "outputs shuffled",
    "processor raised",
    "refused",
    "repeated",
    "stop failed",
    "stop hangs",
    "worked on",
}
"""What each block of seeds has, at least."""


@pytest.mark.rule(
    "ORCH-INV-100",
    "ORCH-INV-101",
    "ORCH-INV-103",
    "ORCH-INV-104",
    "ORCH-INV-106",
    "ORCH-INV-107",
    "ORCH-INV-109",
    "ORCH-INV-110",
    "ORCH-INV-116",
    "ORCH-INV-117",
    "ORCH-INV-118",
    "ORCH-INV-201",
    "ORCH-INV-202",
    "ORCH-INV-203",
    "ORCH-INV-204",
    "ORCH-INV-205",
    "ORCH-INV-207",
    "ORCH-INV-212",
    "ORCH-INV-213",
    "ORCH-INV-230",
    "ORCH-INV-231",
    "ORCH-INV-232",
    "ORCH-INV-233",
    "ORCH-INV-234",
    "ORCH-INV-235",
    "ORCH-INV-236",
    "ORCH-INV-302",
)
@pytest.mark.case("B002", "B008", "B025", "B028", "B032", "B068", "B079", "B103")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept(block: int) -> None:
    count = SEEDS // BLOCKS
    report = run_seeds(block * count, count)
    assert [(failed.seed, failed.violations[0]) for failed in report.failed] == []
    assert HAPPENS - report.seen.keys() == set()
