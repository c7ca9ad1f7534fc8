"""What an operator does to replicas, over a fleet of fakes and an orchestrator that answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from podium.core.events import Event, ReplicaDrained, ReplicaJoined
from podium.core.identity import ReplicaKey
from podium.errors import InvalidRequestError, StartError, WaitTimeoutError
from podium.runtime.fleet_moves import FleetMoves
from podium.runtime.replica_slot import RestartLimits, SlotPhase
from tests.runtime.test_replica_slot import SOON, World

HOURS = RestartLimits(backoff_s=9999.0, max_backoff_s=9999.0)
LONG_S = 30.0


class Moving(World):
    """Drained replicas leave at once, unless they are `busy`."""

    def __init__(self, limits: RestartLimits = SOON, failing: Sequence[int] = (), replicas: int = 1) -> None:
        super().__init__(limits, failing, replicas)
        self.drained: list[ReplicaDrained] = []
        self.busy: set[ReplicaKey] = set()
        self.moves = FleetMoves(self.fleet, self._post)

    def _post(self, event: Event) -> None:
        assert isinstance(event, ReplicaDrained)
        self.drained.append(event)
        if event.replica not in self.busy:
            self.fleet.retire(event.replica, None)

    def joined(self) -> list[ReplicaKey]:
        return [event.replica for event in self.events if isinstance(event, ReplicaJoined)]


@asynccontextmanager
async def moving(world: Moving) -> AsyncIterator[Moving]:
    async with asyncio.timeout(LONG_S):
        await world.fleet.start()
        yield world
        await world.fleet.close()


def key(slot: int, generation: int) -> ReplicaKey:
    return ReplicaKey("a", slot, generation)


@pytest.mark.rule("ORCH-INV-306")
async def test_a_restart_takes_one_replica_after_another() -> None:
    async with moving(Moving(replicas=3)) as world:
        world.may_start.clear()
        async with asyncio.TaskGroup() as group:
            restarting = group.create_task(world.moves.restart("a", LONG_S))
            await world.wait(lambda: world.slot.phase is SlotPhase.STARTING)
            assert len(world.drained) == 1, "the others serve meanwhile"
            assert world.slot.statistics().is_coming
            world.may_start.set()
            await restarting
        assert world.drained == [ReplicaDrained(key(slot, 0), key(slot, 1)) for slot in range(3)]
        assert world.joined() == [key(slot, 1) for slot in range(3)]
        assert [slot.restarts for slot in world.fleet.statistics()] == [0, 0, 0], "nobody was lost"
        assert repr(world.moves) == "<FleetMoves of <Fleet of 3 replicas, 0 retiring>>"


@pytest.mark.rule("ORCH-INV-306")
async def test_a_restart_ends_with_the_first_that_does_not_start() -> None:
    async with moving(Moving(failing=(1,), replicas=2)) as world:
        with pytest.raises(StartError, match="stage 'a' did not start: MemoryError"):
            await world.moves.restart("a", LONG_S)
        assert [event.replica for event in world.drained] == [key(0, 0)]
        await world.wait(lambda: world.slot.joined == 2)
        assert world.fleet.slots("a")[1].joined == 0


@pytest.mark.rule("ORCH-INV-306")
@pytest.mark.parametrize("phase", [SlotPhase.BACKING_OFF, SlotPhase.STARTING, SlotPhase.GIVEN_UP])
async def test_a_restart_takes_up_what_comes_back_or_was_given_up(phase: SlotPhase) -> None:
    limits = {SlotPhase.BACKING_OFF: HOURS, SlotPhase.GIVEN_UP: RestartLimits(attempts=0)}
    async with moving(Moving(limits.get(phase, SOON))) as world:
        world.may_start.clear()
        world.lose()
        await world.until(phase)
        async with asyncio.TaskGroup() as group:
            restarting = group.create_task(world.moves.restart("a", LONG_S))
            await world.until(SlotPhase.STARTING)
            world.may_start.set()
            await restarting
        assert world.joined() == [key(0, 1)]
        assert world.drained == []


async def test_a_restart_leaves_empty_slots_alone() -> None:
    async with moving(Moving(replicas=2)) as world:
        await world.moves.drain("a", 0, LONG_S)
        await world.moves.restart("a", LONG_S)
        assert world.joined() == [key(1, 1)]


@pytest.mark.rule("ORCH-INV-204")
async def test_a_move_that_takes_too_long_names_what_it_waits_for() -> None:
    async with moving(Moving(replicas=2)) as world:
        world.busy.add(key(0, 0))
        with pytest.raises(WaitTimeoutError) as caught:
            await world.moves.restart("a", 0.001)
        assert caught.value.record.awaited == "the end of the jobs of replica 0 of stage 'a'"
        assert str(caught.value) == (
            "timed out after 0.001 s waiting for the end of the jobs of replica 0 of stage 'a'; what was begun goes on"
        )
        world.fleet.retire(key(0, 0), None)
        await world.wait(lambda: world.slot.joined == 1)


@pytest.mark.rule("ORCH-INV-204")
async def test_a_move_waits_for_an_earlier_one_of_its_stage() -> None:
    async with moving(Moving()) as world:
        world.busy.add(key(0, 0))
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(world.moves.drain("a", 0, LONG_S))
            await asyncio.sleep(0)
            with pytest.raises(WaitTimeoutError, match="an earlier move of its replicas of stage 'a'"):
                await world.moves.add("a", 0.001)
            world.fleet.retire(key(0, 0), None)
            await draining


async def test_a_timeout_of_somebody_else_is_not_taken_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with moving(Moving()) as world:

        async def fail(_: object) -> None:
            raise TimeoutError("not mine")

        monkeypatch.setattr(world.slot, "wait_until", fail)
        with pytest.raises(TimeoutError, match="not mine"):
            await world.moves.drain("a", 0, LONG_S)


@pytest.mark.rule("ORCH-INV-306")
async def test_a_drained_replica_ends_and_does_not_come_back() -> None:
    async with moving(Moving(replicas=2)) as world:
        await world.moves.drain("a", 1, LONG_S)
        assert world.drained == [ReplicaDrained(key(1, 0))]
        assert world.of(0, 1).calls == ["start", "close"]
        await world.moves.drain("a", 1, LONG_S)
        assert world.fleet.keys == (key(0, 0),)
        with pytest.raises(InvalidRequestError, match="replica: stage 'a' has no replica 2; use one of: 0, 1"):
            await world.moves.drain("a", 2, LONG_S)


async def test_one_that_starts_again_joins_before_it_is_drained() -> None:
    async with moving(Moving()) as world:
        world.may_start.clear()
        world.lose()
        await world.until(SlotPhase.STARTING)
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(world.moves.drain("a", 0, LONG_S))
            await asyncio.sleep(0)
            world.may_start.set()
            await draining
        assert world.joined() == [key(0, 1)]
        assert world.drained == [ReplicaDrained(key(0, 1))]


async def test_one_that_is_lost_while_it_drains_does_not_come_back() -> None:
    async with moving(Moving()) as world:
        world.busy.add(key(0, 0))
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(world.moves.drain("a", 0, LONG_S))
            await asyncio.sleep(0)
            world.lose()
            await draining
        assert list(world.clients) == [key(0, 0)]


@pytest.mark.rule("ORCH-INV-306")
async def test_a_replica_is_added_where_one_left_and_otherwise_at_the_end() -> None:
    async with moving(Moving(replicas=2)) as world:
        assert await world.moves.add("a", LONG_S) == 2
        await world.moves.drain("a", 0, LONG_S)
        assert await world.moves.add("a", LONG_S) == 0
        assert world.joined() == [key(2, 0), key(0, 1)]


async def test_one_that_cannot_be_added_leaves_its_slot_empty() -> None:
    async with moving(Moving(failing=(1,))) as world:
        await world.moves.drain("a", 0, LONG_S)
        with pytest.raises(StartError, match="MemoryError"):
            await world.moves.add("a", LONG_S)
        await world.until(SlotPhase.EMPTY)
        assert await world.moves.add("a", LONG_S) == 0
        assert world.joined() == [key(0, 2)]
