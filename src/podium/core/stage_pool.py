"""The replicas of one stage, their credits, and the queue of jobs that wait for one.

A pool decides which job goes to which replica; it starts nothing. A job leaves its replica only by ending, or with it.
A companion's job is parked until its leader has a replica, and then waits for a credit of that one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeAlias

from podium.core.balance import Balancer
from podium.core.barrier import Barrier
from podium.core.fence import Fence
from podium.core.graph import Balance, Stage
from podium.core.identity import JobKey, ReplicaKey
from podium.core.lifecycle import REPLICAS, JobState, ReplicaState, ReplicaTrigger, move
from podium.core.records import Job
from podium.core.snapshot import FenceSnapshot, ReplicaSnapshot

# Bound once: on Python 3.11 reading a member off its enum class costs as much as three calls.
_QUEUED = JobState.QUEUED

SWEEP_FLOOR = 64
"""Below this many entries the queue is not worth sweeping."""

Entry: TypeAlias = tuple[int, int, int, Job]
"""A job in a queue, behind what orders it: priority, arrival of its request, position in its plan."""


class Replica:
    """One life of one replica, with the jobs that it has. Each takes one credit, until it is confirmed to be over.

    It takes work while it is live and has the weights of its stage. `asleep` are the tags of memory that it gave up,
    `doubtful` those that it was told to give up, and has not said whether it did. `loads` are what each of its members
    reported last, and `reported` their sum. `followers` is a queue of companions' jobs that wait for a credit here and
    nowhere else.
    """

    __slots__ = (
        "asleep", "doubtful", "followers", "jobs", "key", "loads", "reported", "state", "takes_work", "weights_version",
    )  # fmt: skip

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.state = ReplicaState.LIVE
        self.takes_work = False
        self.weights_version = 0
        self.asleep: frozenset[str] = frozenset()
        self.doubtful: frozenset[str] = frozenset()
        self.loads: dict[int, int] = {}
        self.reported = 0
        self.jobs: dict[JobKey, Job] = {}
        self.followers: list[Entry] = []

    def __repr__(self) -> str:
        return f"<Replica {self.key} {self.state}, {len(self.jobs)} jobs>"

    @property
    def may_sleep(self) -> bool:
        """Whether any of its memory is given up, or may be."""
        return bool(self.asleep or self.doubtful)

    def advance(self, trigger: ReplicaTrigger) -> None:
        """Move through the table."""
        self.state = move(REPLICAS, self.state, trigger)

    def note_sleep_sent(self, tags: Iterable[str]) -> None:
        """It is told to give up memory: until it confirms, nobody knows whether it did."""
        self.doubtful |= frozenset(tags)

    def note_asleep(self, tags: Iterable[str]) -> None:
        """It has given up memory."""
        self.asleep |= frozenset(tags)
        self.doubtful -= self.asleep

    def note_awake(self, tags: Iterable[str]) -> None:
        """It has memory again."""
        self.asleep -= frozenset(tags)
        self.doubtful -= frozenset(tags)

    def note_load(self, member: int, load: int) -> None:
        """Keep what a member says that it has to do."""
        self.loads[member] = max(0, load)
        self.reported = sum(self.loads.values())


class StagePool:
    """One stage's replicas and its queue, by priority (lower first) and then by arrival."""

    def __init__(self, stage: Stage, seed: int = 1) -> None:
        self.stage = stage
        self.balancer = Balancer(stage.balance, stage.name, seed)
        self.is_even = stage.balance is Balance.ROUND_ROBIN or stage.balance is Balance.RANDOM
        self._has_affinity = stage.balance is Balance.AFFINITY
        self.replicas: dict[int, Replica] = {}
        self.returning: dict[int, ReplicaKey] = {}
        self.queued = 0
        self.live = 0
        self.barrier = Barrier()
        self.fence = Fence()
        self.is_frozen = False
        self.weights_version = 0
        self._newest: dict[int, int] = {}
        self._bound = 0
        self._queue: list[Entry] = []
        self._fresh: list[Job] = []

    def __repr__(self) -> str:
        jobs = sum(len(replica.jobs) for replica in self.replicas.values())
        return f"<StagePool {self.stage.name}: {len(self.replicas)} replicas, {jobs} jobs, {self.queued} queued>"

    @property
    def is_available(self) -> bool:
        """Whether any replica takes new work, now, when it has a credit, or when it is back."""
        return self.live > 0 or bool(self.returning)

    @property
    def is_between_lives(self) -> bool:
        """Whether nothing takes work, but a replica will that takes the place of another."""
        return self.live == 0 and bool(self.returning)

    def has_room(self, jobs: int) -> bool:
        """Whether so many more jobs of one request may come: those that find no credit have to wait."""
        limits = self.stage.limits
        if jobs == 1:
            return self.queued < limits.max_queued
        taken = [len(replica.jobs) for replica in self.replicas.values() if replica.takes_work]
        free = limits.max_inflight * len(taken) - sum(taken)
        return self.queued + max(0, jobs - free) <= limits.max_queued

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
        self.returning.pop(key.slot, None)
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
            replica.doubtful = frozenset(snapshot.doubtful)
            for member, load in snapshot.loads.items():
                replica.note_load(member, load)
            self._note_work(replica)

    def newest(self) -> list[ReplicaKey]:
        """The newest generation that each slot has seen."""
        return [ReplicaKey(self.stage.name, slot, generation) for slot, generation in self._newest.items()]

    def note_generation(self, key: ReplicaKey) -> None:
        """Know that a slot has seen a generation, so that no older one joins."""
        self._newest[key.slot] = max(key.generation, self._newest.get(key.slot, key.generation))

    def drain(self, replica: Replica, successor: ReplicaKey | None = None) -> None:
        """Give a replica no new work, and wait for its successor if it gets one."""
        replica.advance(ReplicaTrigger.DRAIN)
        if successor is not None:
            self.returning[replica.key.slot] = successor
        self._note_work(replica)

    def remove(self, replica: Replica, trigger: ReplicaTrigger) -> None:
        """Forget a replica that leaves or is lost."""
        replica.advance(trigger)
        self._note_work(replica)
        self.fence.forget_replica(replica.key)
        del self.replicas[replica.key.slot]

    def enqueue(self, job: Job) -> None:
        """Let a job wait for a credit: of any replica, or of its leader's as soon as that has one."""
        self.queued += 1
        leader = job.leader if job.plan.leader >= 0 else None
        if leader is None:
            self._wait_for_any(job)
        elif leader.is_before_replica:
            job.is_parked = True
        else:
            self.follow(job, leader.replica)

    def follow(self, job: Job, replica: Replica | None) -> None:
        """Let a companion's job wait for a credit of its leader's replica; of any, when that takes no new work."""
        job.is_parked = False
        if replica is None or not replica.takes_work:
            self._wait_for_any(job)
            return
        self._bound += 1
        self._fresh.append(job)
        heapq.heappush(replica.followers, _entry(job))

    def withdraw(self, job: Job) -> None:
        """Note that a queued job was cancelled; its entry goes when it is met, or in bulk."""
        self.queued -= 1
        job.is_parked = False
        if job.plan.leader >= 0:
            self._unbind(job)
        if len(self._queue) > 2 * self.queued + SWEEP_FLOOR:
            self._queue = [entry for entry in self._queue if entry[3].state is _QUEUED]
            heapq.heapify(self._queue)

    def take_fresh(self) -> list[Job]:
        """The jobs that were queued since this was last asked, and still are."""
        fresh, self._fresh = self._fresh, []
        return [job for job in fresh if job.state is _QUEUED]

    def next_pair(self) -> tuple[Job, Replica] | None:
        """The next job, taken from the queue, and the least loaded replica with a credit; None without either."""
        if not self.queued or self.is_frozen:
            return None
        replica = self._with_credit() if self.is_even else self._least_loaded()
        if replica is None:
            return None
        if self._bound:
            return self._next_among_followers(replica)
        while self._queue:
            job = heapq.heappop(self._queue)[3]
            if job.state is _QUEUED:
                self.queued -= 1
                return job, (self._preferred_by(job) or replica) if self._has_affinity else replica
        return None

    def _next_among_followers(self, least_loaded: Replica) -> tuple[Job, Replica] | None:
        """The next job of the queue and of those that wait for one replica: a credit elsewhere is of no use to them."""
        queue = self._queue
        while queue and queue[0][3].state is not _QUEUED:
            heapq.heappop(queue)
        best, where = (queue[0] if queue else None), least_loaded
        for replica in self.replicas.values():
            has_credit = replica.takes_work and len(replica.jobs) < self.stage.limits.max_inflight
            if has_credit and replica.followers and (best is None or replica.followers[0] < best):
                best, where, queue = replica.followers[0], replica, replica.followers
        if best is None:
            return None
        heapq.heappop(queue)
        self.queued -= 1
        if queue is not self._queue:
            self._bound -= 1
        elif self._has_affinity:
            where = self._preferred_by(best[3]) or where
        return best[3], where

    def _wait_for_any(self, job: Job) -> None:
        self._fresh.append(job)
        heapq.heappush(self._queue, _entry(job))

    def _unbind(self, job: Job) -> None:
        for replica in self.replicas.values():
            rest = [entry for entry in replica.followers if entry[3] is not job]
            if len(rest) < len(replica.followers):
                heapq.heapify(rest)
                replica.followers = rest
                self._bound -= 1

    def _free_followers(self, replica: Replica) -> None:
        """What waits for a replica that takes no new work may go to any."""
        for entry in replica.followers:
            heapq.heappush(self._queue, entry)
        self._bound -= len(replica.followers)
        replica.followers = []

    def _with_credit(self) -> Replica | None:
        return self.balancer.choose(list(self.replicas.values()), self.stage.limits.max_inflight)

    def _preferred_by(self, job: Job) -> Replica | None:
        affinity = job.request.affinity or job.request.id
        return self.balancer.prefer(affinity, list(self.replicas.values()), self.stage.limits.max_inflight)

    def _least_loaded(self) -> Replica | None:
        """Of those with a credit the one that has the least to do, as far as is known."""
        best: Replica | None = None
        least = 0
        for replica in self.replicas.values():
            inflight = len(replica.jobs)
            if inflight < self.stage.limits.max_inflight and replica.takes_work:
                load = inflight + replica.reported
                if load == 0:
                    return replica
                if best is None or load < least:
                    best, least = replica, load
        return best

    def _note_work(self, replica: Replica) -> None:
        takes_work = replica.state is ReplicaState.LIVE and replica.weights_version == self.weights_version
        self.live += takes_work - replica.takes_work
        replica.takes_work = takes_work
        if replica.followers and not takes_work:
            self._free_followers(replica)


def _entry(job: Job) -> Entry:
    return job.request.priority, job.request.serial, job.plan.position, job
