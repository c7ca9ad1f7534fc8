"""The replicas of one stage, their credits, and the queue of jobs that wait for one.

A pool decides which job goes to which replica; it starts nothing. A job leaves its replica only by ending, or with it.
"""

from __future__ import annotations

import heapq

from podium.core.barrier import Barrier
from podium.core.fence import Fence
from podium.core.graph import Stage
from podium.core.identity import JobKey, ReplicaKey
from podium.core.lifecycle import REPLICAS, JobState, ReplicaState, ReplicaTrigger, move
from podium.core.records import Job
from podium.core.snapshot import FenceSnapshot, ReplicaSnapshot

# Bound once: on Python 3.11 reading a member off its enum class costs as much as three calls.
_QUEUED = JobState.QUEUED

SWEEP_FLOOR = 64
"""Below this many entries the queue is not worth sweeping."""


class Replica:
    """One life of one replica, with the jobs that it has. Each takes one credit, until it is confirmed to be over.

    It takes work while it is live and has the weights of its stage. `asleep` are the tags of memory that it gave up.
    """

    __slots__ = ("asleep", "jobs", "key", "state", "takes_work", "weights_version")

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.state = ReplicaState.LIVE
        self.takes_work = False
        self.weights_version = 0
        self.asleep: frozenset[str] = frozenset()
        self.jobs: dict[JobKey, Job] = {}

    def __repr__(self) -> str:
        return f"<Replica {self.key} {self.state}, {len(self.jobs)} jobs>"

    def advance(self, trigger: ReplicaTrigger) -> None:
        """Move through the table."""
        self.state = move(REPLICAS, self.state, trigger)


class StagePool:
    """One stage's replicas and its queue, by priority (lower first) and then by arrival."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.replicas: dict[int, Replica] = {}
        self.queued = 0
        self.live = 0
        self.barrier = Barrier()
        self.fence = Fence()
        self.is_frozen = False
        self.weights_version = 0
        self._newest: dict[int, int] = {}
        self._queue: list[tuple[int, int, Job]] = []
        self._fresh: list[Job] = []

    def __repr__(self) -> str:
        jobs = sum(len(replica.jobs) for replica in self.replicas.values())
        return f"<StagePool {self.stage.name}: {len(self.replicas)} replicas, {jobs} jobs, {self.queued} queued>"

    @property
    def is_available(self) -> bool:
        """Whether any replica takes new work, now or when it has a credit."""
        return self.live > 0

    @property
    def is_full(self) -> bool:
        """Whether as many jobs wait as may."""
        return self.queued >= self.stage.limits.max_queued

    def find(self, key: ReplicaKey) -> Replica | None:
        """The replica of that generation; None for a former one."""
        replica = self.replicas.get(key.slot)
        return replica if replica is not None and replica.key.generation == key.generation else None

    def present(self) -> list[ReplicaKey]:
        """The replicas that are up."""
        return [replica.key for replica in self.replicas.values()]

    def try_join(self, key: ReplicaKey) -> Replica | None:
        """Take in a new life of a replica; None when its slot is taken, or has seen this generation or a later one."""
        if key.slot in self.replicas or key.generation <= self._newest.get(key.slot, -1):
            return None
        self._newest[key.slot] = key.generation
        replica = self.replicas[key.slot] = Replica(key)
        self._note_work(replica)
        return replica

    def note_version(self) -> None:
        """Every replica has the weights that the fence says."""
        self.weights_version = self.fence.version
        for replica in self.replicas.values():
            replica.weights_version = self.weights_version
            self._note_work(replica)

    def restore_fence(self, snapshot: FenceSnapshot) -> None:
        """Have the weights that another pool had."""
        self.fence.restore(snapshot)
        self.weights_version = self.fence.version

    def restore_replica(self, snapshot: ReplicaSnapshot) -> None:
        """Have a replica that another pool had."""
        replica = self.try_join(snapshot.key)
        if replica is not None:
            replica.weights_version = snapshot.weights_version
            replica.asleep = frozenset(snapshot.asleep)
            self._note_work(replica)

    def newest(self) -> list[ReplicaKey]:
        """The newest generation that each slot has seen."""
        return [ReplicaKey(self.stage.name, slot, generation) for slot, generation in self._newest.items()]

    def note_generation(self, key: ReplicaKey) -> None:
        """Know that a slot has seen a generation, so that no older one joins."""
        self._newest[key.slot] = max(key.generation, self._newest.get(key.slot, key.generation))

    def drain(self, replica: Replica) -> None:
        """Give a replica no new work."""
        replica.advance(ReplicaTrigger.DRAIN)
        self._note_work(replica)

    def remove(self, replica: Replica, trigger: ReplicaTrigger) -> None:
        """Forget a replica that leaves or is lost."""
        replica.advance(trigger)
        self._note_work(replica)
        self.fence.forget_replica(replica.key)
        del self.replicas[replica.key.slot]

    def enqueue(self, job: Job) -> None:
        """Let a job wait for a credit."""
        self.queued += 1
        self._fresh.append(job)
        heapq.heappush(self._queue, (job.request.priority, job.request.serial, job))

    def withdraw(self) -> None:
        """Note that a queued job was cancelled; its entry goes when it is met, or in bulk."""
        self.queued -= 1
        if len(self._queue) > 2 * self.queued + SWEEP_FLOOR:
            self._queue = [entry for entry in self._queue if entry[2].state is _QUEUED]
            heapq.heapify(self._queue)

    def take_fresh(self) -> list[Job]:
        """The jobs that were queued since this was last asked, and still are."""
        fresh, self._fresh = self._fresh, []
        return [job for job in fresh if job.state is _QUEUED]

    def next_pair(self) -> tuple[Job, Replica] | None:
        """The next job, taken from the queue, and the least loaded replica with a credit; None without either."""
        if not self.queued or self.is_frozen:
            return None
        replica = self._least_loaded()
        if replica is None:
            return None
        while True:
            job = heapq.heappop(self._queue)[2]
            if job.state is _QUEUED:
                self.queued -= 1
                return job, replica

    def _least_loaded(self) -> Replica | None:
        best: Replica | None = None
        least = self.stage.limits.max_inflight
        for replica in self.replicas.values():
            load = len(replica.jobs)
            if load < least and replica.takes_work:
                if load == 0:
                    return replica
                best, least = replica, load
        return best

    def _note_work(self, replica: Replica) -> None:
        takes_work = replica.state is ReplicaState.LIVE and replica.weights_version == self.weights_version
        self.live += takes_work - replica.takes_work
        replica.takes_work = takes_work
