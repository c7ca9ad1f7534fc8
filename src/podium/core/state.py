"""The tables of the core, and the effects of the step that is being taken.

One place holds everything that the core knows; the modules around it are the moves. Nothing outside of `core/` sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

from podium.core.admission import EngineLimits, Gate
from podium.core.control import AbortCall, ControlCall
from podium.core.deadlines import Deadlines
from podium.core.effects import Effect, ReleasePayloads
from podium.core.graph import Graph
from podium.core.identity import Payload, ReplicaKey
from podium.core.plan import Planner
from podium.core.records import Job, Request, Wait
from podium.core.snapshot import ReplicaSnapshot, Snapshot
from podium.core.stage_pool import Replica, StagePool
from podium.core.statistics import Counters, ReplicaStatistics, StageStatistics, Statistics
from podium.errors import ErrorRecord, InternalError

_NOTHING = Wait.NOTHING


class CoreState:
    """Requests, pools, timers, abort calls: everything by its key, and nothing kept longer than it lives."""

    def __init__(self, graph: Graph, limits: EngineLimits) -> None:
        self.graph = graph
        self.limits = limits
        self.planner = Planner(graph)
        self.pools = {name: StagePool(stage, limits.seed) for name, stage in graph.stages.items()}
        self.gate = Gate(graph.stages)
        self.deadlines = Deadlines()
        self.requests: dict[str, Request] = {}
        self.held: dict[str, Request] = {}
        self.abort_calls: dict[int, AbortCall] = {}
        self.control_calls: dict[int, ControlCall] = {}
        self.replica_calls: dict[int, ControlCall] = {}
        self.gone: list[tuple[ReplicaKey, ErrorRecord | None]] = []
        self.remembered: dict[str, None] = {}
        self.counters = Counters()
        self.now = 0.0
        self.effects: list[Effect] = []
        self.pools_to_serve: dict[str, StagePool] = {}
        self._serial = 0
        self._attempt = 0
        self._call = 0

    def __repr__(self) -> str:
        return f"<CoreState {len(self.requests)} requests, {self.deadlines.live} timers>"

    def next_serial(self) -> int:
        """A number for a request: the order of arrival."""
        self._serial += 1
        return self._serial

    def next_attempt(self) -> int:
        """A number for a job's key, never used again."""
        self._attempt += 1
        return self._attempt

    def next_call(self) -> int:
        """A number for the call of a replica, never used again."""
        self._call += 1
        return self._call

    def note_gone(self, replica: ReplicaKey, error: ErrorRecord | None) -> None:
        """Let the control calls hear, once this event is handled, of a replica that was lost or has left."""
        if self.control_calls:
            self.gone.append((replica, error))

    def pool_of(self, job: Job) -> StagePool:
        """The pool of a job's stage."""
        return self.pools[job.stage.name]

    def find_replica(self, key: ReplicaKey) -> Replica | None:
        """The replica of that very generation, if it is there."""
        pool = self.pools.get(key.stage)
        return pool.find(key) if pool is not None else None

    def serve(self, pool: StagePool) -> None:
        """Look at a pool's queue once this event is handled."""
        self.pools_to_serve[pool.stage.name] = pool

    def release(self, payloads: Sequence[Payload]) -> None:
        """Let go of payloads that nobody will get."""
        if payloads:
            self.effects.append(ReleasePayloads(tuple(payloads)))

    def drop(self, payloads: Sequence[Payload]) -> None:
        """Count a delivery that matches nothing, and let its payloads go."""
        self.counters.dropped += 1
        self.release(payloads)

    def wait(self, job: Job, wait: Wait, limit_s: float) -> None:
        """Let `job` wait for one thing, for so long."""
        job.wait = wait
        self.deadlines.set(job, self.now + limit_s)

    def end_wait(self, job: Job) -> None:
        """Let `job` wait for nothing."""
        job.wait = _NOTHING
        self.deadlines.clear(job)

    def standing_still(self, job: Job) -> StagePool | None:
        """The stage that a job waits for in vain, if there is one: its own, or one where its sample has to run."""
        jobs = [job] if job.wait is not Wait.BUNDLE else [one for one in job.sample.jobs if one.is_of_use]
        for one in jobs:
            pool = self.pool_of(one)
            if pool.barrier.is_frozen and not pool.barrier.is_open:
                return pool
        return None

    def remember(self, request_id: str) -> None:
        """Keep the id of an ended request for a while, so that a late abort gets a precise answer."""
        self.remembered.pop(request_id, None)
        self.remembered[request_id] = None
        if len(self.remembered) > self.limits.max_remembered:
            del self.remembered[next(iter(self.remembered))]

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing that lives: no request, no job at a replica, no timer."""
        return not (
            self.requests
            or self.abort_calls
            or self.control_calls
            or self.deadlines.live
            or any(replica.jobs for pool in self.pools.values() for replica in pool.replicas.values())
        )

    def snapshot(self) -> Snapshot:
        """What another core needs to go on from here. Raises InternalError unless this one is idle."""
        if not self.is_idle:
            raise InternalError("only an idle core has a snapshot")
        return Snapshot(
            replicas=tuple(
                _replica_snapshot(replica) for pool in self.pools.values() for replica in pool.replicas.values()
            ),
            newest=tuple(key for pool in self.pools.values() for key in pool.newest()),
            gate=self.gate.states(),
            barriers={name: pool.barrier.snapshot() for name, pool in self.pools.items()},
            fences={name: pool.fence.snapshot() for name, pool in self.pools.items()},
            returning=tuple(key for pool in self.pools.values() for key in pool.returning.values()),
            balances={name: pool.balancer.snapshot() for name, pool in self.pools.items() if pool.is_even},
            remembered=tuple(self.remembered),
            serial=self._serial,
            attempt=self._attempt,
            calls=self._call,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from where another core was idle."""
        self._serial, self._attempt, self._call = snapshot.serial, snapshot.attempt, snapshot.calls
        self.remembered = dict.fromkeys(snapshot.remembered)
        self.gate.restore(snapshot.gate)
        for name, barrier in snapshot.barriers.items():
            self.pools[name].barrier.restore(barrier)
            self.pools[name].is_frozen = not self.pools[name].barrier.lets_start
        for name, fence in snapshot.fences.items():
            self.pools[name].restore_fence(fence)
        for key in snapshot.returning:
            self.pools[key.stage].returning[key.slot] = key
        for name, balance in snapshot.balances.items():
            self.pools[name].balancer.restore(balance)
        for one in snapshot.replicas:
            self.pools[one.key.stage].restore_replica(one)
        for key in snapshot.newest:
            self.pools[key.stage].note_generation(key)

    def statistics(self) -> Statistics:
        """Everything as it is now."""
        oldest = min((request.submitted_at for request in self.requests.values()), default=self.now)
        buffered = dict.fromkeys(self.pools, 0)
        for request in self.requests.values():
            for job in request.jobs:
                buffered[job.stage.name] += job.order.early + sum(len(buffer.unsent) for buffer in job.inputs.values())
        gates = self.gate.states()
        return Statistics(
            requests=len(self.requests),
            held=len(self.held),
            aborting=sum(request.is_aborting for request in self.requests.values()),
            abort_calls=len(self.abort_calls),
            control_calls=len(self.control_calls),
            timers=self.deadlines.live,
            remembered=len(self.remembered),
            longest_wait_s=self.now - oldest,
            stages={
                name: StageStatistics(
                    queued=pool.queued,
                    running=sum(len(replica.jobs) for replica in pool.replicas.values()),
                    buffered=buffered[name],
                    gate=gates[name],
                    barrier=pool.barrier.state,
                    fence=pool.fence.state,
                    weights_version=pool.weights_version,
                    returning=tuple(pool.returning),
                    replicas=tuple(_replica_statistics(replica) for replica in pool.replicas.values()),
                )
                for name, pool in self.pools.items()
            },
            counters=self.counters.copy(),
        )


def _replica_snapshot(replica: Replica) -> ReplicaSnapshot:
    asleep, doubtful = tuple(sorted(replica.asleep)), tuple(sorted(replica.doubtful))
    return ReplicaSnapshot(replica.key, replica.weights_version, asleep, doubtful, dict(replica.loads))


def _replica_statistics(replica: Replica) -> ReplicaStatistics:
    return ReplicaStatistics(
        slot=replica.key.slot,
        generation=replica.key.generation,
        state=replica.state,
        inflight=len(replica.jobs),
        stopping=sum(job.is_stopping for job in replica.jobs.values()),
        takes_work=replica.takes_work,
        asleep=tuple(sorted(replica.asleep)),
        weights_version=replica.weights_version,
        reported=replica.reported,
    )
