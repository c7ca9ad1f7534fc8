"""Keys: what they are made of, and how they read."""

from __future__ import annotations

from podium.core.identity import MAIN, JobKey, ReplicaKey


def test_a_job_reads_as_request_stage_sibling_attempt() -> None:
    assert str(JobKey("r", "talker", MAIN, 7)) == "r/talker/main#7"


def test_a_replica_reads_as_stage_slot_generation() -> None:
    assert str(ReplicaKey("talker", 1, 3)) == "talker[1]@3"


def test_attempts_and_generations_tell_keys_apart() -> None:
    assert JobKey("r", "a", MAIN, 1) != JobKey("r", "a", MAIN, 2)
    assert ReplicaKey("a", 0, 0) != ReplicaKey("a", 0, 1)
