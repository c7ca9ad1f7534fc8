"""One life after another at one slot: after a loss, with pauses in between, and never too often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from podium.core.events import Event, ReplicaJoined, ReplicaLost
from podium.core.identity import ReplicaKey
from podium.errors import StartError
from podium.ports.stage_client import EventSink, StageClient, StageCommand
from podium.runtime.fleet import Fleet
from podium.runtime.replica_slot import NO_RESTART, ReplicaSlot, ReplicaSpec, RestartLimits, SlotPhase
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import a_loss

GUARD_S = 30.0
SOON = RestartLimits(attempts=3, backoff_s=0.001, max_backoff_s=0.002, window_s=100.0)
FIRST = ReplicaKey("a", 0, 0)


class Client:
    """A replica that starts unless it is told not to."""

    def __init__(self, replica: ReplicaKey, may_start: asyncio.Event, error: Exception | None) -> None:
        self.replica = replica
        self.may_start, self.may_close = may_start, asyncio.Event()
        self.error = error
        self.calls: list[str] = []
        self.early: tuple[Event, ...] = ()
        self.may_close.set()

    async def start(self, sink: EventSink) -> None:
        self.calls.append("start")
        await self.may_start.wait()
        if self.error is not None:
            raise self.error
        for event in self.early:
            sink(event)

    def post(self, command: StageCommand) -> None:
        raise AssertionError("nothing is posted here")

    async def close(self) -> None:
        self.calls.append("close")
        await self.may_close.wait()


class World:
    """One stage's replicas; `failing` are the generations that do not start."""

    def __init__(
        self, limits: RestartLimits = SOON, failing: Sequence[int] = (), replicas: int = 1, start_timeout_s: float = 9.0
    ) -> None:
        self.clients: dict[ReplicaKey, Client] = {}
        self.events: list[Event] = []
        self.progress: list[str] = []
        self.clock = VirtualClock()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.early: dict[int, tuple[Event, ...]] = {}
        self._failing = failing
        self.fleet = Fleet(
            [ReplicaSpec(ReplicaKey("a", slot, 0), self._make, start_timeout_s, limits) for slot in range(replicas)],
            self.events.append,
            lambda _, message: self.progress.append(message),
            100.0,
            self.clock,
        )

    def _make(self, key: ReplicaKey) -> StageClient:
        error = MemoryError("out of memory") if key.generation in self._failing else None
        client = self.clients[key] = Client(key, self.may_start, error)
        client.early = self.early.get(key.generation, ())
        return client

    @property
    def slot(self) -> ReplicaSlot:
        return self.fleet.slots("a")[0]

    def of(self, generation: int, slot: int = 0) -> Client:
        return self.clients[ReplicaKey("a", slot, generation)]

    def lose(self) -> None:
        self.fleet.retire(self.slot.key, a_loss())

    async def until(self, *phases: SlotPhase) -> None:
        await self.wait(lambda: self.slot.phase in phases)

    async def wait(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(GUARD_S):
            await self.slot.wait_until(is_so)


@pytest.mark.parametrize(
    ("limits", "pauses"),
    [
        (RestartLimits(), [1.0, 2.0, 4.0, 8.0, 16.0, None]),
        (RestartLimits(attempts=4, backoff_s=10.0, max_backoff_s=25.0), [10.0, 20.0, 25.0, 25.0, None]),
        (NO_RESTART, [None]),
    ],
)
def test_pauses_double_up_to_a_limit_and_end(limits: RestartLimits, pauses: list[float | None]) -> None:
    assert [limits.pause_s(former) for former in range(len(pauses))] == pauses
    assert RestartLimits(attempts=10_000).pause_s(9_999) == 60.0, "however often it doubles"


@pytest.mark.rule("ORCH-INV-306")
@pytest.mark.case("B042")
async def test_a_lost_replica_is_closed_and_comes_back_as_the_next_generation() -> None:
    world = World()
    await world.fleet.start()
    assert world.events == []
    first = world.of(0)
    first.may_close.clear()
    world.lose()
    assert world.fleet.find(FIRST) is None
    assert world.slot.statistics().phase is SlotPhase.CLOSING
    assert world.slot.statistics().is_coming
    assert list(world.clients) == [FIRST], "what it had, such as memory, is needed first"
    first.may_close.set()
    await world.wait(lambda: world.slot.joined == 1)
    second = ReplicaKey("a", 0, 1)
    assert world.events == [ReplicaJoined(second)]
    assert world.fleet.find(second) is world.of(1)
    assert repr(world.slot) == "<ReplicaSlot a[0]@1 serving>"
    statistics = world.slot.statistics()
    assert (statistics.generation, statistics.restarts, statistics.next_start_at) == (1, 1, None)
    assert "replica 0 starts again in 0.001 s" in world.progress
    await world.fleet.close()
    assert world.of(1).calls == ["start", "close"]


@pytest.mark.rule("ORCH-INV-306")
async def test_one_that_does_not_start_is_tried_again_after_longer_pauses() -> None:
    world = World(failing=(1, 2))
    await world.fleet.start()
    world.lose()
    await world.wait(lambda: world.slot.failed == 1)
    assert world.slot.statistics().failure == "stage 'a' did not start: MemoryError: out of memory"
    await world.wait(lambda: world.slot.joined == 3)
    assert [type(event) for event in world.events] == [ReplicaLost, ReplicaLost, ReplicaJoined]
    lost = world.events[0]
    assert isinstance(lost, ReplicaLost)
    assert lost.replica == ReplicaKey("a", 0, 1)
    assert "replica 0 of stage 'a' did not start again: " in lost.error.message
    assert world.of(1).calls == ["start", "close"]
    assert [text for text in world.progress if "again" in text] == [
        f"replica 0 starts again in {pause_s} s" for pause_s in (0.001, 0.002, 0.002)
    ]
    assert world.slot.statistics().failure is None
    await world.fleet.close()


@pytest.mark.rule("ORCH-INV-306")
async def test_one_that_is_lost_too_often_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    world = World(failing=(1, 2, 3))
    await world.fleet.start()
    world.lose()
    await world.until(SlotPhase.GIVEN_UP)
    assert "a[0]@3 is given up: it was restarted 3 times within 100 s (restart.attempts)" in caplog.text
    assert not world.slot.statistics().is_coming
    world.slot.want_next()
    await world.wait(lambda: world.slot.joined == 4)
    assert world.slot.statistics().restarts == 3, "what is wanted is not counted"
    await world.fleet.close()


@pytest.mark.rule("ORCH-INV-306")
async def test_what_was_long_ago_does_not_count() -> None:
    world = World()
    await world.fleet.start()
    for generation in range(1, 7):
        world.lose()
        await world.wait(lambda generation=generation: world.slot.joined == generation)  # type: ignore[misc]
        world.clock.advance(50.0)
    assert world.slot.phase is SlotPhase.SERVING
    await world.fleet.close()


async def test_without_restarts_a_lost_replica_stays_away(caplog: pytest.LogCaptureFixture) -> None:
    world = World(NO_RESTART)
    await world.fleet.start()
    world.lose()
    assert not world.slot.statistics().is_coming
    await world.until(SlotPhase.GIVEN_UP)
    assert "given up" not in caplog.text
    assert list(world.clients) == [FIRST]
    await world.fleet.close()


@pytest.mark.rule("ORCH-INV-204", "ORCH-INV-306")
async def test_a_restart_that_hangs_has_the_limit_of_a_start() -> None:
    world = World(start_timeout_s=0.001)
    await world.fleet.start()
    world.may_start.clear()
    world.lose()
    await world.wait(lambda: world.slot.failed == 1)
    assert str(world.slot.failure).endswith("not ready after 0.001 s (limits.start_timeout_s)")
    world.may_start.set()
    await world.wait(lambda: world.slot.joined > 1)
    await world.fleet.close()


@pytest.mark.rule("ORCH-INV-306")
async def test_a_loss_that_comes_before_the_join_is_told_after_it() -> None:
    world = World()
    loss = ReplicaLost(ReplicaKey("a", 0, 1), a_loss())
    world.early[1] = (loss,)
    await world.fleet.start()
    world.lose()
    await world.wait(lambda: world.slot.joined == 1)
    assert world.events == [loss, ReplicaJoined(loss.replica), loss]
    await world.fleet.close()


@pytest.mark.rule("ORCH-INV-302")
@pytest.mark.parametrize("phase", [SlotPhase.CLOSING, SlotPhase.BACKING_OFF, SlotPhase.STARTING])
async def test_closing_the_fleet_ends_a_restart_wherever_it_is(phase: SlotPhase) -> None:
    hours = RestartLimits(backoff_s=9999.0, max_backoff_s=9999.0)
    world = World(hours if phase is SlotPhase.BACKING_OFF else SOON)
    await world.fleet.start()
    world.may_start.clear()
    first = world.of(0)
    if phase is SlotPhase.CLOSING:
        first.may_close.clear()
    world.lose()
    await world.until(phase)
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(world.fleet.close())
        await asyncio.sleep(0)
        first.may_close.set()
        await closing
    assert world.slot.phase is SlotPhase.EMPTY
    assert {client.calls[-1] for client in world.clients.values()} == {"close"}
    assert len(world.clients) == 1 + (phase is SlotPhase.STARTING)
    assert not [event for event in world.events if isinstance(event, ReplicaJoined)]


async def test_one_that_leaves_does_not_come_back() -> None:
    world = World(RestartLimits(backoff_s=9999.0, max_backoff_s=9999.0))
    await world.fleet.start()
    world.lose()
    await world.until(SlotPhase.BACKING_OFF)
    assert world.slot.statistics().next_start_at == 9999.0
    world.slot.leave()
    await world.until(SlotPhase.EMPTY)
    world.slot.leave()
    await world.fleet.close()
    assert list(world.clients) == [FIRST]


async def test_one_that_was_given_up_can_leave() -> None:
    world = World(NO_RESTART)
    await world.fleet.start()
    world.lose()
    await world.until(SlotPhase.GIVEN_UP)
    world.slot.leave()
    assert world.slot.phase is SlotPhase.EMPTY
    await world.fleet.close()


async def test_one_that_is_wanted_waits_no_longer() -> None:
    world = World(RestartLimits(backoff_s=9999.0, max_backoff_s=9999.0))
    await world.fleet.start()
    world.lose()
    await world.until(SlotPhase.BACKING_OFF)
    world.slot.want_next()
    await world.wait(lambda: world.slot.joined == 1)
    await world.fleet.close()


async def test_a_drained_replica_is_closed_for_good() -> None:
    world = World()
    await world.fleet.start()
    world.fleet.retire(FIRST, None)
    assert not world.slot.statistics().is_coming
    await world.until(SlotPhase.EMPTY)
    assert world.fleet.free_slot("a") is world.slot
    world.slot.open()
    await world.wait(lambda: world.slot.joined == 1)
    await world.fleet.close()


async def test_an_empty_slot_is_tried_once() -> None:
    world = World(failing=(0,))
    fresh = world.fleet.free_slot("a")
    assert fresh is world.slot, "it was not started yet"
    other = World(failing=(1,))
    await other.fleet.start()
    other.fleet.retire(FIRST, None)
    await other.until(SlotPhase.EMPTY)
    other.slot.open()
    await other.until(SlotPhase.EMPTY)
    assert isinstance(other.slot.failure, StartError)
    await other.fleet.close()
