"""The life of replicas: all or none, in time, and closed whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from podium.core.events import Event
from podium.core.identity import ReplicaKey
from podium.errors import StartError
from podium.ports.stage_client import EventSink, StageClient, StageCommand
from podium.runtime.fleet import Fleet
from podium.runtime.replica_slot import ReplicaSlot, ReplicaSpec
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import a_loss


class Client:
    """A replica that starts and ends as it was told."""

    def __init__(self, replica: ReplicaKey) -> None:
        self.replica = replica
        self.may_start, self.may_close = asyncio.Event(), asyncio.Event()
        self.start_error: Exception | None = None
        self.close_error: Exception | None = None
        self.calls: list[str] = []

    async def start(self, sink: EventSink) -> None:
        self.calls.append("start")
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.calls.append("start cancelled")
            raise
        if self.start_error is not None:
            raise self.start_error
        self.calls.append("started")

    def post(self, command: StageCommand) -> None:
        raise AssertionError("nothing is posted here")

    async def close(self) -> None:
        self.calls.append("close")
        try:
            await self.may_close.wait()
        except asyncio.CancelledError:
            self.calls.append("close cancelled")
            raise
        if self.close_error is not None:
            raise self.close_error
        self.calls.append("closed")


class World:
    def __init__(self, *stages: str, start_timeout_s: float = 100.0, close_timeout_s: float = 100.0) -> None:
        self.clients = {stage: Client(ReplicaKey(stage, 0, 0)) for stage in stages}
        self.progress: list[tuple[str, str]] = []
        self.fleet = Fleet(
            [ReplicaSpec(client.replica, self._maker(client), start_timeout_s) for client in self.clients.values()],
            self._sink,
            lambda stage, message: self.progress.append((stage, message)),
            close_timeout_s,
            VirtualClock(),
        )

    def let(self, *, start: bool = True, close: bool = True) -> None:
        for client in self.clients.values():
            if start:
                client.may_start.set()
            if close:
                client.may_close.set()

    def calls(self) -> Mapping[str, list[str]]:
        return {stage: client.calls for stage, client in self.clients.items()}

    def _maker(self, client: Client) -> Callable[[ReplicaKey], StageClient]:
        return lambda _: client

    def _sink(self, event: Event) -> None:
        raise AssertionError("nothing is pushed here")


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_failure_of_the_closing_itself_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(slot: ReplicaSlot, client: StageClient) -> None:
        raise LookupError("a bug in the fleet")

    world = World("a")
    world.let()
    await world.fleet.start()
    monkeypatch.setattr(ReplicaSlot, "_close_client", fail)
    world.fleet.retire(world.clients["a"].replica, None)
    await world.fleet.close()
    assert "closing a replica, or starting the next, failed" in caplog.text
    assert "a bug in the fleet" in caplog.text


async def test_all_start_at_the_same_time_and_close_at_the_same_time() -> None:
    world = World("a", "b")
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(world.fleet.start())
        await turns()
        assert world.calls() == {"a": ["start"], "b": ["start"]}
        world.let(close=False)
        await starting
        assert world.fleet.keys == tuple(client.replica for client in world.clients.values())
        closing = group.create_task(world.fleet.close())
        await turns()
        assert world.calls() == {stage: ["start", "started", "close"] for stage in "ab"}
        world.let()
        await closing
    assert world.fleet.keys == ()
    assert {calls[-1] for calls in world.calls().values()} == {"closed"}
    assert sorted(world.progress) == [("a", "ready"), ("a", "starting"), ("b", "ready"), ("b", "starting")]
    await world.fleet.close()
    assert world.calls()["a"].count("close") == 1
    assert repr(world.fleet) == "<Fleet of 0 replicas, 0 retiring>"


@pytest.mark.rule("ORCH-INV-301")
@pytest.mark.case("B072")
async def test_one_that_fails_ends_the_start_of_all() -> None:
    world = World("a", "b", "c")
    world.clients["a"].may_start.set()
    world.clients["b"].start_error = MemoryError("out of memory")
    world.clients["b"].may_start.set()
    with pytest.raises(StartError, match="stage 'b' did not start: MemoryError: out of memory") as caught:
        await world.fleet.start()
    assert caught.value.stage == "b"
    world.let()
    await world.fleet.close()
    assert world.calls() == {
        "a": ["start", "started", "close", "closed"],
        "b": ["start", "close", "closed"],
        "c": ["start", "start cancelled", "close", "closed"],
    }


async def test_a_start_error_is_passed_on_as_it_is() -> None:
    world = World("a")
    world.clients["a"].start_error = error = StartError("a", "no such model")
    world.let()
    with pytest.raises(StartError) as caught:
        await world.fleet.start()
    assert caught.value is error
    await world.fleet.close()


@pytest.mark.rule("ORCH-INV-204")
@pytest.mark.case("B074")
async def test_a_start_that_hangs_is_given_up_by_its_own_limit() -> None:
    world = World("a", start_timeout_s=0.001)
    with pytest.raises(
        StartError, match=r"stage 'a' did not start: not ready after 0.001 s \(limits.start_timeout_s\)"
    ):
        await world.fleet.start()
    world.let()
    await world.fleet.close()
    assert world.calls() == {"a": ["start", "start cancelled", "close", "closed"]}


async def test_a_timeout_of_the_replica_itself_is_not_taken_for_the_limit() -> None:
    world = World("a")
    world.clients["a"].start_error = TimeoutError("no handshake")
    world.let()
    with pytest.raises(StartError, match="stage 'a' did not start: TimeoutError: no handshake"):
        await world.fleet.start()
    await world.fleet.close()


async def test_a_client_that_cannot_be_made_is_a_failed_start() -> None:
    def refuse(key: ReplicaKey) -> StageClient:
        raise ImportError("no such engine")

    spec = ReplicaSpec(ReplicaKey("a", 0, 0), refuse, 1.0)
    fleet = Fleet([spec], lambda _: None, lambda *_: None, 1.0, VirtualClock())
    with pytest.raises(StartError, match="ImportError: no such engine"):
        await fleet.start()
    await fleet.close()


@pytest.mark.rule("ORCH-INV-302")
async def test_a_cancelled_start_is_torn_down_by_close() -> None:
    world = World("a", "b")
    world.clients["a"].may_start.set()
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(world.fleet.start())
        await turns()
        starting.cancel()
    assert starting.cancelled()
    world.let()
    await world.fleet.close()
    assert world.calls() == {
        "a": ["start", "started", "close", "closed"],
        "b": ["start", "start cancelled", "close", "closed"],
    }


@pytest.mark.rule("ORCH-INV-302")
async def test_one_that_does_not_close_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a", "b", close_timeout_s=0.001)
    world.let(close=False)
    await world.fleet.start()
    world.clients["b"].may_close.set()
    await world.fleet.close()
    assert world.calls()["a"][-1] == "close cancelled"
    assert world.calls()["b"][-1] == "closed"
    assert "a[0]@0 did not close within 0.001 s and is abandoned" in caplog.text


async def test_one_that_fails_to_close_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a", "b")
    world.let()
    await world.fleet.start()
    world.clients["a"].close_error = OSError("no such process")
    await world.fleet.close()
    assert world.calls()["b"][-1] == "closed"
    assert "a[0]@0 failed while it was closed" in caplog.text


@pytest.mark.rule("ORCH-INV-214")
async def test_a_retired_replica_is_gone_at_once_and_closed_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a", "b")
    world.let(close=False)
    await world.fleet.start()
    gone = world.clients["a"].replica
    world.fleet.retire(gone, a_loss())
    assert world.fleet.find(gone) is None
    assert world.fleet.find(world.clients["b"].replica) is world.clients["b"]
    assert repr(world.fleet) == "<Fleet of 1 replicas, 1 retiring>"
    assert f"a[0]@0 is closed: {a_loss().message}" in caplog.text
    world.fleet.retire(gone, a_loss())
    world.fleet.retire(ReplicaKey("nobody", 0, 0), None)
    world.let()
    await world.fleet.close()
    assert world.calls()["a"] == ["start", "started", "close", "closed"]
    assert repr(world.fleet) == "<Fleet of 0 replicas, 0 retiring>"


@pytest.mark.rule("ORCH-INV-302")
async def test_closing_waits_for_what_retires_no_longer_than_for_others(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a", "b")
    world.let(close=False)
    await world.fleet.start()
    world.fleet.retire(world.clients["a"].replica, None)
    await turns()
    world.clients["b"].may_close.set()
    world.fleet.close_timeout_s = 0.001
    await world.fleet.close()
    assert world.calls()["a"][-1] == "close cancelled"
    assert world.calls()["b"][-1] == "closed"
    assert "a[0]@0 did not close within 0.001 s more and is abandoned" in caplog.text
    assert repr(world.fleet) == "<Fleet of 0 replicas, 0 retiring>"


async def test_closing_waits_for_what_retires() -> None:
    world = World("a")
    world.let(close=False)
    await world.fleet.start()
    world.fleet.retire(world.clients["a"].replica, None)
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(world.fleet.close())
        await turns()
        assert not closing.done()
        world.let()
    assert world.calls()["a"][-1] == "closed"
