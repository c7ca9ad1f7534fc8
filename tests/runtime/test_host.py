"""The thread that an engine lives in: started once, stopped at any moment, never silent about its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from podium.core.events import RequestCancelled
from podium.core.graph import Graph
from podium.core.identity import ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.core.statistics import Statistics
from podium.errors import EngineStoppedError, StartError
from podium.ports.stage_client import EventSink, StageClient, StageCommand
from podium.runtime.clock import MonotonicClock
from podium.runtime.host import EngineHost, HostState
from podium.runtime.outlet import CallerOutlet
from podium.runtime.replica_slot import ReplicaSpec
from podium.runtime.rpc_result_router import RpcResultRouter
from podium.tasks import follow
from tests.support.core_world import make_stage
from tests.support.shell_world import nothing_left

GRAPH = Graph([make_stage("solo", output="text")])


class Gate:
    """Opened in one thread, waited for in the loop of another."""

    def __init__(self) -> None:
        self._opened: Future[None] = Future()

    def set(self) -> None:
        self._opened.set_result(None)

    async def wait(self) -> None:
        await asyncio.wrap_future(follow(self._opened))


class Client:
    """A replica whose start, and end, happen when the test says."""

    def __init__(self) -> None:
        self.replica = ReplicaKey("solo", 0, 0)
        self.starts, self.closes = threading.Event(), threading.Event()
        self.may_start, self.may_close = Gate(), Gate()
        self.error: Exception | None = None
        self.calls: list[str] = []

    async def start(self, sink: EventSink) -> None:
        self.starts.set()
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.calls.append("start cancelled")
            raise
        if self.error is not None:
            raise self.error
        self.calls.append("started")

    def post(self, command: StageCommand) -> None:
        raise AssertionError("nothing is posted here")

    async def close(self) -> None:
        self.closes.set()
        await self.may_close.wait()
        self.calls.append("closed")


def new_host(client: Client, on_progress: Callable[[str, str], None] | None = None) -> EngineHost:
    def make(key: ReplicaKey) -> StageClient:
        return client

    return EngineHost(
        Orchestrator(GRAPH),
        [ReplicaSpec(client.replica, make, 60.0)],
        CallerOutlet(RpcResultRouter(), RpcResultRouter()),
        MonotonicClock(),
        [],
        on_progress or (lambda *_: None),
    )


EVENT = RequestCancelled(1, "nobody")


def test_a_whole_life() -> None:
    client = Client()
    host = new_host(client)
    assert repr(host) == "<EngineHost new, 0 events wait>"
    with nothing_left():
        host.start()
        assert repr(host).startswith("<EngineHost starting")
        client.may_start.set()
        host.started.result(10)
        assert repr(host).startswith("<EngineHost serving")
        assert host.read_statistics().result(10).stages["solo"].is_available
        client.may_close.set()
        host.stop(5.0)
        host.ended.result(10)
    assert repr(host).startswith("<EngineHost stopped")
    assert client.calls == ["started", "closed"]
    host.stop(5.0)


def test_before_its_start_it_has_nothing_to_say() -> None:
    host = new_host(Client())
    host.post(EVENT)
    assert host.inbox_depth == 1
    with pytest.raises(EngineStoppedError, match="the engine is not started; use it as a context manager"):
        host.read_statistics()
    host.stop(1.0)
    assert host.ended.done()


def test_after_its_end_it_takes_nothing() -> None:
    client = Client()
    client.may_start.set()
    client.may_close.set()
    host = new_host(client)
    host.start()
    host.started.result(10)
    host.stop(1.0)
    host.ended.result(10)
    with pytest.raises(EngineStoppedError, match="the engine is shut down"):
        host.post(EVENT)
    with pytest.raises(EngineStoppedError, match="the engine is shut down"):
        host.read_statistics()


def test_it_starts_once() -> None:
    client = Client()
    host = new_host(client)
    host.stop(1.0)
    with pytest.raises(EngineStoppedError, match="an engine starts once; this one is stopped"):
        host.start()
    assert not client.starts.is_set()


@pytest.mark.rule("ORCH-INV-302")
def test_stopping_during_the_start_cancels_it_and_closes_what_there_is() -> None:
    client = Client()
    host = new_host(client)
    with nothing_left():
        host.start()
        assert client.starts.wait(10)
        client.may_close.set()
        host.stop(5.0)
        host.ended.result(10)
        with pytest.raises(EngineStoppedError, match="shut down"):
            host.started.result(0)
    assert client.calls == ["start cancelled", "closed"]
    assert host.state is HostState.STOPPED


@pytest.mark.rule("ORCH-INV-302")
def test_stopping_at_once_is_safe_a_hundred_times() -> None:
    """Wherever the new thread happens to be: before its loop, in it, or at the start of the replicas."""
    with nothing_left():
        for number in range(100):
            client = Client()
            client.may_close.set()
            if number % 2:
                client.may_start.set()
            host = new_host(client)
            host.start()
            if number % 3 == 0:
                assert client.starts.wait(10)
            host.stop(5.0)
            host.ended.result(10)
            assert host.started.done()
            assert host.state is HostState.STOPPED
            assert client.calls in ([], ["start cancelled", "closed"], ["started", "closed"], ["closed"])


@pytest.mark.rule("ORCH-INV-301", "ORCH-INV-302")
def test_stopping_after_a_failed_start_lets_the_teardown_finish() -> None:
    """The stop comes while the others are being closed; closing goes on."""
    client = Client()
    client.error = OSError("no device")
    client.may_start.set()
    host = new_host(client)
    with nothing_left():
        host.start()
        with pytest.raises(StartError, match="OSError: no device"):
            host.started.result(10)
        assert client.closes.wait(10)
        host.stop(5.0)
        assert not host.ended.done()
        client.may_close.set()
        host.ended.result(10)
    assert client.calls == ["closed"]
    assert host.state is HostState.STOPPED


@pytest.mark.rule("ORCH-INV-304")
def test_no_question_stays_without_an_answer() -> None:
    """Asked just before the end: answered, or told of the end; never left."""
    with nothing_left():
        for _ in range(30):
            client = Client()
            client.may_start.set()
            client.may_close.set()
            host = new_host(client)
            host.start()
            host.started.result(10)
            answers: list[Future[Statistics]] = []
            host.stop(5.0)
            with contextlib.suppress(EngineStoppedError):
                answers.extend(host.read_statistics() for _ in range(1000))
            host.ended.result(10)
            for answer in answers:
                assert answer.exception(10) is None or isinstance(answer.exception(0), EngineStoppedError)


def test_somebody_who_raises_while_hearing_of_the_start_fails_it() -> None:
    client = Client()
    client.may_start.set()
    client.may_close.set()

    def raise_when_ready(stage: str, message: str) -> None:
        if message == "ready":
            raise LookupError("the terminal is gone")

    host = new_host(client, raise_when_ready)
    with nothing_left():
        host.start()
        with pytest.raises(LookupError, match="the terminal is gone"):
            host.started.result(10)
        host.ended.result(10)
    assert client.calls == ["started", "closed"]
