"""The rules where a whole engine holds them: real threads, real loops, fake stages."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

import msgspec
import pytest

from podium.bootstrap import AsyncOmniEngine as PipelineEngine
from podium.core.effects import AbortStatus, Effect, EndRequest, Outcome, RefuseRequest
from podium.core.events import (
    Event,
    FinishReason,
    InputRejected,
    JobOutput,
    ReplicaLost,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.graph import EdgeMode, Source, Stage
from podium.core.identity import ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.errors import (
    Category,
    ConfigurationError,
    DeadlineExceededError,
    DuplicateRequestIdError,
    EngineStoppedError,
    ErrorKind,
    InvalidRequestError,
    OverloadedError,
    RequestError,
    Scope,
    StageFailedError,
    StageUnavailableError,
    StopUnconfirmedError,
    WaitTimeoutError,
)
from podium.payloads import Text
from podium.ports.stage_backend import Capabilities
from podium.ports.stage_client import EventSink, StageClient, StageCommand
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.parts import EngineParts
from podium.runtime.request_stream import RequestStream
from podium.testing.fake_backend import FakeBackend, Script, Then
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import make_stage
from tests.support.shell_world import (
    CHAIN,
    GUARD_S,
    SCRIPTS,
    ShellWorld,
    WatchedBackend,
    break_core,
    catch,
    failure_of,
    limited,
    nothing_left,
    serving,
    settled,
    texts,
    turns,
)

SOLO = make_stage("solo", output="text")
SLOW_STOP = (Script(outputs=(Text("x"),), then=Then.HANG, hang_stop=True),)


class Terminals:
    """An observer that counts what each use of an id ended with."""

    def __init__(self) -> None:
        self.of: Counter[int] = Counter()

    def on_start(self, core: Orchestrator) -> None:
        """Nothing to do."""

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        self.of.update(effect.ticket for effect in effects if isinstance(effect, EndRequest | RefuseRequest))

    def on_cost(self, events: int, seconds: float) -> None:
        """Nothing to do."""

    def on_end(self) -> None:
        """Nothing to do."""


# Who may do what


class Recorder:
    """A stage client as it is, whose events are noted."""

    def __init__(self, client: StageClient, events: list[tuple[ReplicaKey, Event]]) -> None:
        self.replica = client.replica
        self._client = client
        self._events = events

    async def start(self, sink: EventSink) -> None:
        def note(event: Event) -> None:
            self._events.append((self.replica, event))
            sink(event)

        await self._client.start(note)

    def post(self, command: StageCommand) -> None:
        assert command.replica == self.replica
        self._client.post(command)

    async def close(self) -> None:
        await self._client.close()


def recorded(parts: EngineParts, events: list[tuple[ReplicaKey, Event]]) -> EngineParts:
    def wrap(make: Callable[[ReplicaKey], StageClient]) -> Callable[[ReplicaKey], StageClient]:
        return lambda key: Recorder(make(key), events)

    stages = {name: part._replace(make_client=wrap(part.make_client)) for name, part in parts.stages.items()}
    return parts._replace(stages=stages)


@pytest.mark.rule("ORCH-INV-001", "ORCH-INV-002")
async def test_a_client_speaks_of_its_own_replica_and_of_nothing_else() -> None:
    """It says what happened there; no event of it names a next stage, another replica, or a request's end."""
    events: list[tuple[ReplicaKey, Event]] = []
    world = ShellWorld(*CHAIN, replicas=2)
    async with serving(world, AsyncOmniEngine(recorded(world.parts(), events))) as engine:
        for prompt in ("a", "b", "fail", "refuse", "raise"):
            await engine.generate(prompt).collect_whatever()
        stream = engine.generate("half", request_id="r")
        await anext(stream)
        await engine.abort("r")
        await world.of("vocoder").at(world.of("vocoder").die)
        await settled(engine)
    about_jobs = (StageStarted, StageProduced, StageStopped, StageFailed, StopFailed, InputRejected)
    assert {type(event) for _, event in events} <= {*about_jobs, ReplicaLost}
    assert len(events) > 20
    for replica, event in events:
        assert isinstance(event, (*about_jobs, ReplicaLost))
        assert event.replica == replica
        if isinstance(event, StageFailed | InputRejected | StopFailed):
            assert event.error.scope is Scope.REQUEST, "one job failed; how far that reaches is not the client's to say"


@pytest.mark.rule("ORCH-INV-005")
async def test_input_is_checked_before_anything_happens() -> None:
    terminals = Terminals()
    world = ShellWorld()
    async with serving(world, AsyncOmniEngine(world.parts(), observers=[terminals])) as engine:
        for wrong in (7, [], [{"role": "user"}], b"bytes", None):
            with pytest.raises(InvalidRequestError) as caught:
                engine.generate(wrong)
            assert caught.value.record.category is Category.CLIENT
        figures = await engine.statistics()
        assert figures.core.counters.submitted == 0
        assert figures.streams == 0
    assert terminals.of == {}
    assert [told.method for told in world.of("solo").told] == ["load", "close"]


# One terminal


async def completes(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("hello")
    await stream.collect()
    return stream


async def ends_with(engine: AsyncOmniEngine, prompt: str, error: type[RequestError]) -> RequestStream:
    stream = engine.generate(prompt)
    assert isinstance(await failure_of(stream), error)
    return stream


async def fails(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    return await ends_with(engine, "fail", StageFailedError)


async def is_refused_by_a_stage(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    return await ends_with(engine, "refuse", InvalidRequestError)


async def meets_a_stage_that_raises(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    return await ends_with(engine, "raise", StageFailedError)


async def loses_its_replica(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    return await ends_with(engine, "die", StageUnavailableError)


async def is_aborted(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("half", request_id="r1")
    await anext(stream)
    await engine.abort("r1")
    assert (await stream.collect()).outcome is Outcome.ABORTED
    return stream


async def is_aborted_twice_at_once(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("half", request_id="r1")
    await anext(stream)
    await asyncio.gather(engine.abort("r1"), engine.abort(["r1"], wait="accepted"), engine.abort("r1"))
    assert (await stream.collect()).outcome is Outcome.ABORTED
    return stream


async def is_left(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("half")
    await anext(stream)
    await stream.aclose()
    return stream


async def is_a_second_use_of_its_id(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    first, second = engine.generate("half", request_id="same"), engine.generate("x", request_id="same")
    assert isinstance(await failure_of(second), DuplicateRequestIdError)
    await first.aclose()
    return second


@pytest.mark.rule("ORCH-INV-101", "ORCH-INV-213")
@pytest.mark.case("B028")
@pytest.mark.parametrize(
    "ends",
    [
        completes,
        fails,
        is_refused_by_a_stage,
        meets_a_stage_that_raises,
        loses_its_replica,
        is_aborted,
        is_aborted_twice_at_once,
        is_left,
        is_a_second_use_of_its_id,
    ],
)
async def test_however_a_request_ends_it_ends_once_and_nothing_is_left(
    ends: Callable[[AsyncOmniEngine, ShellWorld], Awaitable[RequestStream]],
) -> None:
    terminals = Terminals()
    world = ShellWorld(*CHAIN)
    async with serving(world, AsyncOmniEngine(world.parts(), observers=[terminals])) as engine:
        await settled(engine)
        before = await engine.statistics()
        stream = await ends(engine, world)
        await settled(engine)
        after = await engine.statistics()
        assert (after.streams, after.open_calls, after.inbox_depth) == (0, 0, 0)
        core = {key: value for key, value in msgspec.structs.asdict(after.core).items() if key in TABLES}
        assert core == {key: value for key, value in msgspec.structs.asdict(before.core).items() if key in TABLES}
        assert all(stage.queued == stage.running == stage.buffered == 0 for stage in after.core.stages.values())
        for stage in CHAIN:
            backend = world.of(stage.name)
            assert await backend.at(lambda backend=backend: dict(backend.tasks)) == {}  # type: ignore[misc]
        assert terminals.of[stream.ticket] == 1
    assert set(terminals.of.values()) == {1}


TABLES = {"requests", "held", "aborting", "abort_calls", "timers"}


@pytest.mark.rule("ORCH-INV-101", "ORCH-INV-302")
async def test_a_shutdown_gives_every_request_its_one_terminal() -> None:
    terminals = Terminals()
    world = ShellWorld(*CHAIN, by_hand=["thinker"])
    async with serving(world, AsyncOmniEngine(world.parts(), observers=[terminals])) as engine:
        streams = [engine.generate("x") for _ in range(200)]
        await engine.shutdown()
        errors = [await failure_of(stream) for stream in streams]
        assert {type(error) for error in errors} == {EngineStoppedError}
        assert [error.request_id for error in errors] == [stream.request_id for stream in streams]
    assert [terminals.of[stream.ticket] for stream in streams] == [1] * 200


@pytest.mark.rule("ORCH-INV-102")
async def test_what_is_late_of_a_first_use_never_reaches_a_second() -> None:
    world = ShellWorld(by_hand=["solo"])
    async with serving(world) as engine:
        backend = world.of("solo")
        first = engine.generate("x", request_id="same")
        (old,) = await backend.wait_jobs()
        await first.aclose()
        await backend.wait_told("stop")
        second = engine.generate("x", request_id="same")
        await backend.wait_told("submit", 2)
        (new,) = await backend.wait_jobs()
        assert new.attempt != old.attempt
        stale = Text("of the first use")
        await backend.at(lambda: backend.put(JobOutput(old, 0, (stale,))))
        await backend.produce_for([new], Text("of the second"))
        await backend.finish_all()
        assert (await second.collect()).outputs == {"text": Text("of the second")}


@pytest.mark.rule("ORCH-INV-103")
async def test_one_request_waits_for_no_other() -> None:
    """Each is numbered from 0 without a gap; one that hangs holds up nobody."""
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        hanging = engine.generate("half")
        streams = [engine.generate(f"p{number}") for number in range(50)]
        for number, stream in enumerate(streams):
            items = [item async for item in stream]
            assert [item.sequence for item in items] == list(range(len(items)))
            assert texts(items, "speech") == [f"p{number}"]
        assert (await anext(hanging)).sequence == 0
        await hanging.aclose()


# Failure


@pytest.mark.rule("ORCH-INV-200")
@pytest.mark.case("B071")
async def test_an_error_arrives_as_what_it_is() -> None:
    """Same kind, status, stage and request for the caller as at its origin."""
    clock = VirtualClock()
    world = ShellWorld(*(limited(stage, max_queued=3, max_inflight=2) for stage in CHAIN))
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        late = engine.generate("half", request_id="late", deadline_s=5)
        await anext(late)
        clock.advance(5)
        bad, broken = engine.generate("refuse", request_id="bad"), engine.generate("raise", request_id="broken")
        cases = [(late, 504, DeadlineExceededError), (bad, 400, InvalidRequestError), (broken, 500, StageFailedError)]
        for stream, status, kind in cases:
            error = await failure_of(stream)
            assert type(error) is kind
            assert (error.status, error.request_id) == (status, stream.request_id)
        many = [engine.generate("hang", request_id=f"r{number}") for number in range(6)]
        refused = await failure_of(many[-1])
        assert (type(refused), refused.status, refused.stage) == (OverloadedError, 429, "thinker")
        await world.of("thinker").at(world.of("thinker").die)
        lost = await failure_of(many[0])
        assert (type(lost), lost.status, lost.stage, lost.request_id) == (StageUnavailableError, 503, "thinker", "r0")
        assert lost.record.replica == 0


@pytest.mark.rule("ORCH-INV-203", "ORCH-INV-304")
async def test_nothing_but_the_engines_own_fault_is_fatal() -> None:
    """Whatever stages do, health stays honest; when the loop breaks, everybody hears of it and health says so."""
    world = ShellWorld(*CHAIN, replicas=2, scripts={**SCRIPTS, "slow": SLOW_STOP})
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            for prompt in ("fail", "refuse", "raise", "die"):
                await engine.generate(prompt).collect_whatever()
                assert (await engine.check_health()).is_live
            assert (await engine.generate("well").collect()).outcome is Outcome.COMPLETED
            stream = engine.generate("slow", request_id="slow")
            await anext(stream)
            async with asyncio.TaskGroup() as group:
                aborting = group.create_task(catch(engine.abort("slow")))
                await turns(20)
                break_core(engine)
                engine.generate("the last event that it takes").discard()
                error = await failure_of(stream)
            assert error.record.kind is aborting.result().record.kind is ErrorKind.ENGINE_DEAD
            assert error.record.scope is Scope.ENGINE
            assert not (await engine.check_health()).is_live
            await engine.shutdown()


class Unannounced(WatchedBackend):
    """Says itself when it takes up a job, and never does."""

    capabilities: ClassVar[Capabilities] = msgspec.structs.replace(FakeBackend.capabilities, reports_start=True)


LIMITS = [
    # what is limited, the prompt, what the error says that was awaited
    ("dispatch_timeout_s", "hang", "confirmation of the start at stage 'solo'"),
    ("first_output_timeout_s", "hang", "first output at stage 'solo'"),
    ("chunk_timeout_s", "half", "next output at stage 'solo'"),
    ("queue_timeout_s", "hang", "capacity at stage 'solo'"),
]


@pytest.mark.rule("ORCH-INV-204")
@pytest.mark.parametrize(("limit", "prompt", "awaited"), LIMITS)
async def test_every_wait_of_a_request_has_its_limit(limit: str, prompt: str, awaited: str) -> None:
    clock = VirtualClock()
    stage = limited(SOLO, **{limit: 5.0}, max_inflight=1 if "queue" in limit else 64)
    world = ShellWorld(stage, make_backend={"solo": Unannounced} if "dispatch" in limit else None)
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        first, second = engine.generate(prompt, request_id="first"), engine.generate(prompt, request_id="second")
        await world.of("solo").wait_told("submit", 1 if "queue" in limit else 2)
        if prompt == "half":
            await anext(first)
            await anext(second)
        await engine.abort([])
        clock.advance(5)
        await engine.abort([])
        error = await failure_of(second)
        assert type(error) is WaitTimeoutError
        assert error.record.awaited == awaited
        assert f"timed out after 5 s waiting for {awaited} (limits.{limit})" in str(error)
        assert error.status == 504
        await first.aclose()
        await settled(engine)


@pytest.mark.rule("ORCH-INV-204", "ORCH-INV-207")
async def test_an_abort_always_answers_in_time() -> None:
    """With a record for each id, in the order that was asked for."""
    clock = VirtualClock()
    world = ShellWorld(scripts={**SCRIPTS, "slow": SLOW_STOP})
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        await engine.generate("x", request_id="ended").collect()
        slow = engine.generate("slow", request_id="slow")
        quick = engine.generate("half", request_id="quick")
        await anext(slow)
        await anext(quick)
        async with asyncio.TaskGroup() as group:
            aborting = group.create_task(
                catch(engine.abort(["slow", "never", "ended", "quick"], timeout_s=2)), name="abort"
            )
            await world.of("solo").wait_told("stop", 2)
            assert (await quick.collect()).outcome is Outcome.ABORTED
            clock.advance(2)
            await engine.abort([])
        error = aborting.result()
        assert isinstance(error, StopUnconfirmedError)
        assert error.unconfirmed == ("slow",)
        again = await engine.abort(["never", "ended", "quick"])
        assert [one.status for one in again.records] == [
            AbortStatus.UNKNOWN,
            AbortStatus.ALREADY_ENDED,
            AbortStatus.ALREADY_ENDED,
        ]
        await world.of("solo").at(world.of("solo").release_stops)
        assert (await slow.collect()).outputs == {"text": Text("x")}


# Abort, wherever it is


async def held(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    await engine.pause_generation("keep")
    stream = engine.generate("hang", request_id="r1")
    await engine.abort([])
    assert (await engine.statistics()).core.held == 1
    return stream


async def queued(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    engine.generate("hang", request_id="before").discard()
    stream = engine.generate("hang", request_id="r1")
    await engine.abort([])
    assert (await engine.statistics()).core.stages["first"].queued == 1
    return stream


async def running(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("hang", request_id="r1")
    await world.of("first").wait_told("submit")
    return stream


async def just_submitted(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    return engine.generate("hang", request_id="r1")


async def waiting_for_a_source(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("half", request_id="r1")
    await world.of("first").wait_told("submit")
    return stream


async def in_a_later_stage(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("later", request_id="r1")
    await world.of("second").wait_told("submit")
    return stream


async def stopping(engine: AsyncOmniEngine, world: ShellWorld) -> RequestStream:
    stream = engine.generate("hang", request_id="r1")
    await world.of("first").wait_told("submit")
    await engine.abort("r1", wait="accepted")
    return stream


@pytest.mark.rule("ORCH-INV-208", "ORCH-INV-210", "ORCH-INV-213")
@pytest.mark.case("B004")
@pytest.mark.parametrize(
    "where", [held, queued, just_submitted, running, waiting_for_a_source, in_a_later_stage, stopping]
)
async def test_an_abort_finds_a_request_wherever_it_is(
    where: Callable[[AsyncOmniEngine, ShellWorld], Awaitable[RequestStream]],
) -> None:
    """The stream ends with the abort of its own output, and the other requests go on."""
    first = limited(make_stage("first"), max_inflight=1)
    second = make_stage("second", Source("first", EdgeMode.COMPLETE), output="text")
    world = ShellWorld(first, second, scripts={**SCRIPTS, "later": (Script(outputs=SCRIPTS["hang"]),)})
    async with serving(world) as engine:
        stream = await where(engine, world)
        report = await engine.abort("r1")
        assert report["r1"].status in {AbortStatus.ABORTED, AbortStatus.ALREADY_ENDED}
        items = [item async for item in stream]
        assert [(item.output, item.finish_reason, item.request_finished) for item in items] == [
            ("text", FinishReason.ABORT, True)
        ]
        assert stream.outcome is Outcome.ABORTED
        await engine.resume_generation()
        await engine.abort(["before"])
        assert (await engine.generate("well").collect()).outputs == {"text": Text("well")}
        await settled(engine)


@pytest.mark.rule("ORCH-INV-211")
async def test_aborting_nothing_changes_nothing() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        await engine.generate("x", request_id="ended").collect()
        before = (await settled(engine)).counters
        for ids in ([], "never", ["never", "ended"], ["ended"] * 3):
            for wait in ("accepted", "stopped"):
                await engine.abort(ids, wait=wait)
        assert (await settled(engine)).counters == before


@pytest.mark.rule("ORCH-INV-212")
async def test_a_client_that_leaves_is_counted_apart_and_is_no_error() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        for _ in range(10):
            async for _ in engine.generate("half"):
                break
        counters = (await settled(engine)).counters
        assert (counters.cancelled, counters.failed, counters.completed) == (10, 0, 0)


# Replicas


class SlowToClose(WatchedBackend):
    """Once it died, it does not close."""

    async def close(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.rule("ORCH-INV-214")
async def test_closing_a_lost_replica_holds_up_nobody() -> None:
    world = ShellWorld(SOLO, replicas=2, make_backend={"solo": SlowToClose})
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            await world.of("solo", 0).at(world.of("solo", 0).die)
            while len((await engine.statistics()).core.stages["solo"].replicas) > 1:
                pass
            for number in range(100):
                assert (await engine.generate(f"p{number}").collect()).outputs == {"text": Text(f"p{number}")}
            assert (await engine.check_health()).is_ready
            await engine.shutdown(0.05)
            await engine.shutdown(20)


# Start, shutdown


@pytest.mark.rule("ORCH-INV-300")
@pytest.mark.case("B049")
def test_an_impossible_pipeline_is_refused_with_all_its_faults_before_anything_starts() -> None:
    text = """
name: impossible
stages:
  a:
    backend: function
    kind: function
    produces: text
    sources: [nobody]
  b:
    backend: nothing
    kind: function
    produces: text
    limits: {max_inflight: -1}
"""
    with nothing_left(), pytest.raises(ConfigurationError) as caught:
        PipelineEngine.from_pipeline(text)
    message = str(caught.value)
    assert len(caught.value.faults) >= 3
    assert "nobody" in message
    assert "nothing" in message


@pytest.mark.rule("ORCH-INV-302")
async def test_a_shutdown_goes_in_order() -> None:
    """Admission closes, requests end, the loop ends; only then the stages are closed."""
    heard: list[str] = []

    class Noting(WatchedBackend):
        async def close(self) -> None:
            heard.append(f"close {self._stage}")
            await super().close()

    class Ends(Terminals):
        def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
            heard.extend("terminal" for effect in effects if isinstance(effect, EndRequest))

        def on_end(self) -> None:
            heard.append("loop")

    world = ShellWorld(*CHAIN, make_backend=dict.fromkeys((stage.name for stage in CHAIN), Noting))
    async with serving(world, AsyncOmniEngine(world.parts(), observers=[Ends()])) as engine:
        streams = [engine.generate("half") for _ in range(3)]
        for stream in streams:
            await anext(stream)
        await engine.shutdown()
        with pytest.raises(EngineStoppedError):
            engine.generate("too late")
        for stream in streams:
            assert isinstance(await failure_of(stream), EngineStoppedError)
    assert heard[:4] == ["terminal"] * 3 + ["loop"]
    assert sorted(heard[4:]) == sorted(f"close {stage.name}" for stage in CHAIN)


@pytest.mark.rule("ORCH-INV-304")
async def test_whoever_waits_in_whatever_way_hears_of_the_end() -> None:
    """A stream that is read, one that nobody reads yet, an abort, a collector, in this loop and in another."""
    world = ShellWorld(scripts={**SCRIPTS, "slow": SLOW_STOP})
    heard: list[str] = []

    async def elsewhere(engine: AsyncOmniEngine, ready: threading.Event) -> None:
        stream = engine.generate("half")
        await anext(stream)
        ready.set()
        heard.append(type(await failure_of(stream)).__name__)

    async with serving(world) as engine:
        ready = threading.Event()
        thread = threading.Thread(target=asyncio.run, args=(elsewhere(engine, ready),))
        thread.start()
        slow, unread = engine.generate("slow", request_id="slow"), engine.generate("half")
        await anext(slow)
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(catch(engine.abort("slow"))),
                group.create_task(catch(slow.collect())),
                group.create_task(catch(engine.generate("hang").collect())),
            ]
            await world.of("solo").wait_told("stop")
            await world.of("solo").wait_told("submit", 4)
            assert ready.wait(20)
            await engine.shutdown()
        heard += [type(task.result()).__name__ for task in waiting]
        heard.append(type(await failure_of(unread)).__name__)
        thread.join(20)
    assert sorted(heard) == [*["EngineStoppedError"] * 4, "StopUnconfirmedError"]
    assert "the engine is shut down" in str(waiting[0].result())


@pytest.mark.rule("ORCH-INV-305")
async def test_ready_names_the_stage_that_is_missing_and_lives_on() -> None:
    stages: tuple[Stage, ...] = CHAIN
    world = ShellWorld(*stages)
    async with serving(world) as engine:
        assert (await engine.check_health()).is_ready
        await world.of("talker").at(world.of("talker").die)
        while (health := await engine.check_health()).is_ready:
            pass
        assert health.is_live
        assert health.unavailable_stages == ("talker",)
        assert health.reason == "no live replica of stage 'talker'"
        assert (await engine.generate("x", outputs=["text"]).collect()).outputs == {"text": Text("x")}
