"""Replicas, credits and the queue of one stage."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.events import RequestSubmitted
from podium.core.graph import Balance, Graph, Limits
from podium.core.identity import JobKey, ReplicaKey
from podium.core.lifecycle import JobTrigger, ReplicaState, ReplicaTrigger
from podium.core.plan import Planner
from podium.core.records import Job, Request
from podium.core.snapshot import ReplicaSnapshot
from podium.core.stage_pool import SWEEP_FLOOR, Replica, StagePool
from tests.support.core_world import World, complete, make_stage

STAGE = make_stage("a", output="out", limits=Limits(max_inflight=2, max_queued=2))
PLAN = Planner(Graph([STAGE])).plan(None)


def make_pool(replicas: int = 1) -> StagePool:
    pool = StagePool(STAGE)
    for slot in range(replicas):
        join(pool, slot)
    return pool


def join(pool: StagePool, slot: int = 0, generation: int = 0) -> Replica:
    replica = pool.try_join(ReplicaKey("a", slot, generation))
    assert replica is not None
    return replica


def queue(pool: StagePool, request_id: str, *, priority: int = 0, serial: int = 0, affinity: str | None = None) -> Job:
    event = RequestSubmitted(ticket=serial, request_id=request_id, priority=priority, affinity=affinity)
    job = Request(event, PLAN, serial, 0.0).jobs[0]
    job.advance(JobTrigger.READY)
    pool.enqueue(job)
    return job


def take(pool: StagePool) -> tuple[str, int] | None:
    """Dispatch the next job; returns its request and the slot of its replica."""
    pair = pool.next_pair()
    if pair is None:
        return None
    job, replica = pair
    job.advance(JobTrigger.DISPATCH)
    replica.jobs[job.new_key(job.request.serial)] = job
    return job.request.id, replica.key.slot


def test_repr() -> None:
    pool = make_pool(2)
    queue(pool, "r")
    assert repr(pool) == "<StagePool a: 2 replicas, 0 jobs, 1 queued>"
    take(pool)
    assert repr(pool) == "<StagePool a: 2 replicas, 1 jobs, 0 queued>"
    assert repr(pool.replicas[0]) == "<Replica a[0]@0 live, 1 jobs>"


def test_a_job_waits_for_a_replica() -> None:
    pool = StagePool(STAGE)
    assert not pool.is_available
    assert take(pool) is None
    queue(pool, "r")
    assert take(pool) is None
    join(pool)
    assert take(pool) == ("r", 0)


def test_lower_priority_first_and_then_by_arrival() -> None:
    pool = make_pool(2)
    queue(pool, "late", serial=3)
    queue(pool, "early", serial=1)
    queue(pool, "urgent", priority=-1, serial=4)
    assert [take(pool), take(pool), take(pool)] == [("urgent", 0), ("early", 1), ("late", 0)]


def test_the_least_loaded_replica_gets_the_next_job() -> None:
    pool = make_pool(3)
    for slot, jobs in enumerate((2, 1, 1)):
        pool.replicas[slot].jobs = {
            JobKey("other", "a", "main", number): queue(pool, "x", serial=10 * slot + number) for number in range(jobs)
        }
    assert take(pool) == ("x", 1)
    assert take(pool) == ("x", 2)
    assert take(pool) is None


def test_without_a_credit_jobs_wait() -> None:
    pool = make_pool()
    for serial in range(3):
        queue(pool, f"r{serial}", serial=serial)
    assert [take(pool), take(pool), take(pool)] == [("r0", 0), ("r1", 0), None]
    assert (pool.queued, pool.has_room(1)) == (1, True)
    queue(pool, "r3", serial=3)
    assert (pool.queued, pool.has_room(1)) == (2, False)


def test_a_draining_replica_gets_nothing_new() -> None:
    pool = make_pool(2)
    pool.drain(pool.replicas[0])
    queue(pool, "r")
    assert take(pool) == ("r", 1)
    pool.drain(pool.replicas[1])
    assert not pool.is_available


def test_replicas_are_found_by_generation() -> None:
    pool = make_pool()
    assert pool.find(ReplicaKey("a", 0, 0)) is pool.replicas[0]
    assert pool.find(ReplicaKey("a", 0, 1)) is None
    assert pool.find(ReplicaKey("a", 1, 0)) is None


def test_a_slot_takes_one_life_at_a_time_and_never_an_old_one() -> None:
    pool = make_pool()
    assert pool.try_join(ReplicaKey("a", 0, 1)) is None
    pool.remove(pool.replicas[0], ReplicaTrigger.LOSE)
    assert not pool.is_available
    assert pool.try_join(ReplicaKey("a", 0, 0)) is None
    assert join(pool, generation=1).state is ReplicaState.LIVE
    assert pool.newest() == [ReplicaKey("a", 0, 1)]


def test_generations_can_be_known_without_a_replica() -> None:
    pool = StagePool(STAGE)
    pool.note_generation(ReplicaKey("a", 0, 4))
    pool.note_generation(ReplicaKey("a", 0, 2))
    assert pool.newest() == [ReplicaKey("a", 0, 4)]
    assert pool.try_join(ReplicaKey("a", 0, 4)) is None


def test_a_draining_replica_leaves() -> None:
    pool = make_pool(2)
    replica = pool.replicas[0]
    pool.drain(replica)
    pool.remove(replica, ReplicaTrigger.LEAVE)
    assert replica.state is ReplicaState.GONE
    assert pool.live == 1


def test_a_cancelled_job_is_passed_over() -> None:
    pool = make_pool()
    cancelled = queue(pool, "gone", serial=1)
    queue(pool, "r", serial=2)
    cancelled.advance(JobTrigger.CANCEL)
    pool.withdraw(cancelled)
    assert take(pool) == ("r", 0)
    assert take(pool) is None


def test_cancelled_jobs_are_swept_in_bulk() -> None:
    pool = make_pool()
    queue(pool, "kept")
    for serial in range(1, 2 * SWEEP_FLOOR):
        gone = queue(pool, "gone", serial=serial)
        gone.advance(JobTrigger.CANCEL)
        pool.withdraw(gone)
    assert len(pool._queue) <= 2 * pool.queued + SWEEP_FLOOR
    assert take(pool) == ("kept", 0)


def test_fresh_jobs_are_asked_for_once() -> None:
    pool = make_pool()
    queue(pool, "started", serial=1)
    waiting = queue(pool, "waiting", serial=2)
    take(pool)
    assert pool.take_fresh() == [waiting]
    assert pool.take_fresh() == []


class Guided:
    """A pool of the first stage of a request with one companion, and the two jobs that it is about."""

    def __init__(self, pool: StagePool, request_id: str = "r", *, priority: int = 0, serial: int = 0) -> None:
        stages = (pool.stage, make_stage("b", complete("a"), output="image", joins=True))
        plan = Planner(Graph(stages)).expand(("image",), 1, ("negative",), 8)
        event = RequestSubmitted(ticket=serial, request_id=request_id, priority=priority)
        jobs = Request(event, plan, serial, 0.0).jobs
        self.pool = pool
        self.leader, self.follower = jobs[0], jobs[2]

    def queue(self, job: Job) -> None:
        job.advance(JobTrigger.READY)
        self.pool.enqueue(job)

    def queue_both(self) -> None:
        self.queue(self.leader)
        self.queue(self.follower)

    def start_leader(self, replica: Replica) -> None:
        """The leader was taken, and has a replica: what its start does."""
        self.leader.replica = replica
        if self.follower.is_parked:
            self.pool.follow(self.follower, replica)


@pytest.mark.rule("ORCH-INV-115")
class TestFollowers:
    def test_a_companion_is_parked_until_its_sample_has_a_replica(self) -> None:
        pool = make_pool()
        one = Guided(pool)
        one.queue(one.follower)
        is_parked = [one.follower.is_parked]
        assert (pool.queued, take(pool), pool.take_fresh()) == (1, None, [])
        one.start_leader(pool.replicas[0])
        is_parked.append(one.follower.is_parked)
        assert is_parked == [True, False]
        assert pool.take_fresh() == [one.follower]
        assert take(pool) == ("r", 0)
        assert pool.queued == 0

    def test_it_waits_for_a_credit_there_and_holds_up_nobody(self) -> None:
        pool = make_pool(2)
        one = Guided(pool, serial=1)
        one.queue_both()
        busy = pool.replicas[0]
        assert take(pool) == ("r", 0)
        one.start_leader(busy)
        busy.jobs[JobKey("other", "a", "main", 9)] = queue_nowhere()
        queue(pool, "later", serial=2)
        assert take(pool) == ("later", 1)
        assert take(pool) is None
        busy.jobs.popitem()
        assert take(pool) == ("r", 0)

    def test_it_takes_its_turn_among_the_others(self) -> None:
        pool = make_pool()
        one = Guided(pool, serial=5)
        one.queue_both()
        assert take(pool) == ("r", 0)
        one.start_leader(pool.replicas[0])
        gone = queue(pool, "gone", serial=0)
        gone.advance(JobTrigger.CANCEL)
        pool.withdraw(gone)
        queue(pool, "early", serial=1)
        assert take(pool) == ("early", 0)
        pool.replicas[0].jobs.clear()
        assert take(pool) == ("r", 0)
        assert take(pool) is None

    @pytest.mark.parametrize("how", ["drain", "lose", "before"])
    def test_when_that_replica_is_gone_it_goes_to_any(self, how: str) -> None:
        pool = make_pool(2)
        one = Guided(pool)
        one.queue_both()
        assert take(pool) == ("r", 0)
        replica = pool.replicas[0]
        if how == "before":
            pool.drain(replica)
        one.start_leader(replica)
        if how == "drain":
            pool.drain(replica)
        elif how == "lose":
            pool.remove(replica, ReplicaTrigger.LOSE)
        assert take(pool) == ("r", 1)

    def test_it_follows_at_once_when_its_sample_was_there_before(self) -> None:
        pool = make_pool(2)
        one = Guided(pool)
        one.queue(one.leader)
        assert take(pool) == ("r", 0)
        one.leader.replica = pool.replicas[0]
        one.queue(one.follower)
        assert take(pool) == ("r", 0)

    def test_a_sample_that_never_ran_lets_it_go_to_any(self) -> None:
        pool = make_pool()
        one = Guided(pool)
        one.leader.advance(JobTrigger.SKIP)
        one.queue(one.follower)
        assert take(pool) == ("r", 0)

    def test_one_that_is_cancelled_leaves_nothing(self) -> None:
        pool = make_pool()
        others = [Guided(pool, f"r{serial}", serial=serial) for serial in range(2)]
        replica = pool.replicas[0]
        for other in others:
            other.queue(other.follower)
            other.start_leader(replica)
        others[0].follower.advance(JobTrigger.CANCEL)
        pool.withdraw(others[0].follower)
        assert [entry[3] for entry in replica.followers] == [others[1].follower]
        assert take(pool) == ("r1", 0)
        parked = Guided(pool, "parked")
        parked.queue(parked.follower)
        parked.follower.advance(JobTrigger.CANCEL)
        pool.withdraw(parked.follower)
        assert (pool.queued, parked.follower.is_parked) == (0, False)

    def test_with_a_credit_but_nothing_to_do_for_anyone_else_it_waits(self) -> None:
        pool = make_pool(2)
        one = Guided(pool)
        one.queue(one.follower)
        one.start_leader(pool.replicas[0])
        pool.replicas[0].jobs = {JobKey("other", "a", "main", number): queue_nowhere() for number in range(2)}
        assert take(pool) is None


def queue_nowhere() -> Job:
    return Request(RequestSubmitted(ticket=0, request_id="other"), PLAN, 0, 0.0).jobs[0]


@pytest.mark.rule("ORCH-INV-112")
def test_there_is_room_for_several_when_those_without_a_credit_may_wait() -> None:
    pool = make_pool(2)  # 2 credits each, and 2 may wait
    pool.drain(pool.replicas[1])
    assert [pool.has_room(jobs) for jobs in (3, 4, 5)] == [True, True, False]
    queue(pool, "r")
    assert take(pool) == ("r", 0)
    assert [pool.has_room(jobs) for jobs in (3, 4)] == [True, False]


def test_what_may_sleep_counts_until_it_is_known_to_be_awake() -> None:
    replica = join(StagePool(STAGE))
    replica.note_sleep_sent(["kv", "weights"])
    assert (replica.asleep, replica.may_sleep) == (frozenset(), True)
    replica.note_awake(["kv"])
    assert replica.may_sleep
    replica.note_asleep(["weights"])
    assert (sorted(replica.asleep), sorted(replica.doubtful)) == (["weights"], [])
    replica.note_awake(["weights"])
    assert not replica.may_sleep


def test_a_replica_goes_on_with_what_it_was_told() -> None:
    key = ReplicaKey("a", 0, 0)
    pool = StagePool(STAGE)
    pool.restore_replica(ReplicaSnapshot(key, 0, ("kv",), ("weights",)))
    assert (sorted(pool.replicas[0].asleep), sorted(pool.replicas[0].doubtful)) == (["kv"], ["weights"])


class TestBalance:
    @staticmethod
    def pool(balance: Balance, replicas: int = 3) -> StagePool:
        pool = StagePool(msgspec.structs.replace(STAGE, balance=balance, limits=Limits(max_inflight=2)))
        for slot in range(replicas):
            join(pool, slot)
        return pool

    def test_what_replicas_report_counts(self) -> None:
        pool = self.pool(Balance.LEAST_LOADED)
        pool.replicas[0].note_load(0, 3)
        pool.replicas[1].note_load(0, 1)
        pool.replicas[2].note_load(0, 2)
        for number in range(5):
            queue(pool, f"r{number}", serial=number)
        assert [take(pool) for _ in range(5)] == [("r0", 1), ("r1", 1), ("r2", 2), ("r3", 0), ("r4", 2)]

    @pytest.mark.case("B097")
    def test_the_loads_of_members_are_summed_and_the_last_of_each_counts(self) -> None:
        replica = Replica(ReplicaKey("a", 0, 0))
        replica.note_load(0, 4)
        replica.note_load(1, 2)
        replica.note_load(0, 1)
        assert replica.reported == 3
        replica.note_load(1, -5)
        assert replica.reported == 1

    def test_in_turn(self) -> None:
        pool = self.pool(Balance.ROUND_ROBIN)
        for number in range(4):
            queue(pool, f"r{number}", serial=number)
        assert [take(pool) for _ in range(4)] == [("r0", 0), ("r1", 1), ("r2", 2), ("r3", 0)]

    def test_at_random_as_the_seed_says(self) -> None:
        assert self.slots(1) == self.slots(1)
        assert self.slots(1) != self.slots(2)

    @staticmethod
    def slots(seed: int) -> list[int]:
        stage = msgspec.structs.replace(STAGE, balance=Balance.RANDOM, limits=Limits(max_inflight=99))
        pool = StagePool(stage, seed)
        for slot in range(4):
            join(pool, slot)
        for number in range(20):
            queue(pool, f"r{number}", serial=number)
        return [taken[1] for _ in range(20) if (taken := take(pool)) is not None]

    def test_an_affinity_has_its_replica_until_that_has_no_credit(self) -> None:
        pool = self.pool(Balance.AFFINITY)
        for number in range(6):
            queue(pool, f"r{number}", serial=number, affinity="me")
        slots = [taken[1] for _ in range(6) if (taken := take(pool)) is not None]
        assert slots[0] == slots[1]
        others = sorted({0, 1, 2} - {slots[0]})
        assert slots[2:] == [*others, *others]

    def test_a_request_without_an_affinity_is_its_own(self) -> None:
        pool = self.pool(Balance.AFFINITY)
        queue(pool, "r")
        taken = take(pool)
        other = self.pool(Balance.AFFINITY)
        queue(other, "s", affinity="r")
        also_taken = take(other)
        assert taken is not None
        assert also_taken is not None
        assert taken[1] == also_taken[1]

    def test_an_affinity_counts_while_companions_wait_for_their_leader_too(self) -> None:
        stage = msgspec.structs.replace(STAGE, balance=Balance.AFFINITY, limits=Limits(max_inflight=1))
        world = World(stage, make_stage("c", complete("a"), output="image", joins=True), replicas=3)
        world.submit("first", companions={"negative": "n"}, affinity="me")
        taken = world.at("a", "first", "main").replica.slot
        for number in range(2):
            world.submit(f"r{number}", affinity="me")
        assert {world.at("a", f"r{number}", "main").replica.slot for number in range(2)} == {0, 1, 2} - {taken}
        world.finish("a", "x", request_id="r0", sibling="main")
        world.submit("late", affinity="me")
        assert world.at("a", "late", "main").replica == world.at("a", "r0", "main").replica
        world.finish("a", "x", request_id="first", sibling="main")
        assert world.at("a", "first", "main.negative").replica.slot == taken


@pytest.mark.rule("ORCH-INV-306")
def test_work_waits_for_a_replica_that_is_being_replaced() -> None:
    pool = make_pool()
    successor = ReplicaKey("a", 0, 1)
    pool.drain(pool.replicas[0], successor)
    assert (pool.is_available, pool.is_between_lives) == (True, True)
    pool.remove(pool.replicas[0], ReplicaTrigger.LEAVE)
    assert pool.is_between_lives
    assert pool.try_join(successor) is not None
    assert (pool.is_available, pool.is_between_lives, pool.returning) == (True, False, {})


def test_a_restored_replica_has_the_loads_that_were_reported_and_its_slot_is_taken_once() -> None:
    pool = StagePool(STAGE)
    snapshot = ReplicaSnapshot(ReplicaKey("a", 0, 0), loads={0: 2, 1: 3})
    pool.restore_replica(snapshot)
    pool.restore_replica(snapshot)
    assert pool.replicas[0].reported == 5


@pytest.mark.rule("ORCH-INV-238")
def test_a_replica_with_other_weights_than_its_stage_takes_no_work() -> None:
    pool = make_pool(2)
    pool.fence.begin(4)
    pool.fence.commit()
    pool.note_version()
    assert [replica.weights_version for replica in pool.replicas.values()] == [4, 4]
    assert pool.is_available
    late = join(pool, 2)
    assert not late.takes_work
    assert [key.slot for key in pool.present()] == [0, 1, 2]


def test_another_pool_can_have_the_same_weights() -> None:
    pool, other = make_pool(1), make_pool(0)
    pool.fence.begin(4)
    pool.fence.commit()
    pool.note_version()
    other.restore_fence(pool.fence.snapshot())
    assert other.weights_version == 4


@pytest.mark.rule("ORCH-INV-238")
def test_the_weights_of_a_replica_go_with_it() -> None:
    pool = make_pool()
    pool.fence.begin(1)
    pool.fence.note_sent(pool.replicas[0].key)
    pool.fence.note_updated(pool.replicas[0].key)
    pool.remove(pool.replicas[0], ReplicaTrigger.LOSE)
    assert (pool.fence.touched, pool.fence.updated) == ({}, {})
