"""The engine that callers hold: requests in, streams out, and an honest answer at every moment of its life."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence

import pytest

from podium.core.effects import AbortStatus, Outcome
from podium.core.events import FinishReason
from podium.core.identity import JobKey, Payload
from podium.errors import (
    DeadlineExceededError,
    DuplicateRequestIdError,
    ErrorKind,
    InvalidRequestError,
    OverloadedError,
    StageFailedError,
    StageUnavailableError,
    StopUnconfirmedError,
)
from podium.payloads import Text
from podium.ports.stage_backend import StageTask
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.config import StageParams
from podium.testing.fake_backend import FakeParams, Script, Then
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import make_stage
from tests.support.shell_world import (
    CHAIN,
    ShellWorld,
    ThreadBackend,
    WatchedBackend,
    catch,
    failure_of,
    finishes,
    limited,
    serving,
    settled,
    texts,
    turns,
)

SOLO = make_stage("solo", output="text")


# Requests


@pytest.mark.rule("ORCH-INV-103", "ORCH-INV-106")
async def test_a_request_goes_through_the_pipeline() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        assert engine.outputs == ("text", "speech")
        assert repr(engine) == "<AsyncOmniEngine thinker talker vocoder, serving>"
        stream = engine.generate("hello")
        items = [item async for item in stream]
        assert [item.sequence for item in items] == list(range(len(items)))
        assert texts(items, "text") == texts(items, "speech") == ["hello"]
        assert finishes(items) == {"text": FinishReason.STOP, "speech": FinishReason.STOP}
        assert [item.request_finished for item in items].index(True) == len(items) - 1
        assert stream.outcome is Outcome.COMPLETED
        assert list(stream.timeline) == ["thinker", "talker", "vocoder"]
        assert all(timing.finished_at is not None for timing in stream.timeline.values())
        assert (await settled(engine)).counters.completed == 1


async def test_replicas_in_threads_do_the_same() -> None:
    world = ShellWorld(*CHAIN, make_backend=dict.fromkeys(("thinker", "vocoder"), ThreadBackend))
    async with serving(world) as engine:
        result = await engine.generate("hello").collect()
        assert result.outputs == {"text": Text("hello"), "speech": Text("hello")}


@pytest.mark.rule("ORCH-INV-107")
async def test_only_what_is_asked_for_is_made() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        result = await engine.generate("hello", outputs=["text"]).collect()
        assert result.outputs == {"text": Text("hello")}
        assert world.of("talker").times_told("submit") == 0


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": ["video"]}, "no output 'video'"),
        ({"params": {"nobody": {}}}, "unknown stage 'nobody'"),
        ({"params": {"solo": {"sed": 1}}}, r"params\.sed"),
        ({"priority": "high"}, "priority"),
        ({"deadline_s": -1}, "deadline_s"),
        ({"request_id": 7}, "request_id"),
        ({"n": 0}, "n: 0 makes no sense"),
        ({"n": True}, "n: True makes no sense"),
        ({"n": 65}, r"n: 65 samples are 65 siblings; a request may have 64 \(limits.max_siblings\)"),
        ({"group": ""}, "group: '' is no name"),
    ],
)
async def test_what_cannot_be_done_is_refused_before_anything_is_touched(
    arguments: Mapping[str, object], message: str
) -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        with pytest.raises(InvalidRequestError, match=message):
            engine.generate("hello", **arguments)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="prompt: is of type int"):
            engine.generate(7)
        figures = await engine.statistics()
        assert (figures.streams, figures.core.counters.submitted) == (0, 0)
        assert world.of("solo").times_told("submit") == 0


def test_parameters_of_the_engine_are_checked_when_it_is_made() -> None:
    with pytest.raises(InvalidRequestError, match=r"params\.sed"):
        AsyncOmniEngine(ShellWorld().parts(), params={"solo": {"sed": 1}})


async def test_priority_and_deadline_reach_the_stage() -> None:
    clock = VirtualClock(100.0)
    world = ShellWorld(by_hand=["solo"])
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        stream = engine.generate("hello", priority=3, deadline_s=7)
        (job,) = await world.of("solo").wait_jobs()
        (task,) = await world.of("solo").at(lambda: list(world.of("solo").tasks.values()))
        assert (task.priority, task.deadline) == (3, 107.0)
        await world.of("solo").at(lambda: world.of("solo").finish(job))
        assert (await stream.collect()).outcome is Outcome.COMPLETED


@pytest.mark.rule("ORCH-INV-204")
async def test_a_deadline_that_passes_ends_the_request() -> None:
    clock = VirtualClock()
    world = ShellWorld()
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        stream = engine.generate("half", deadline_s=10)
        assert (await anext(stream)).delta == Text("half ")
        clock.advance(10)
        await engine.abort([])  # a step, in which time has passed
        error = await failure_of(stream)
        assert isinstance(error, DeadlineExceededError)
        assert error.record.awaited == "next output at stage 'solo'"
        assert error.request_id == stream.request_id
        await settled(engine)


@pytest.mark.rule("ORCH-INV-118")
@pytest.mark.case("B036")
async def test_past_capacity_requests_are_refused_at_once() -> None:
    world = ShellWorld(limited(SOLO, max_inflight=4, max_queued=12), by_hand=["solo"])
    async with serving(world) as engine:
        streams = [engine.generate("x") for _ in range(100)]
        errors = [await failure_of(stream) for stream in streams[16:]]
        assert all(isinstance(error, OverloadedError) for error in errors)
        assert {error.record.retry_after_s for error in errors} == {1.0}
        assert (await engine.statistics()).streams == 16
        backend = world.of("solo")
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(stream.collect()) for stream in streams[:16]]
            for done in range(0, 16, 4):
                await backend.wait(lambda done=done: backend.times_told("submit") == done + 4)  # type: ignore[misc]
                await backend.finish_all()
        assert {task.result().outcome for task in running} == {Outcome.COMPLETED}
        again = engine.generate("x")
        (job,) = await backend.wait_jobs()
        await backend.at(lambda: backend.finish(job))
        assert (await again.collect()).outcome is Outcome.COMPLETED


# Ids


@pytest.mark.rule("ORCH-INV-102")
@pytest.mark.case("B037")
async def test_a_live_id_cannot_be_taken_twice() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        first = engine.generate("half", request_id="same")
        second = engine.generate("other", request_id="same")
        error = await failure_of(second)
        assert isinstance(error, DuplicateRequestIdError)
        assert error.status == 409
        assert (await anext(first)).delta == Text("half ")
        report = await engine.abort("same")
        assert report["same"].partials == {"solo": Text("half way")}
        assert [item.partial async for item in first][-1] == Text("half way")
        third = await engine.generate("third", request_id="same").collect()
        assert third.outputs == {"text": Text("third")}


@pytest.mark.rule("ORCH-INV-102")
@pytest.mark.case("B039")
async def test_a_missing_or_empty_id_is_made_up() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        streams = [engine.generate(f"p{number}", request_id="" if number % 2 else None) for number in range(50)]
        assert len({stream.request_id for stream in streams}) == 50
        for number, stream in enumerate(streams):
            assert (await stream.collect()).outputs == {"text": Text(f"p{number}")}


@pytest.mark.rule("ORCH-INV-102")
async def test_abort_matches_whole_ids_only() -> None:
    async with serving(ShellWorld()) as engine:
        stream = engine.generate("half", request_id="request-1")
        report = await engine.abort(["request", "request-", "request-11", "REQUEST-1"])
        assert {record.status for record in report.records} == {AbortStatus.UNKNOWN}
        await engine.abort("request-1")
        assert (await stream.collect()).outcome is Outcome.ABORTED


# Leaving


async def leave_by_break(engine: AsyncOmniEngine) -> None:
    async for _ in engine.generate("half"):
        break


async def leave_by_closing(engine: AsyncOmniEngine) -> None:
    stream = engine.generate("half")
    await anext(stream)
    await stream.aclose()


async def leave_by_a_block(engine: AsyncOmniEngine) -> None:
    async with engine.generate("half") as stream:
        await anext(stream)


async def leave_by_an_exception(engine: AsyncOmniEngine) -> None:
    async def read() -> None:
        async for _ in engine.generate("half"):
            raise LookupError

    with pytest.raises(LookupError):
        await read()


async def leave_by_cancelling_the_task(engine: AsyncOmniEngine) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in engine.generate("half"):
            begun.set()

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await begun.wait()
        await turns()
        reading.cancel()


async def leave_by_dropping(engine: AsyncOmniEngine) -> None:
    stream = engine.generate("half")
    await anext(stream)
    del stream
    gc.collect()


async def leave_before_the_first_item(engine: AsyncOmniEngine) -> None:
    engine.generate("half")
    gc.collect()


async def leave_by_a_timeout(engine: AsyncOmniEngine) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await engine.generate("hang").collect()


@pytest.mark.rule("ORCH-INV-212", "ORCH-INV-213")
@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_closing,
        leave_by_a_block,
        leave_by_an_exception,
        leave_by_cancelling_the_task,
        leave_by_dropping,
        leave_before_the_first_item,
        leave_by_a_timeout,
    ],
)
async def test_leaving_a_stream_stops_the_request_everywhere(leave: object) -> None:
    assert callable(leave)
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        await leave(engine)
        figures = await settled(engine)
        assert (figures.counters.cancelled, figures.counters.failed) == (1, 0)
        assert (await engine.statistics()).streams == 0
        assert all(world.of(stage.name).tasks == {} for stage in CHAIN)


# Abort


@pytest.mark.rule("ORCH-INV-205", "ORCH-INV-207", "ORCH-INV-209")
async def test_an_abort_returns_what_there_is_and_ends_the_stream() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        stream = engine.generate("half", request_id="r1")
        while len(world.of("vocoder").told) < 2:
            await world.of("vocoder").wait_told("submit")
        report = await engine.abort("r1")
        record = report["r1"]
        assert record.status is AbortStatus.ABORTED
        assert record.partials["thinker"] == Text("half way")
        items = [item async for item in stream]
        assert finishes(items) == {"text": FinishReason.ABORT, "speech": FinishReason.ABORT}
        assert [item.output for item in items if item.stage_finished] == ["text", "speech"]
        assert [item.request_finished for item in items if item.stage_finished] == [False, True]
        assert stream.outcome is Outcome.ABORTED
        assert stream.error is None
        again = await engine.abort(["r1", "r1", "never"])
        assert [one.status for one in again.records] == [AbortStatus.ALREADY_ENDED, AbortStatus.UNKNOWN]


@pytest.mark.rule("ORCH-INV-211")
async def test_nothing_to_abort_is_a_success() -> None:
    async with serving(ShellWorld()) as engine:
        assert (await engine.abort([])).records == ()
        assert (await engine.abort([], wait="accepted")).records == ()
        assert (await engine.abort("never"))["never"].status is AbortStatus.UNKNOWN


@pytest.mark.rule("ORCH-INV-207")
async def test_an_abort_can_be_accepted_before_it_is_done() -> None:
    world = ShellWorld(scripts={"slow": (Script(outputs=(Text("x"),), then=Then.HANG, hang_stop=True),)})
    async with serving(world) as engine:
        stream = engine.generate("slow", request_id="r1")
        await anext(stream)
        report = await engine.abort("r1", wait="accepted")
        assert report["r1"].status is AbortStatus.ACCEPTED
        assert stream.outcome is None
        await world.of("solo").at(world.of("solo").release_stops)
        assert (await stream.collect()).outcome is Outcome.ABORTED


@pytest.mark.rule("ORCH-INV-206", "ORCH-INV-216")
async def test_a_stop_that_fails_is_said_and_a_repetition_returns_the_same() -> None:
    script = Script(outputs=(Text("so "), Text("far")), then=Then.HANG, stop_failures=1)
    async with serving(ShellWorld(scripts={"stubborn": (script,)})) as engine:
        stubborn = engine.generate("stubborn", request_id="stubborn")
        other = engine.generate("well", request_id="other")
        await anext(stubborn)
        with pytest.raises(
            StopUnconfirmedError, match=r"not confirmed to be stopped: stubborn .*; stages: solo"
        ) as caught:
            await engine.abort(["stubborn", "other"])
        assert caught.value.unconfirmed == ("stubborn",)
        assert caught.value.stage == "solo"
        assert stubborn.outcome is None
        assert (await engine.abort("stubborn"))["stubborn"].partials == {"solo": Text("so far")}
        assert (await stubborn.collect()).outputs == {"text": Text("so far")}
        await other.aclose()


@pytest.mark.rule("ORCH-INV-207")
async def test_an_abort_that_is_not_confirmed_lists_the_ids_in_time() -> None:
    clock = VirtualClock()
    world = ShellWorld(scripts={"slow": (Script(then=Then.HANG, hang_stop=True),)})
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        streams = [engine.generate("slow", request_id=f"r{number}") for number in range(2)]
        backend = world.of("solo")
        await backend.wait_told("submit", 2)
        async with asyncio.TaskGroup() as group:
            aborting = group.create_task(catch(engine.abort(["r0", "r1"], timeout_s=3)))
            await backend.wait_told("stop", 2)
            clock.advance(3)
            await engine.abort([])
        error = aborting.result()
        assert isinstance(error, StopUnconfirmedError)
        assert error.unconfirmed == ("r0", "r1")
        assert error.record.awaited == "confirmation of the stop"
        await backend.at(backend.release_stops)
        assert [(await stream.collect()).outcome for stream in streams] == [Outcome.ABORTED] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wait": "never"}, "wait: 'never' is unknown; use 'accepted' or 'stopped'"),
        ({"timeout_s": 0}, "timeout_s: 0 is no positive number of seconds"),
    ],
)
async def test_an_abort_that_makes_no_sense_is_refused(arguments: Mapping[str, object], message: str) -> None:
    async with serving(ShellWorld()) as engine:
        with pytest.raises(InvalidRequestError, match=message):
            await engine.abort("r1", **arguments)  # type: ignore[arg-type]
        assert (await engine.statistics()).open_calls == 0


async def test_an_abort_of_something_else_is_refused() -> None:
    async with serving(ShellWorld()) as engine:
        for wrong in (7, [1], {"r1": 1}):
            with pytest.raises(InvalidRequestError, match=r"request_ids: .*; pass an id, or a list of ids"):
                await engine.abort(wrong)  # type: ignore[arg-type]


@pytest.mark.rule("ORCH-INV-207")
async def test_a_cancelled_abort_leaves_nothing_and_is_still_done() -> None:
    world = ShellWorld(scripts={"slow": (Script(then=Then.HANG, hang_stop=True),)})
    async with serving(world) as engine:
        stream = engine.generate("slow", request_id="r1")
        backend = world.of("solo")
        await backend.wait_told("submit")
        async with asyncio.TaskGroup() as group:
            aborting = group.create_task(engine.abort("r1"))
            await backend.wait_told("stop")
            aborting.cancel()
        assert aborting.cancelled()
        assert (await engine.statistics()).open_calls == 0
        await backend.at(backend.release_stops)
        assert (await stream.collect()).outcome is Outcome.ABORTED
        assert (await settled(engine)).abort_calls == 0


@pytest.mark.rule("ORCH-INV-101", "ORCH-INV-207")
async def test_aborts_that_race_with_completions_leave_one_terminal_each() -> None:
    async with serving(ShellWorld(*CHAIN)) as engine:
        for number in range(200):
            stream = engine.generate("hello", request_id=f"r{number}")
            await turns(number % 7)
            if number % 2:
                await asyncio.sleep(0)
                await anext(stream)
            report = await engine.abort(f"r{number}")
            result = await stream.collect()
            status = report[f"r{number}"].status
            assert result.outcome in {Outcome.COMPLETED, Outcome.ABORTED}
            assert (status is AbortStatus.ABORTED) == (result.outcome is Outcome.ABORTED)
        figures = await settled(engine)
        assert figures.counters.completed + figures.counters.aborted == 200


# Failures of user code


class RaisingBackend(WatchedBackend):
    """Raises from one method, for the jobs of requests called `bad`."""

    method = ""

    def _maybe(self, method: str, job: JobKey) -> None:
        if method == self.method and job.request == "bad":
            raise LookupError(f"{method} is broken")

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        self._maybe("feed", job)
        super().feed(job, inputs)

    def end_input(self, job: JobKey) -> None:
        self._maybe("end_input", job)
        super().end_input(job)

    async def stop(self, job: JobKey) -> Payload:
        self._maybe("stop", job)
        return await super().stop(job)


def raising(method: str) -> type[RaisingBackend]:
    return type("Raising", (RaisingBackend,), {"method": method})


@pytest.mark.rule("ORCH-INV-201")
@pytest.mark.parametrize("method", ["feed", "end_input"])
async def test_a_backend_that_raises_fails_that_request_only(method: str) -> None:
    world = ShellWorld(*CHAIN, by_hand=["thinker"], make_backend={"talker": raising(method)})
    async with serving(world) as engine:
        bad, good = engine.generate("hello", request_id="bad"), engine.generate("hello", request_id="good")
        thinker, talker = world.of("thinker"), world.of("talker")
        jobs = await thinker.wait_jobs(2)
        await thinker.produce_for(jobs, Text("hel"))
        await talker.wait_told("submit", 2)
        await thinker.finish_all(Text("lo"))
        error = await failure_of(bad)
        assert isinstance(error, StageFailedError)
        assert (error.status, error.stage, error.request_id) == (500, "talker", "bad")
        assert "LookupError" in str(error)
        assert (await good.collect()).outputs["speech"] == Text("hello")
        assert (await engine.check_health()).is_ready
        await settled(engine)


async def test_a_stop_that_always_raises_is_bounded_and_costs_the_replica() -> None:
    """Each wait for it has a limit; at the last the replica is given up, and the engine says so."""
    clock = VirtualClock()
    world = ShellWorld(make_backend={"solo": raising("stop")})
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        stream = engine.generate("half", request_id="bad")
        await anext(stream)
        with pytest.raises(StopUnconfirmedError):
            await engine.abort("bad")
        for _ in range(3):
            clock.advance(70)
            await engine.abort([])
        result = await stream.collect_whatever()
        assert result.outcome is Outcome.ABORTED
        assert (await engine.check_health()).unavailable_stages == ("solo",)
        await settled(engine)


@pytest.mark.rule("ORCH-INV-202")
async def test_a_dead_replica_fails_its_requests_and_later_ones_fast() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        stream = engine.generate("half")
        await anext(stream)
        await world.of("vocoder").at(world.of("vocoder").die)
        error = await failure_of(stream)
        assert isinstance(error, StageUnavailableError)
        assert error.stage == "vocoder"
        health = await engine.check_health()
        assert (health.is_live, health.is_ready, health.unavailable_stages) == (True, False, ("vocoder",))
        assert isinstance(await failure_of(engine.generate("x")), StageUnavailableError)
        assert (await engine.generate("x", outputs=["text"]).collect()).outputs == {"text": Text("x")}
        await settled(engine)


async def test_a_replica_that_dies_while_the_others_start_is_known_to_be_lost() -> None:
    """Its loss comes before the engine serves; it must not be taken for a live one."""

    class Frail(WatchedBackend):
        async def load(self) -> None:
            await super().load()
            self.die("it fell over at once")

    class Slow(WatchedBackend):
        async def load(self) -> None:
            await super().load()
            await turns(50)

    world = ShellWorld(*CHAIN, make_backend={"thinker": Frail, "vocoder": Slow})
    async with serving(world) as engine:
        while (await engine.check_health()).is_ready:
            pass
        assert (await engine.check_health()).unavailable_stages == ("thinker",)
        assert isinstance(await failure_of(engine.generate("x")), StageUnavailableError)


async def test_a_caller_that_does_not_read_loses_its_request_only() -> None:
    many = tuple(Text(str(number)) for number in range(50))
    world = ShellWorld(scripts={"many": many})
    async with serving(world, AsyncOmniEngine(world.parts(), max_undelivered=10)) as engine:
        unread = engine.generate("many")
        assert (await engine.generate("x").collect()).outputs == {"text": Text("x")}
        error = await failure_of(unread)
        assert error.record.kind is ErrorKind.BUFFER_OVERFLOW
        await settled(engine)


# Parameters


@pytest.mark.case("B076")
@pytest.mark.case("B110")
async def test_each_stage_gets_its_own_parameters() -> None:
    """Request over engine over file, also for stages that start later."""
    world = ShellWorld(*CHAIN, by_hand=["thinker"], params={"thinker": {"seed": 1}, "talker": {"seed": 2}})
    seen: dict[str, Payload] = {}

    class Noting(WatchedBackend):
        def submit(self, task: StageTask) -> None:
            seen[self._stage] = task.params
            super().submit(task)

    world.make_backend = dict.fromkeys((stage.name for stage in CHAIN), Noting)
    engine = AsyncOmniEngine(world.parts(), params={"talker": {"seed": 3}})

    async def run(params: StageParams | None) -> list[int]:
        stream = engine.generate("x", params=params)
        backend = world.of("thinker")
        (job,) = await backend.wait_jobs()
        await backend.at(lambda: backend.finish(job, FinishReason.STOP, Text("x")))
        await stream.collect()
        return [value.seed for stage in CHAIN if isinstance(value := seen[stage.name], FakeParams)]

    async with serving(world, engine):
        assert await run(None) == [1, 3, 0]
        assert await run({"vocoder": {"seed": 9}}) == [1, 3, 9]
        assert await run({"thinker": {"seed": 7}, "talker": {"seed": 8}}) == [7, 8, 0]
        assert await run(None) == [1, 3, 0]


# Figures


@pytest.mark.case("B099")
async def test_figures_show_what_runs_and_what_waits() -> None:
    world = ShellWorld(limited(SOLO, max_inflight=1), by_hand=["solo"])
    async with serving(world) as engine:
        streams = [engine.generate("x", request_id=f"r{number}") for number in range(10)]
        backend = world.of("solo")
        await backend.wait_jobs()
        figures = await engine.statistics()
        solo = figures.core.stages["solo"]
        assert (solo.running, solo.queued, figures.core.requests, figures.streams) == (1, 9, 10, 10)
        await engine.abort(["r9"])
        await streams[8].aclose()
        await backend.at(lambda: backend.fail(next(iter(backend.tasks))))
        for done in range(1, 8):
            await backend.wait(lambda done=done: backend.times_told("submit") == done + 1)  # type: ignore[misc]
            await backend.at(lambda: backend.finish(next(iter(backend.tasks))))
        core = await settled(engine)
        assert (core.stages["solo"].running, core.stages["solo"].queued, core.requests) == (0, 0, 0)
        counters = core.counters
        assert (counters.completed, counters.failed, counters.aborted, counters.cancelled) == (7, 1, 1, 1)
        results = [await stream.collect_whatever() for stream in streams]
        assert [result.outcome for result in results] == [
            Outcome.FAILED,
            *[Outcome.COMPLETED] * 7,
            Outcome.ABORTED,
            Outcome.ABORTED,
        ]


@pytest.mark.case("B026")
async def test_an_idle_engine_takes_no_steps() -> None:
    async with serving(ShellWorld(*CHAIN, replicas=4)) as engine:
        await engine.generate("x").collect()
        await settled(engine)
        before = (await engine.statistics()).loop
        for _ in range(200):
            await engine.check_health()
        after = (await engine.statistics()).loop
        assert (after.steps, after.events) == (before.steps, before.events)
        assert after.idle_s > before.idle_s
        assert after.us_per_event > 0


@pytest.mark.case("B041")
async def test_what_a_refused_request_brought_is_released() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        await world.of("solo").at(world.of("solo").die)
        while (await engine.check_health()).is_ready:
            pass
        before = (await engine.statistics()).released_payloads
        assert isinstance(await failure_of(engine.generate("owned")), StageUnavailableError)
        assert (await engine.statistics()).released_payloads == before + 1


# Samples and groups


@pytest.mark.rule("ORCH-INV-114", "ORCH-INV-103")
async def test_samples_come_with_their_index_and_one_run_of_numbers() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        stream = engine.generate("hello", n=3)
        items = [item async for item in stream]
        assert [item.sequence for item in items] == list(range(len(items)))
        for index in range(3):
            own = [item for item in items if item.index == index]
            assert texts(own, "text") == texts(own, "speech") == ["hello"]
            assert finishes(own) == {"text": FinishReason.STOP, "speech": FinishReason.STOP}
        assert [item.request_finished for item in items].index(True) == len(items) - 1
        await settled(engine)


async def test_a_result_has_every_sample() -> None:
    async with serving(ShellWorld(*CHAIN)) as engine:
        result = await engine.generate("hello", n=2).collect()
        assert [sample.index for sample in result.samples] == [0, 1]
        assert result.samples[1].outputs == {"text": Text("hello"), "speech": Text("hello")}
        assert result.samples[1].finish_reasons == result.finish_reasons
        assert result.outputs == result.samples[0].outputs
        assert (await engine.generate("hello").collect()).samples == ()


@pytest.mark.rule("ORCH-INV-114", "ORCH-INV-207")
async def test_one_sample_can_be_aborted() -> None:
    world = ShellWorld(scripts={"slow": (Script(outputs=(Text("half"),), then=Then.HANG),)})
    async with serving(world) as engine:
        stream = engine.generate("slow", request_id="r1", n=2)
        first = [await anext(stream), await anext(stream)]
        assert sorted(item.index for item in first) == [0, 1]
        record = (await engine.abort("r1", samples=[1]))["r1"]
        assert (record.status, record.samples) == (AbortStatus.ABORTED, {1: {"solo": Text("half")}})
        item = await anext(stream)
        assert (item.index, item.finish_reason, item.request_finished) == (1, FinishReason.ABORT, False)
        await engine.abort("r1")
        last = [item async for item in stream]
        assert [(item.index, item.request_finished) for item in last] == [(0, True)]
        assert stream.outcome is Outcome.ABORTED
        await settled(engine)


@pytest.mark.rule("ORCH-INV-207")
async def test_groups_and_everything_can_be_aborted() -> None:
    world = ShellWorld(scripts={"slow": (Script(then=Then.HANG),)})
    async with serving(world) as engine:
        streams = [engine.generate("slow", request_id=f"r{number}", group=f"g{number % 2}") for number in range(4)]
        report = await engine.abort(None, group="g1")
        assert [record.request_id for record in report.records] == ["r1", "r3"]
        assert (await engine.abort(None, group="g1")).records == ()
        report = await engine.abort(None)
        assert [record.request_id for record in report.records] == ["r0", "r2"]
        assert {record.status for record in report.records} == {AbortStatus.ABORTED}
        assert [(await stream.collect()).outcome for stream in streams] == [Outcome.ABORTED] * 4
        assert (await engine.abort(None)).records == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"request_ids": ["a", "b"], "samples": [0]}, "samples: belong to one request"),
        ({"request_ids": None, "samples": [0]}, "samples: belong to one request"),
        ({"request_ids": "a", "group": "g", "samples": [0]}, "samples: belong to one request"),
        ({"request_ids": "a", "samples": [-1]}, "are no indices"),
        ({"request_ids": "a", "samples": []}, "are no indices"),
        ({"request_ids": "a", "samples": "0"}, "are no indices"),
        ({"request_ids": "a", "group": 7}, "group: 7 is no name"),
    ],
)
async def test_samples_and_groups_that_make_no_sense_are_refused(arguments: dict[str, object], message: str) -> None:
    async with serving(ShellWorld()) as engine:
        with pytest.raises(InvalidRequestError, match=message):
            await engine.abort(**arguments)  # type: ignore[arg-type]
        assert (await engine.abort("a", samples=range(2)))["a"].status is AbortStatus.UNKNOWN
