"""Both clients of this process pass the suite for transports; and what only they can get wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

import pytest

from podium.core.effects import StopJob
from podium.core.events import Event, ReplicaLost, StageStopped
from podium.core.graph import Modality
from podium.core.identity import MAIN, JobKey, ReplicaKey
from podium.ports.stage_backend import Placement
from podium.ports.stage_client import StageClient
from podium.testing.fake_backend import FakeBackend
from podium.testing.fake_processor import FakeProcessor
from podium.testing.transport_conformance import ReplicaSetup, TransportConformance
from podium.transports.in_process import in_process_client
from tests.support.shell_world import complaints, nothing_left, turns, until

REPLICA = ReplicaKey("fake", 0, 3)
both = pytest.mark.parametrize("placement", list(Placement))


class TestOnTheLoop(TransportConformance):
    def make_client(self, setup: ReplicaSetup) -> StageClient:
        return in_process_client(*setup, Placement.LOOP)


class TestInAThread(TransportConformance):
    outbox_limit: ClassVar[int | None] = 256

    def make_client(self, setup: ReplicaSetup) -> StageClient:
        return in_process_client(*setup, Placement.THREAD, outbox_limit=256)


def new_client(make_backend: Callable[[], FakeBackend], placement: Placement) -> StageClient:
    return in_process_client(REPLICA, make_backend, FakeProcessor, {"source": Modality.TEXT}, placement)


def nowhere(event: Event) -> None:
    raise AssertionError(f"{event} was pushed")


@both
async def test_it_says_what_it_is(placement: Placement) -> None:
    assert (
        repr(new_client(FakeBackend, placement))
        == {
            Placement.LOOP: "<LoopClient fake[0]@3>",
            Placement.THREAD: "<ThreadClient fake[0]@3, 0 commands wait>",
        }[placement]
    )


@both
async def test_a_command_after_the_end_is_harmless(placement: Placement) -> None:
    with nothing_left():
        client = new_client(FakeBackend, placement)
        await client.start(nowhere)
        await client.close()
        client.post(StopJob(REPLICA, JobKey("r", "fake", MAIN, 1)))
        await turns()


@both
@pytest.mark.rule("ORCH-INV-302")
async def test_many_may_close_it_at_once(placement: Placement) -> None:
    backend = FakeBackend()
    with nothing_left():
        client = new_client(lambda: backend, placement)
        await client.start(nowhere)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(client.close())
        await client.close()
    assert backend.told[-1].method == "close"


class DeafToCancelling(FakeBackend):
    """Loads until it is closed, whatever is cancelled meanwhile; and then says that it is up."""

    async def load(self) -> None:
        while not any(told.method == "close" for told in list(self.told)):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue


@both
@pytest.mark.rule("ORCH-INV-301", "ORCH-INV-302")
async def test_a_load_that_ends_after_the_close_brings_nothing_up(placement: Placement) -> None:
    backend = DeafToCancelling()
    with nothing_left():
        client = new_client(lambda: backend, placement)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            starting = group.create_task(client.start(nowhere))
            await turns()
            await client.close()
            await starting
    assert [told.method for told in backend.told] == ["close", "close"]


class Messy(FakeBackend):
    """Leaves a task of its own behind, and its close fails."""

    async def load(self) -> None:
        self.left = asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="left behind")

    async def close(self) -> None:
        raise OSError("no such process")


@pytest.mark.rule("ORCH-INV-302")
async def test_a_thread_ends_whatever_its_backend_leaves() -> None:
    with nothing_left():
        client = new_client(Messy, Placement.THREAD)
        await client.start(nowhere)
        with pytest.raises(OSError, match="no such process"):
            await client.close()
        await client.close()


@pytest.mark.rule("ORCH-INV-202")
async def test_whatever_ends_the_deliveries_is_the_loss_of_the_replica() -> None:
    events: list[Event] = []

    def refuse_stops(event: Event) -> None:
        assert not isinstance(event, StageStopped), "a sink never raises, they say"
        events.append(event)

    with nothing_left():
        client = new_client(FakeBackend, Placement.LOOP)
        await client.start(refuse_stops)
        client.post(StopJob(REPLICA, JobKey("r", "fake", MAIN, 1)))
        await until(lambda: bool(events))
        await client.close()
    assert [type(event) for event in events] == [ReplicaLost]


class Clinging(FakeBackend):
    """Never closes."""

    async def close(self) -> None:
        await asyncio.Event().wait()


@both
@pytest.mark.rule("ORCH-INV-302")
async def test_a_close_that_hangs_can_be_given_up(placement: Placement) -> None:
    with nothing_left(), complaints("podium"):
        client = new_client(Clinging, placement)
        await client.start(nowhere)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            closing = group.create_task(client.close())
            await turns(20)
            closing.cancel()
        assert closing.cancelled()
        if placement is Placement.THREAD:
            await client.close()


@pytest.mark.rule("ORCH-INV-214")
async def test_a_thread_that_computes_does_not_hold_the_others() -> None:
    """While one replica's thread is busy, commands are taken for it and another replica is served."""

    class Busy(FakeBackend):
        is_held = True

        def feed(self, *_: object) -> None:
            raise AssertionError("nothing is fed")

        async def stop(self, job: JobKey) -> object:
            while Busy.is_held:
                pass
            return None

    stopped: list[Event] = []
    with nothing_left():
        client = new_client(Busy, Placement.THREAD)
        await client.start(stopped.append)
        client.post(StopJob(REPLICA, JobKey("r", "fake", MAIN, 1)))
        await turns(100)
        assert stopped == []
        Busy.is_held = False
        await until(lambda: bool(stopped))
        await client.close()
