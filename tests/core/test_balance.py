"""The choice of a replica: in turn, at random from a seed, by affinity."""

from __future__ import annotations

from collections import Counter

import pytest

from podium.core.balance import Balancer, mix
from podium.core.graph import Balance
from podium.core.identity import JobKey, ReplicaKey
from podium.core.records import Job
from podium.core.stage_pool import Replica
from tests.support.core_world import World, make_stage


def replicas(count: int) -> list[Replica]:
    found = [Replica(ReplicaKey("a", slot, 0)) for slot in range(count)]
    for replica in found:
        replica.takes_work = True
    return found


def slots(balancer: Balancer, among: list[Replica], times: int) -> list[int]:
    found = [balancer.choose(among, 1) for _ in range(times)]
    return [replica.key.slot for replica in found if replica is not None]


def a_job() -> Job:
    world = World(make_stage("a", output="out"))
    world.submit()
    return world.core._state.requests["r"].jobs[0]


def fill(replica: Replica) -> None:
    replica.jobs[JobKey("r", "a", "main", 1)] = a_job()


def test_repr() -> None:
    assert repr(Balancer(Balance.RANDOM, "a", 1)) == "<Balancer random, last slot -1>"


def test_in_turn_by_slot_whatever_the_order_in_which_they_joined() -> None:
    among = replicas(3)
    balancer = Balancer(Balance.ROUND_ROBIN, "a", 1)
    assert slots(balancer, among[::-1], 7) == [0, 1, 2, 0, 1, 2, 0]


def test_in_turn_those_without_a_credit_or_without_work_are_left_out() -> None:
    among = replicas(4)
    among[1].takes_work = False
    fill(among[2])
    assert slots(Balancer(Balance.ROUND_ROBIN, "a", 1), among, 3) == [0, 3, 0]


@pytest.mark.parametrize("balance", [Balance.ROUND_ROBIN, Balance.RANDOM])
def test_none_when_nobody_has_a_credit(balance: Balance) -> None:
    among = replicas(1)
    fill(among[0])
    assert Balancer(balance, "a", 1).choose(among, 1) is None


def test_at_random_everybody_gets_a_share_and_a_seed_says_which() -> None:
    among = replicas(4)
    drawn = slots(Balancer(Balance.RANDOM, "a", 1), among, 400)
    assert all(70 < count < 130 for count in Counter(drawn).values())
    assert drawn == slots(Balancer(Balance.RANDOM, "a", 1), among, 400)
    assert drawn != slots(Balancer(Balance.RANDOM, "a", 2), among, 400)
    assert drawn != slots(Balancer(Balance.RANDOM, "b", 1), among, 400)


def test_a_snapshot_goes_on_where_it_was() -> None:
    for balance in (Balance.RANDOM, Balance.ROUND_ROBIN):
        balancer, other = Balancer(balance, "a", 1), Balancer(balance, "a", 9)
        slots(balancer, replicas(3), 4)
        other.restore(balancer.snapshot())
        assert slots(balancer, replicas(3), 9) == slots(other, replicas(3), 9)


def preferences(balancer: Balancer, among: list[Replica], count: int = 300) -> dict[str, int]:
    found = {f"user-{number}": balancer.prefer(f"user-{number}", among, 1) for number in range(count)}
    return {user: replica.key.slot for user, replica in found.items() if replica is not None}


def test_an_affinity_stays_where_it_is_when_others_come_and_go() -> None:
    balancer = Balancer(Balance.AFFINITY, "a", 1)
    three, four = preferences(balancer, replicas(3)), preferences(balancer, replicas(4))
    moved = {user for user, slot in four.items() if three[user] != slot}
    assert {four[user] for user in moved} == {3}
    assert 45 < len(moved) < 105
    assert all(60 < count < 140 for count in Counter(three.values()).values())


def test_no_preference_for_one_without_a_credit_or_without_work() -> None:
    balancer = Balancer(Balance.AFFINITY, "a", 1)
    among = replicas(2)
    mine = balancer.prefer("me", among, 1)
    assert mine is not None
    other = among[1 - mine.key.slot]
    fill(mine)
    assert balancer.prefer("me", among, 1) is None
    mine.takes_work = False
    assert balancer.prefer("me", among, 1) is other


def test_mixing_is_that_of_splitmix64() -> None:
    assert mix(1234567) == 6457827717110365317  # the first number of the reference implementation for this seed
