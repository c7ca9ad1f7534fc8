"""What the core can say about itself: frozen figures for metrics, health and tests.

Every table that is keyed by a request is counted here, so that a leak shows as a figure that does not come back.
"""

from __future__ import annotations

import msgspec

from podium.core.lifecycle import BarrierState, FenceState, GateState, ReplicaState


class ReplicaStatistics(msgspec.Struct, frozen=True):
    """One replica: `inflight` counts the credits taken, `stopping` those of them that wait for a stop.

    It takes work when it is live and has the weights of its stage. `asleep` are the tags of the memory that it gave up,
    as it confirmed it. `reported` is the load that it says it has, in jobs.
    """

    slot: int
    generation: int
    state: ReplicaState
    inflight: int
    stopping: int
    takes_work: bool
    asleep: tuple[str, ...] = ()
    weights_version: int = 0
    reported: int = 0


class StageStatistics(msgspec.Struct, frozen=True):
    """One stage: jobs that wait for capacity, jobs at replicas, chunks that wait for a job's start (buffered).

    `returning` are the slots of replicas that are being replaced; work waits for them.
    """

    queued: int
    running: int
    buffered: int
    gate: GateState
    replicas: tuple[ReplicaStatistics, ...]
    barrier: BarrierState = BarrierState.OPEN
    fence: FenceState = FenceState.SETTLED
    weights_version: int = 0
    returning: tuple[int, ...] = ()

    @property
    def is_available(self) -> bool:
        """Whether any replica takes new work, or would if the stage were not paused."""
        return any(replica.takes_work for replica in self.replicas)


class Counters(msgspec.Struct):
    """What happened since the start; only ever grows. Every accepted request is counted once when it ends: as
    completed, aborted, cancelled (its client went away) or failed.
    """

    submitted: int = 0
    refused: int = 0
    completed: int = 0
    aborted: int = 0
    cancelled: int = 0
    failed: int = 0
    outputs: int = 0
    dropped: int = 0
    reruns: int = 0

    def copy(self) -> Counters:
        """The figures as they are now."""
        return msgspec.structs.replace(self)


class Statistics(msgspec.Struct, frozen=True):
    """The core at one moment. `longest_wait_s` is the age of the oldest request that has not ended."""

    requests: int
    held: int
    aborting: int
    abort_calls: int
    control_calls: int
    timers: int
    remembered: int
    longest_wait_s: float
    stages: dict[str, StageStatistics]
    counters: Counters

    @property
    def is_idle(self) -> bool:
        """Whether every table that is keyed by a request is empty."""
        jobs = sum(stage.queued + stage.running + stage.buffered for stage in self.stages.values())
        return not (self.requests or self.abort_calls or self.control_calls or self.timers or jobs)
