"""The one loop: every effect to its owner, one failure of a replica's outbox to its request, no turn without need."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence

import pytest

from podium.core.effects import Effect, EmitOutput, EndRequest, RefuseRequest, ReplyAbort, StartJob, StopJob
from podium.core.events import (
    AbortRequested,
    AckLevel,
    Event,
    Finish,
    FinishReason,
    JobOutput,
    ReplicaJoined,
    ReplicaLost,
    RequestSubmitted,
    StageProduced,
    StageStarted,
)
from podium.core.graph import Graph, Stage
from podium.core.identity import JobKey, ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind, ErrorRecord, InternalError
from podium.ports.environment import Clock, Environment
from podium.ports.stage_client import EventSink, OutboxFullError, StageClient, StageCommand
from podium.runtime.clock import MonotonicClock, ReferenceStore
from podium.runtime.driver import CallerEffect, Driver
from podium.runtime.inbox import BATCH_LIMIT, Inbox
from podium.testing.virtual_clock import VirtualClock
from tests.support.broken_core import BrokenCore
from tests.support.core_world import a_loss, make_stage

REPLICA = ReplicaKey("solo", 0, 0)


class Client:
    """Takes commands; with `is_full` it refuses data."""

    def __init__(self, replica: ReplicaKey) -> None:
        self.replica = replica
        self.commands: list[StageCommand] = []
        self.is_full = False

    async def start(self, sink: EventSink) -> None:
        """Nothing to do."""

    def post(self, command: StageCommand) -> None:
        if self.is_full and not isinstance(command, StopJob):
            raise OutboxFullError("3 commands wait")
        self.commands.append(command)

    async def close(self) -> None:
        """Nothing to do."""


class Surroundings:
    """A driver and everything around it, each noting what it gets."""

    def __init__(self, *stages: Stage, replicas: int = 1, clock: Clock | None = None) -> None:
        graph = Graph(stages or [make_stage("solo", output="text")])
        self.clients = {
            key: Client(key) for name in graph.stages for key in (ReplicaKey(name, n, 0) for n in range(replicas))
        }
        self.delivered: list[Effect] = []
        self.retired: list[tuple[ReplicaKey, ErrorRecord | None]] = []
        self.steps: list[tuple[int, int]] = []
        self.calls: list[str] = []
        self.store = ReferenceStore()
        self.core = Orchestrator(graph)
        clock = clock or VirtualClock()
        self.inbox = Inbox(clock)
        self.driver = Driver(self.core, self.inbox, Environment(clock, self.store, self), self, self)
        for key in self.clients:
            self.inbox.post(ReplicaJoined(key))

    def deliver(self, effect: CallerEffect) -> None:
        self.delivered.append(effect)

    def flush(self) -> None:
        """Nothing waits."""

    def find(self, replica: ReplicaKey) -> StageClient | None:
        return self.clients.get(replica)

    def retire(self, replica: ReplicaKey, error: ErrorRecord | None) -> None:
        self.retired.append((replica, error))
        self.clients.pop(replica, None)

    def on_start(self, core: Orchestrator) -> None:
        self.calls.append("start")

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        self.steps.append((len(events), len(effects)))

    def on_cost(self, events: int, seconds: float) -> None:
        assert seconds >= 0

    def on_end(self) -> None:
        self.calls.append("end")

    async def take(self, *events: Event) -> None:
        """Let the driver handle events, and whatever it posts to itself because of them."""
        self.inbox.bind()
        for event in events:
            self.inbox.post(event)
        self.driver.close()
        await self.driver.run(lambda: self.calls.append("ready"))


def submitted(number: int = 1) -> RequestSubmitted:
    return RequestSubmitted(ticket=number, request_id=f"r{number}", prompt="p")


def job_of(command: StageCommand) -> JobKey:
    assert isinstance(command, StartJob)
    return command.job


async def test_each_effect_reaches_its_owner() -> None:
    world = Surroundings()
    client = world.clients[REPLICA]
    await world.take(submitted(1), submitted(2))
    one, other = map(job_of, client.commands)
    await world.take(
        StageStarted(REPLICA, one),
        StageProduced(REPLICA, (JobOutput(one, 0, ("hello",), Finish(FinishReason.STOP)),)),
        StageProduced(REPLICA, (JobOutput(JobKey("nobody", "solo", "main", 9), 0, ("a", "b")),)),
        AbortRequested(5, ("nobody",), AckLevel.STOPPED, 9.0),
        submitted(2),
        ReplicaLost(REPLICA, a_loss()),
    )
    kinds = [type(effect) for effect in world.delivered]
    assert kinds == [EmitOutput, EndRequest, ReplyAbort, RefuseRequest, EndRequest]
    assert world.store.released == 3, "two outputs of nobody, and the prompt that was refused"
    assert world.retired == [(REPLICA, a_loss())]
    assert other.request == "r2"


async def test_it_handles_what_is_there_before_it_ends() -> None:
    world = Surroundings()
    await world.take(*map(submitted, range(10)))
    assert len(world.clients[REPLICA].commands) == 10
    assert world.calls == ["start", "ready", "end"]
    assert repr(world.driver).endswith(", closed>")


@pytest.mark.rule("ORCH-INV-204")
async def test_a_full_outbox_fails_the_request_and_stops_its_job() -> None:
    world = Surroundings()
    client = world.clients[REPLICA]
    client.is_full = True
    await world.take(submitted())
    (end,) = world.delivered
    assert isinstance(end, EndRequest)
    assert end.error is not None
    assert end.error.kind is ErrorKind.STAGE_UNAVAILABLE
    assert (end.error.stage, end.error.replica) == ("solo", 0)
    assert "stage 'solo' does not take its commands: 3 commands wait" in end.error.message
    assert [type(command) for command in client.commands] == [StopJob]


async def test_a_command_for_a_replica_that_is_gone_waits_for_the_news() -> None:
    world = Surroundings()
    client = world.clients.pop(REPLICA)
    await world.take(submitted())
    assert client.commands == []
    assert world.delivered == []
    await world.take(ReplicaLost(REPLICA, a_loss()))
    (end,) = world.delivered
    assert isinstance(end, EndRequest)
    assert end.error is not None
    assert end.error.kind is ErrorKind.REPLICA_LOST


@pytest.mark.rule("ORCH-INV-203")
async def test_a_broken_core_ends_the_loop_and_the_last_step_is_seen() -> None:
    world = Surroundings()
    vars(world.driver)["_core"] = BrokenCore(world.core)
    with pytest.raises(InternalError, match="the planted fault"):
        await world.take(submitted())
    assert world.steps == [(2, 0)], "the step that broke it, with no effects"
    assert world.calls == ["start", "end"]


async def test_time_comes_from_the_clock() -> None:
    clock = VirtualClock(50.0)
    world = Surroundings(clock=clock)
    await world.take(submitted())
    assert world.core.next_deadline() == 50.0 + 30.0, "the start is to be confirmed"
    clock.advance(31.0)
    await world.take(AbortRequested(1, (), AckLevel.STOPPED, 99.0))
    assert [type(effect) for effect in world.delivered] == [ReplyAbort, EndRequest]


# Idle


class PatientSelector(selectors.DefaultSelector):
    """Notes for how long the loop is ready to sleep; `on_sleep` is called when that is for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.on_sleep: Callable[[float | None], None] = lambda _: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:
            self.waits.append(timeout)
            self.on_sleep(timeout)
        return super().select(timeout)


def run_patiently(work: Callable[[], Coroutine[object, object, None]], selector: PatientSelector) -> None:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(work())


@pytest.mark.case("B026")
def test_an_idle_loop_sleeps_until_something_happens() -> None:
    """Twelve replicas, nothing to do: the loop asks to be woken never."""
    world, selector = Surroundings(replicas=12), PatientSelector()

    async def idle() -> None:
        loop = asyncio.get_running_loop()
        selector.on_sleep = lambda _: loop.call_soon_threadsafe(world.driver.close)  # type: ignore[assignment]
        world.inbox.bind()
        await world.driver.run(lambda: None)

    run_patiently(idle, selector)
    assert selector.waits == [None]
    assert world.steps[0] == (12, 0)
    assert len(world.steps) == 2, "the twelve that joined, and the wake-up that closed it"


@pytest.mark.case("B026")
def test_open_requests_cost_one_timer_and_no_turns() -> None:
    """A hundred requests that wait: one sleep, until the earliest of their limits."""
    world, selector = Surroundings(replicas=2, clock=MonotonicClock()), PatientSelector()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        selector.on_sleep = lambda _: loop.call_soon_threadsafe(world.driver.close)  # type: ignore[assignment]
        world.inbox.bind()
        for number in range(100):
            world.inbox.post(submitted(number))
        await world.driver.run(lambda: None)

    run_patiently(wait, selector)
    (slept,) = selector.waits
    assert slept is not None
    assert 25.0 < slept <= 30.0, "the dispatch timeout"
    assert len(world.steps) == 2


@pytest.mark.case("B026")
@pytest.mark.parametrize("replicas", [2, 64])
async def test_one_output_behind_a_backlog_waits_for_one_step(replicas: int) -> None:
    """However many replicas there are: the busy one's backlog and the single output are one batch."""
    most = BATCH_LIMIT - 1
    world = Surroundings(replicas=replicas)
    await world.take(submitted(1), submitted(2))
    busy, single = (ReplicaKey("solo", slot, 0) for slot in (0, 1))
    jobs = {key: job_of(world.clients[key].commands[0]) for key in (busy, single)}
    world.steps.clear()
    backlog = [StageProduced(busy, (JobOutput(jobs[busy], number, (number,)),)) for number in range(most)]
    await world.take(*backlog, StageProduced(single, (JobOutput(jobs[single], 0, ("single",)),)))
    assert world.steps == [(BATCH_LIMIT, BATCH_LIMIT)]
    emitted = [effect for effect in world.delivered if isinstance(effect, EmitOutput)]
    assert [effect.payloads for effect in emitted] == [*((number,) for number in range(most)), ("single",)]
