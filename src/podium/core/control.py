"""Calls of callers that are not answered yet: aborts, and control of the engine.

Each knows what it still waits for, and the one answer that it gets. How a request is stopped, or a stage paused, is not
known here; a call is told what came of it.
"""

from __future__ import annotations

from enum import StrEnum

from podium.core.deadlines import Timer
from podium.core.effects import AbortRecord, ControlRecord, ReplyAbort
from podium.core.events import ControlRequested
from podium.core.identity import ReplicaKey


class AbortCall(Timer):
    """One abort, until it is answered. Its timer is the limit that the caller set."""

    __slots__ = ("call", "pending", "records", "samples")

    def __init__(self, call: int, request_ids: tuple[str, ...], samples: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.call = call
        self.samples = samples
        self.records: dict[str, AbortRecord | None] = dict.fromkeys(request_ids)
        self.pending = len(self.records)

    def __repr__(self) -> str:
        return f"<AbortCall {self.call}, {self.pending} of {len(self.records)} open>"

    def means(self, sample: int) -> bool:
        """Whether it is about that sample of its requests."""
        return not self.samples or sample in self.samples

    @property
    def is_answered(self) -> bool:
        """Whether every id has its record."""
        return self.pending == 0

    def open_ids(self) -> list[str]:
        """The ids that have no record yet."""
        return [request_id for request_id, record in self.records.items() if record is None]

    def note(self, record: AbortRecord) -> None:
        """Keep what came of one id; the first record counts."""
        if self.records[record.request_id] is None:
            self.records[record.request_id] = record
            self.pending -= 1

    def reply(self) -> ReplyAbort:
        """The answer, in the order of the ids that were asked for."""
        return ReplyAbort(self.call, tuple(record for record in self.records.values() if record is not None))


class Step(StrEnum):
    """One thing after the other that a control call waits for: `DRAIN` for jobs, the others for answers of replicas."""

    THAW = "resume"
    DRAIN = "drain"
    QUIESCE = "pause"
    SLEEP = "sleep"
    WAKE = "wake_up"
    RESUME = "resume_generation"
    UPDATE = "update_weights"
    ROLL_BACK = "roll_back_weights"
    CALL = "call"


class ControlCall(Timer):
    """One control call, until it is answered. Its timer is the limit that the caller set.

    `pending` has the replicas that were called and have not answered, by the number of that call; `records` the last
    answer of each replica. `step` is what is under way once it has begun, `steps` what comes after.
    """

    __slots__ = ("call", "operation", "pending", "records", "stages", "step", "steps")

    def __init__(self, event: ControlRequested, steps: tuple[Step, ...]) -> None:
        super().__init__()
        self.call = event.call
        self.operation = event.operation
        self.stages = event.stages
        self.steps = list(steps)
        self.step = Step.CALL
        self.pending: dict[int, ReplicaKey] = {}
        self.records: dict[ReplicaKey, ControlRecord] = {}

    def __repr__(self) -> str:
        return f"<ControlCall {self.call} {type(self.operation).__name__} at {self.step}, {len(self.pending)} pending>"

    def waits_for(self, stage: str) -> bool:
        """Whether a replica of that stage has still to answer."""
        return any(replica.stage == stage for replica in self.pending.values())

    def failures(self) -> list[ControlRecord]:
        """The answers that are errors."""
        return [record for record in self.records.values() if not record.ok]
