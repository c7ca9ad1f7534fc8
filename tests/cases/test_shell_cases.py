"""What went wrong elsewhere, and what a whole engine does instead: real threads and loops, fake stages."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import pytest

from podium.core.admission import EngineLimits
from podium.core.effects import AbortStatus, Outcome
from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.graph import EdgeMode, Source
from podium.core.identity import JobKey, Payload
from podium.errors import (
    Category,
    DeadlineExceededError,
    ErrorKind,
    InvalidRequestError,
    OverloadedError,
    RequestError,
    Scope,
    StageFailedError,
    StageUnavailableError,
)
from podium.payloads import Text
from podium.ports.stage_backend import StageTask
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.request_stream import RequestStream
from podium.testing.fake_backend import FakeOptions, Loading, Script, Then
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import make_stage, streaming
from tests.support.shell_world import (
    CHAIN,
    GUARD_S,
    SCRIPTS,
    ShellWorld,
    ThreadBackend,
    WatchedBackend,
    catch,
    complaints,
    failure_of,
    finishes,
    limited,
    nothing_left,
    serving,
    settled,
    texts,
    until,
)

SOLO = make_stage("solo", output="text")


async def wait_not_ready(engine: AsyncOmniEngine) -> None:
    while (await engine.check_health()).is_ready:
        pass


# Errors


@pytest.mark.case("B001")
async def test_the_death_of_one_replica_costs_its_requests_and_no_more() -> None:
    world = ShellWorld(limited(SOLO, max_inflight=2), replicas=2, by_hand=["solo"])
    async with serving(world) as engine:
        dying, living = world.of("solo", 0), world.of("solo", 1)
        streams = [engine.generate("x", request_id=f"r{number}") for number in range(4)]
        await dying.wait_jobs(2)
        bound = {job.request for job in await living.wait_jobs(2)}
        await dying.at(dying.die)
        for stream in streams:
            if stream.request_id not in bound:
                error = await failure_of(stream)
                assert isinstance(error, StageUnavailableError)
                assert error.record.kind is ErrorKind.REPLICA_LOST
                assert (error.record.scope, error.record.replica) == (Scope.REPLICA, 0)
        assert (await engine.check_health()).is_ready
        new = engine.generate("x", request_id="new")
        await living.finish_all(Text("done"))
        assert new.request_id not in bound
        await until(lambda: living.times_told("submit") == 3)
        await living.finish_all(Text("done"))
        for stream in [*(one for one in streams if one.request_id in bound), new]:
            assert (await stream.collect()).outputs == {"text": Text("done")}


@pytest.mark.case("B001")
async def test_without_a_replica_only_those_fail_that_need_the_stage() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        both, text = engine.generate("half"), engine.generate("half", outputs=["text"])
        await anext(both)
        await anext(text)
        await world.of("vocoder").at(world.of("vocoder").die)
        assert isinstance(await failure_of(both), StageUnavailableError)
        assert (await anext(text)).delta == Text("way")
        await text.aclose()
        assert (await engine.generate("x", outputs=["text"]).collect()).outcome is Outcome.COMPLETED


@pytest.mark.case("B002")
@pytest.mark.parametrize("where", ["thinker", "talker", "vocoder"])
async def test_one_failed_request_of_many_ends_and_the_others_too(where: str) -> None:
    """Whatever the stage at which it failed."""

    class Picky(WatchedBackend):
        def submit(self, task: StageTask) -> None:
            if task.job.request == "bad":
                raise LookupError("not this one")
            super().submit(task)

    world = ShellWorld(*CHAIN, make_backend={where: Picky})
    async with serving(world) as engine:
        streams = [engine.generate(f"p{n}", request_id="bad" if n == 7 else f"r{n}") for n in range(16)]
        results = await asyncio.gather(*(stream.collect_whatever() for stream in streams))
        assert [result.outcome for result in results].count(Outcome.COMPLETED) == 15
        bad = results[7]
        assert isinstance(bad.error, StageFailedError)
        assert bad.error.stage == where
        assert (await settled(engine)).counters.failed == 1


@pytest.mark.case("B011")
@pytest.mark.parametrize("prompt", ["refuse", "raise", "fail"])
async def test_a_bad_request_hurts_itself_only(prompt: str) -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        running = [engine.generate(f"p{number}") for number in range(10)]
        with pytest.raises(InvalidRequestError):
            engine.generate({"embeds": [1, 2]})
        error = await failure_of(engine.generate(prompt))
        assert error.record.scope is Scope.REQUEST
        assert error.record.category is (Category.CLIENT if prompt == "refuse" else Category.SERVER)
        assert (await engine.check_health()).is_ready
        for number, stream in enumerate(running):
            assert (await stream.collect()).outputs["speech"] == Text(f"p{number}")


@pytest.mark.case("B032")
async def test_nothing_stays_in_progress_whatever_is_injected() -> None:
    """Memory runs out in a stage, a replica dies, jobs fail: each request ends, and health says how things are."""

    class Greedy(WatchedBackend):
        def submit(self, task: StageTask) -> None:
            if task.job.request.startswith("big"):
                raise MemoryError
            super().submit(task)

    world = ShellWorld(*CHAIN, make_backend={"talker": Greedy})
    async with serving(world) as engine:
        prompts = ["x", "fail", "refuse", "raise"] * 10
        streams = [
            engine.generate(prompt, request_id=f"big{n}" if n % 3 == 0 else f"r{n}") for n, prompt in enumerate(prompts)
        ]
        results = await asyncio.gather(*(stream.collect_whatever() for stream in streams))
        assert all((result.error is None) == (result.outcome is Outcome.COMPLETED) for result in results)
        assert (await engine.generate("after").collect()).outcome is Outcome.COMPLETED
        assert (await engine.check_health()).is_ready
        stream = engine.generate("half")
        await anext(stream)
        await world.of("thinker").at(world.of("thinker").die)
        assert isinstance(await failure_of(stream), StageUnavailableError)
        await wait_not_ready(engine)
        assert (await engine.check_health()).unavailable_stages == ("thinker",)


@pytest.mark.case("B068")
@pytest.mark.parametrize("kind", ["finish", "failure", "abort"])
async def test_a_deadline_that_meets_an_end_resolves_the_waiter_once(kind: str) -> None:
    """Both come in one step of the loop: the end was first in the inbox."""
    clock = VirtualClock()
    world = ShellWorld(by_hand=["solo"])
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        stream = engine.generate("x", request_id="r1", deadline_s=5)
        backend = world.of("solo")
        (job,) = await backend.wait_jobs()

        def both() -> None:
            clock.advance(5)
            if kind == "finish":
                backend.finish(job, FinishReason.STOP, Text("just in time"))
            elif kind == "failure":
                backend.fail(job)

        if kind == "abort":
            clock.advance(5)
            report = await engine.abort("r1")
            assert report["r1"].status in {AbortStatus.ABORTED, AbortStatus.FAILED}
        else:
            await backend.at(both)
        result = await stream.collect_whatever()
        expected = {"finish": Outcome.COMPLETED, "failure": Outcome.FAILED, "abort": Outcome.ABORTED}
        assert result.outcome is expected[kind]
        assert (await engine.abort("r1"))["r1"].status is AbortStatus.ALREADY_ENDED
        counters = (await settled(engine)).counters
        assert counters.completed + counters.failed + counters.aborted == 1


@pytest.mark.case("B068")
async def test_an_end_after_the_deadline_comes_too_late() -> None:
    clock = VirtualClock()
    world = ShellWorld(by_hand=["solo"])
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        stream = engine.generate("x", request_id="r1", deadline_s=5)
        backend = world.of("solo")
        (job,) = await backend.wait_jobs()
        clock.advance(5)
        await engine.abort([])
        await backend.at(lambda: backend.put(JobOutput(job, 0, (Text("late"),), Finish(FinishReason.STOP))))
        assert isinstance(await failure_of(stream), DeadlineExceededError)
        assert [item async for item in stream] == []
        assert (await engine.abort("r1"))["r1"].status is AbortStatus.ALREADY_ENDED


@pytest.mark.case("B079")
async def test_an_error_comes_through_one_channel() -> None:
    """To the one who reads the stream; nothing is left for the loop, or the garbage collector, to complain about."""
    with complaints("asyncio") as heard:
        async with serving(ShellWorld(*CHAIN)) as engine:
            unread = [engine.generate("fail") for _ in range(20)]
            assert isinstance(await failure_of(engine.generate("fail")), StageFailedError)
            await settled(engine)
            unread.clear()
            gc.collect()
    assert heard == []


@pytest.mark.case("B107")
async def test_who_is_to_blame_is_said_by_who_found_it_not_by_its_class() -> None:
    """The same class of exception: 4xx before admission, 5xx out of the inside of a stage."""

    class Confused(WatchedBackend):
        async def next_outputs(self) -> Sequence[object]:  # type: ignore[override]
            await super().next_outputs()
            raise InvalidRequestError.because("the engine's own tensor has a wrong shape")

    world = ShellWorld(make_backend={"solo": Confused})
    async with serving(world) as engine:
        with pytest.raises(InvalidRequestError) as caught:
            engine.generate("x", params={"solo": {"temperatur": 1}})
        assert caught.value.status == 400
        assert world.of("solo").times_told("submit") == 0
        error = await failure_of(engine.generate("x"))
        assert (error.status, error.record.category) == (503, Category.SERVER)
        assert str(error) == "replica 0 of stage 'solo' died: InvalidRequestError", "its words are for the log"
    async with serving(ShellWorld()) as engine:
        assert (await failure_of(engine.generate("raise"))).status == 500


@pytest.mark.case("B111")
async def test_without_a_first_stage_the_error_says_so() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        await world.of("thinker").at(world.of("thinker").die)
        await wait_not_ready(engine)
        error = await failure_of(engine.generate("x"))
        assert isinstance(error, StageUnavailableError)
        assert error.record.kind is ErrorKind.STAGE_UNAVAILABLE
        assert str(error) == "stage 'thinker' has no live replica; retry when it is back"


# Routing


@pytest.mark.case("B008")
async def test_ten_thousand_requests_get_their_own() -> None:
    """64 at a time, through three stages of two replicas each, one of them in threads: no content crosses."""
    world = ShellWorld(*CHAIN, replicas=2, make_backend={"talker": ThreadBackend})
    count = 10_000
    async with serving(world) as engine:
        numbers = iter(range(count))
        wrong: list[int] = []
        done = 0

        async def call_again() -> None:
            nonlocal done
            for number in numbers:
                result = await engine.generate(f"content {number}", request_id=f"r{number}").collect()
                whole = Text(f"content {number}")
                if result.outputs != {"text": whole, "speech": whole} or result.request_id != f"r{number}":
                    wrong.append(number)
                done += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(call_again())
        assert (wrong, done) == ([], count)
        core = await settled(engine)
        assert core.counters.completed == count
        assert core.counters.dropped == 0


@pytest.mark.case("B062")
@pytest.mark.parametrize("mode", list(EdgeMode))
async def test_streaming_on_and_off_give_the_same(mode: EdgeMode) -> None:
    stages = (
        make_stage("a"),
        make_stage("b", Source("a", mode)),
        make_stage("c", Source("b", mode), output="text"),
    )
    words = tuple(Text(f"{number} ") for number in range(20))
    async with serving(ShellWorld(*stages, scripts={"count": words})) as engine:
        result = await engine.generate("count").collect()
        assert result.outputs == {"text": Text("".join(f"{number} " for number in range(20)))}


@pytest.mark.case("B064")
async def test_first_chunks_wait_for_a_stage_that_is_slow_to_begin() -> None:
    """The first stage is done before the second has a place for the job; nothing of it is lost."""
    second = limited(make_stage("second", streaming("first"), output="text"), max_inflight=1)
    words = tuple(Text(f"{number} ") for number in range(50))
    world = ShellWorld(make_stage("first"), second, scripts={**SCRIPTS, "count": words, "block": (Text("x"),)})

    class Occupied(WatchedBackend):
        def submit(self, task: StageTask) -> None:
            super().submit(task)

    world.make_backend = {"second": Occupied}
    async with serving(world) as engine:
        blocker = engine.generate("half", request_id="blocker")
        await world.of("second").wait_told("submit")
        stream = engine.generate("count")
        first = world.of("first")
        await first.wait(lambda: first.times_told("submit") == 2 and len(first.tasks) == 1)
        assert world.of("second").times_told("submit") == 1
        await engine.abort("blocker")
        assert texts([item async for item in stream]) == [f"{number} " for number in range(50)]
        assert (await blocker.collect()).outcome is Outcome.ABORTED


@pytest.mark.case("B096")
async def test_callers_with_equal_ids_one_after_the_other_get_their_own() -> None:
    """Two loops use the same id in turn; each gets its own, or is told that the id is taken."""
    world = ShellWorld(*CHAIN)
    outcomes: list[str] = []

    async def use(engine: AsyncOmniEngine, name: str) -> None:
        for number in range(50):
            try:
                result = await engine.generate(f"{name}{number}", request_id="same").collect()
            except RequestError as error:
                outcomes.append(error.record.kind)
            else:
                assert result.outputs["speech"] == Text(f"{name}{number}")
                outcomes.append("own")

    async with serving(world) as engine:
        threads = [threading.Thread(target=asyncio.run, args=(use(engine, name),)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        await until(lambda: not any(thread.is_alive() for thread in threads))
    assert len(outcomes) == 150
    assert set(outcomes) <= {"own", ErrorKind.DUPLICATE_REQUEST_ID}
    assert "own" in outcomes


# Streaming


WAYS_TO_END = {
    "at the end of its input": (Text("a"),),
    "of its own, early": (Script(outputs=(Text("a"),), then=Then.FINISH),),
    "without any output": (Script(),),
}


@pytest.mark.case("B023")
@pytest.mark.parametrize("way", WAYS_TO_END)
async def test_the_last_stage_hears_of_the_end_in_whatever_way_it_came(way: str) -> None:
    scripts = {"x": (Script(outputs=(WAYS_TO_END[way][0],)),)}
    async with serving(ShellWorld(*CHAIN, scripts=scripts)) as engine:
        items = [item async for item in engine.generate("x")]
        assert finishes(items) == {"text": FinishReason.STOP, "speech": FinishReason.STOP}
        assert items[-1].request_finished
        await settled(engine)


@pytest.mark.case("B023")
async def test_an_aborted_stage_in_the_middle_ends_the_last() -> None:
    world = ShellWorld(*CHAIN, by_hand=["talker"])
    async with serving(world) as engine:
        stream = engine.generate("x")
        talker = world.of("talker")
        (job,) = await talker.wait_jobs()
        await talker.at(lambda: talker.finish(job, FinishReason.ABORT, Text("a")))
        items = [item async for item in stream]
        assert finishes(items) == {"text": FinishReason.STOP, "speech": FinishReason.ABORT}
        assert stream.outcome is Outcome.ABORTED
        await settled(engine)


# Abort


@pytest.mark.case("B033")
async def test_an_abort_frees_the_only_slot() -> None:
    world = ShellWorld(limited(SOLO, max_inflight=1))
    async with serving(world) as engine:
        for number in range(20):
            hanging = engine.generate("half", request_id=f"hanging{number}")
            await anext(hanging)
            waiting = engine.generate("next")
            await engine.abort(f"hanging{number}")
            assert (await waiting.collect()).outputs == {"text": Text("next")}


@pytest.mark.case("B033")
async def test_a_slot_that_is_not_given_back_is_declared_stuck() -> None:
    clock = VirtualClock()
    world = ShellWorld(
        limited(SOLO, max_inflight=1, stop_timeout_s=5, stuck_timeout_s=5),
        replicas=2,
        scripts={**SCRIPTS, "stuck": (Script(outputs=(Text("x"),), then=Then.HANG, hang_stop=True),)},
    )
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        stuck = engine.generate("stuck", request_id="stuck")
        await anext(stuck)
        await stuck.aclose()
        for _ in range(2):
            await engine.abort([])
            clock.advance(5)
        await engine.abort([])
        replicas = (await engine.statistics()).core.stages["solo"].replicas
        assert [replica.slot for replica in replicas] == [1], "the stuck one is gone"
        assert (await engine.generate("x").collect()).outcome is Outcome.COMPLETED


@pytest.mark.case("B035")
async def test_a_queued_request_that_is_deleted_never_starts() -> None:
    world = ShellWorld(limited(SOLO, max_inflight=1))
    async with serving(world) as engine:
        running = engine.generate("half", request_id="running")
        await anext(running)
        queued = engine.generate("x", request_id="queued")
        await engine.abort([])
        assert queued.outcome is None
        assert (await engine.statistics()).core.stages["solo"].queued == 1
        report = await engine.abort("queued")
        assert report["queued"].status is AbortStatus.ABORTED
        result = await queued.collect()
        assert result.timeline["solo"].started_at is None
        assert (await engine.abort("running"))["running"].partials == {"solo": Text("half way")}
        assert world.of("solo").times_told("submit") == 1
        assert (await running.collect()).timeline["solo"].started_at is not None


# Performance


@pytest.mark.case("B036")
async def test_a_limit_of_the_engine_refuses_the_excess_and_frees_with_each_end() -> None:
    world = ShellWorld(by_hand=["solo"], limits=EngineLimits(max_requests=16))
    async with serving(world) as engine:
        backend = world.of("solo")
        for _ in range(3):
            streams = [engine.generate("x") for _ in range(100)]
            results = [await failure_of(stream) for stream in streams[16:]]
            assert {type(error) for error in results} == {OverloadedError}
            await backend.wait(lambda: len(backend.tasks) == 16)
            jobs = await backend.wait_jobs(16)
            await backend.at(lambda jobs=jobs: backend.fail(jobs[0]))  # type: ignore[misc]
            await engine.abort(streams[1].request_id)
            await streams[2].aclose()
            await backend.finish_all()
            outcomes = [(await stream.collect_whatever()).outcome for stream in streams[:16]]
            assert outcomes.count(Outcome.COMPLETED) == 13
            await settled(engine)


class Gated(ThreadBackend):
    """Holds its thread at every job until the gate is open."""

    gate = threading.Event()

    def submit(self, task: StageTask) -> None:
        self._tell("begin")
        assert self.gate.wait(GUARD_S)
        super().submit(task)


@pytest.mark.case("B067")
async def test_slow_preparation_holds_up_nobody_else() -> None:
    """A stage's thread computes; requests that do not need it, aborts and health go on, and its order is kept."""
    Gated.gate.clear()
    stages = (make_stage("slow", output="slow"), make_stage("quick", output="quick"))
    world = ShellWorld(*stages, make_backend={"slow": Gated})
    async with serving(world) as engine:
        held = [engine.generate(f"p{number}", outputs=["slow"]) for number in range(20)]
        await until(lambda: world.of("slow").times_told("begin") == 1)
        for number in range(50):
            result = await engine.generate(f"q{number}", outputs=["quick"]).collect()
            assert result.outputs == {"quick": Text(f"q{number}")}
            assert (await engine.check_health()).is_ready
        assert all(stream.outcome is None for stream in held)
        Gated.gate.set()
        for number, stream in enumerate(held):
            assert (await stream.collect()).outputs == {"slow": Text(f"p{number}")}
        told = [one.inputs for one in world.of("slow").told if one.method == "submit"]
        assert told == [(Text(f"p{number}"),) for number in range(20)], "in the order of their submission"


# Start and shutdown


@pytest.mark.case("B022")
@pytest.mark.case("B038")
async def test_a_shutdown_under_load_is_bounded_and_leaves_nothing() -> None:
    world = ShellWorld(*CHAIN, replicas=2, scripts={**SCRIPTS, "slow": (Script(then=Then.HANG, hang_stop=True),)})
    with nothing_left(), complaints("podium") as heard:
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            streams = [engine.generate(("half", "slow", "x")[number % 3]) for number in range(90)]
            waiters = [catch(engine.abort([streams[1].request_id])) for _ in range(3)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(waiter) for waiter in waiters]
                await until(lambda: any(world.of("thinker", slot).times_told("stop") for slot in (0, 1)))
                await engine.shutdown(10)
            assert all(isinstance(task.result(), RequestError) for task in tasks)
            results = [await stream.collect_whatever() for stream in streams]
            assert {result.outcome for result in results} <= {Outcome.COMPLETED, Outcome.FAILED}
            await engine.shutdown(10)
    assert heard == []
    assert all(backend.told[-1].method == "close" for backend in world.backends.values())


@pytest.mark.case("B072")
@pytest.mark.parametrize("load", [Loading.FAIL, Loading.HANG])
async def test_a_third_stage_that_fails_takes_the_first_two_down(load: Loading) -> None:
    stages = (*CHAIN[:2], limited(CHAIN[2], start_timeout_s=0.02))
    world = ShellWorld(*stages, make_backend={"vocoder": lambda stage, _: ThreadBackend(stage, FakeOptions(load=load))})
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        with pytest.raises(Exception, match="stage 'vocoder' did not start"):
            await engine.start()
    assert [world.of(stage.name).told[-1].method for stage in stages] == ["close"] * 3


@pytest.mark.case("B044")
async def test_health_is_right_in_both_directions() -> None:
    world = ShellWorld(*CHAIN, replicas=2)
    async with serving(world) as engine:
        await world.of("talker", 0).at(world.of("talker", 0).die)
        while len((await engine.statistics()).core.stages["talker"].replicas) == 2:
            pass
        assert (await engine.check_health()).is_ready, "[dead, alive]"
        await world.of("vocoder", 1).at(world.of("vocoder", 1).die)
        while len((await engine.statistics()).core.stages["vocoder"].replicas) == 2:
            pass
        assert (await engine.check_health()).is_ready, "[alive, dead]"
        await world.of("talker", 1).at(world.of("talker", 1).die)
        await wait_not_ready(engine)
        assert (await engine.check_health()).unavailable_stages == ("talker",), "[dead, dead]"


@pytest.mark.case("B041")
async def test_whatever_a_refused_request_brought_is_released() -> None:
    """Refused for each reason that depends on the engine: no replica, a live id, no room, a closed gate."""
    world = ShellWorld(*CHAIN, limits=EngineLimits(max_requests=1))
    async with serving(world) as engine:
        open_one = engine.generate("half", request_id="same")
        await anext(open_one)

        async def released_by(request_id: str | None = None) -> tuple[int, ErrorKind]:
            before = (await engine.statistics()).released_payloads
            error = await failure_of(engine.generate("owned", request_id=request_id))
            return (await engine.statistics()).released_payloads - before, error.record.kind

        assert await released_by("same") == (1, ErrorKind.DUPLICATE_REQUEST_ID)
        assert await released_by() == (1, ErrorKind.OVERLOADED)
        await open_one.aclose()
        await settled(engine)
        await engine.pause_generation("wait", held="refuse")
        assert await released_by() == (1, ErrorKind.STAGE_UNAVAILABLE)
        await engine.resume_generation()
        await world.of("thinker").at(world.of("thinker").die)
        await wait_not_ready(engine)
        assert await released_by() == (1, ErrorKind.STAGE_UNAVAILABLE)


# Memory


class Forgetful(WatchedBackend):
    """Keeps no record of its calls, so that what grows is not the test's own."""

    def __init__(self, stage: str, options: FakeOptions) -> None:
        super().__init__(stage, options)
        self.told = deque(maxlen=10)


async def aborts(engine: AsyncOmniEngine, number: int) -> None:
    stream = engine.generate(("half", "hang", "x")[number % 3], request_id=f"r{number}")
    if number % 2 and number % 3 != 1:
        await anext(stream)
    await engine.abort(f"r{number}")
    await stream.collect_whatever()


async def leaves(engine: AsyncOmniEngine, number: int) -> None:
    stream: RequestStream | None = engine.generate(("half", "hang")[number % 2])
    assert stream is not None
    if number % 2 == 0:
        await anext(stream)
    if number % 3:
        await stream.aclose()
    stream = None


async def fails(engine: AsyncOmniEngine, number: int) -> None:
    await engine.generate(("fail", "refuse", "raise")[number % 3]).collect_whatever()


@pytest.mark.rule("ORCH-INV-213")
@pytest.mark.case("B027")
@pytest.mark.case("B028")
@pytest.mark.parametrize(("end", "count"), [(aborts, 10_000), (leaves, 4_000), (fails, 4_000)])
async def test_ten_thousand_requests_that_end_early_leave_nothing(
    end: Callable[[AsyncOmniEngine, int], Awaitable[None]], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Every table is as it was, at the core, at callers, at stages; and the number of living objects too."""
    caplog.set_level(logging.CRITICAL + 1, "podium.worker")  # records that pytest keeps would count as living
    world = ShellWorld(
        *CHAIN,
        make_backend=dict.fromkeys((stage.name for stage in CHAIN), Forgetful),
        limits=EngineLimits(max_remembered=64),
    )
    with complaints("podium"):
        async with serving(world) as engine:

            async def run(first: int, count: int) -> int:
                """Let so many requests end, 32 at a time; how many objects live afterwards."""
                numbers = iter(range(first, first + count))

                async def call_again() -> None:
                    for number in numbers:
                        await end(engine, number)

                async with asyncio.TaskGroup() as group:
                    for _ in range(32):
                        group.create_task(call_again())
                await settled(engine)
                gc.collect()
                return len(gc.get_objects())

            before = await run(0, 500)
            after = await run(500, count)
            figures = await engine.statistics()
            assert (figures.streams, figures.open_calls, figures.inbox_depth) == (0, 0, 0)
            core = figures.core
            assert (core.requests, core.held, core.aborting, core.abort_calls, core.timers) == (0, 0, 0, 0, 0)
            assert core.remembered <= 64
            assert all(stage.queued == stage.running == stage.buffered == 0 for stage in core.stages.values())
            assert all(not replica.inflight for stage in core.stages.values() for replica in stage.replicas)
            for stage in CHAIN:
                assert len(world.of(stage.name).tasks) == 0
            assert after - before < 500, "one object per request would be thousands"


class Slow(WatchedBackend):
    """Counts what it was asked to do for each request."""

    def __init__(self, stage: str, options: FakeOptions) -> None:
        super().__init__(stage, options)
        self.asked: dict[str, int] = {}

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        self.asked[job.request] = self.asked.get(job.request, 0) + 1
        super().feed(job, inputs)


@pytest.mark.case("B025")
async def test_chunks_in_any_order_reach_the_next_stage_in_theirs() -> None:
    """A delivers its end before its last chunks; B is not held up by it."""
    world = ShellWorld(*CHAIN, by_hand=["thinker"], make_backend={"talker": Slow})
    async with serving(world) as engine:
        a, b = engine.generate("x", request_id="a"), engine.generate("x", request_id="b")
        thinker = world.of("thinker")
        jobs = {job.request: job for job in await thinker.wait_jobs(2)}

        def deliver() -> None:
            thinker.put(JobOutput(jobs["a"], 2, (Text("2"),), Finish(FinishReason.STOP)))
            thinker.put(JobOutput(jobs["b"], 0, (Text("b"),), Finish(FinishReason.STOP)))
            thinker.put(JobOutput(jobs["a"], 1, (Text("1"),)))

        await thinker.at(deliver)
        assert (await b.collect()).outputs == {"text": Text("b"), "speech": Text("b")}
        assert a.outcome is None
        await thinker.at(lambda: thinker.put(JobOutput(jobs["a"], 0, (Text("0"), Text("1"), Text("2")))))
        assert (await a.collect()).outputs == {"text": Text("012"), "speech": Text("012")}
