"""Keys: what they are made of, and how they read."""

from __future__ import annotations

import pytest

from podium.core.identity import MAIN, JobKey, ReplicaKey, sibling_name


def test_a_job_reads_as_request_stage_sibling_attempt() -> None:
    assert str(JobKey("r", "talker", MAIN, 7)) == "r/talker/main#7"


def test_a_replica_reads_as_stage_slot_generation() -> None:
    assert str(ReplicaKey("talker", 1, 3)) == "talker[1]@3"


def test_attempts_and_generations_tell_keys_apart() -> None:
    assert JobKey("r", "a", MAIN, 1) != JobKey("r", "a", MAIN, 2)
    assert ReplicaKey("a", 0, 0) != ReplicaKey("a", 0, 1)


@pytest.mark.parametrize(
    ("sample", "samples", "role", "name"),
    [(0, 1, MAIN, "main"), (2, 3, MAIN, "2"), (0, 1, "negative", "main.negative"), (1, 2, "negative", "1.negative")],
)
def test_a_sibling_is_called_by_its_sample_and_its_role(sample: int, samples: int, role: str, name: str) -> None:
    assert sibling_name(sample, samples, role) == name
    key = JobKey("r", "a", name, 1)
    assert (key.sample, key.role) == (sample, role)
