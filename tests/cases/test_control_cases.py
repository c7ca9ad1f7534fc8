"""What went wrong elsewhere when engines were paused, put to sleep and called, and what happens here instead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from podium.core.admission import EngineLimits
from podium.core.effects import AbortStatus, Outcome, ReplyAbort, StartJob, StopJob
from podium.core.lifecycle import BarrierState
from podium.core.operations import CallMethod, Pause, PauseMode, Resume
from podium.errors import (
    KINDS,
    ControlError,
    ControlRejectedError,
    ControlTimeoutError,
    ErrorKind,
    ErrorRecord,
    InvalidRequestError,
    Scope,
    StopUnconfirmedError,
    UnsupportedError,
    WaitTimeoutError,
)
from podium.payloads import Text
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.outputs import OmniResult
from podium.testing.fake_backend import Answer, CallScript, FakeBackend, Script, Then
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import World, guided, lines, make_stage, streaming
from tests.support.shell_world import (
    CALL_FAILS,
    CALL_HANGS,
    ShellWorld,
    ThreadBackend,
    WatchedBackend,
    catch,
    failure_of,
    limited,
    pass_time,
    serving,
    settled,
)

SOLO = make_stage("solo", output="text")
TWO = (make_stage("first", output="text"), make_stage("second", streaming("first"), output="speech"))
NEVER_STOPS = Script(outputs=(Text("x"),), then=Then.HANG, hang_stop=True)
DIFFUSION = msgspec.structs.replace(FakeBackend.capabilities, calls=frozenset({"collective_rpc"}), sleep_levels={})


def told(backend: WatchedBackend) -> list[str]:
    return [one.method for one in list(backend.told)]


async def wait_held(engine: AsyncOmniEngine, count: int = 1) -> None:
    while (await engine.statistics()).core.held < count:
        pass


# Sleeping and pausing


@pytest.mark.case("B013")
@pytest.mark.parametrize("answer", [Answer.FAIL, Answer.UNSUPPORTED, Answer.DIE])
async def test_a_wake_up_that_failed_somewhere_raises_and_is_not_shown_as_done(answer: Answer) -> None:
    world = ShellWorld(*TWO, replicas=2)
    async with serving(world) as engine:
        await engine.sleep(1)
        await world.of("second", 1).script("wake_up", CallScript(then=answer))
        with pytest.raises(ControlError) as caught:
            await engine.wake_up()
        assert (caught.value.stage, caught.value.record.replica) == ("second", 1)
        assert await engine.is_paused()
        held = engine.generate("x")
        await wait_held(engine)
        if answer is not Answer.DIE:
            assert await engine.barriers() == {"first": BarrierState.QUIESCED, "second": BarrierState.WAKING}
            assert (await engine.sleeping())["second"] == {1: ("cache", "weights")}
            with pytest.raises(ControlRejectedError, match="stage 'second' is waking; wake it up first"):
                await engine.resume_generation()
        await engine.wake_up()
        await engine.resume_generation()
        assert (await held.collect()).outcome is Outcome.COMPLETED


@pytest.mark.case("B014")
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_weights_are_not_overwritten_under_running_requests(mode: PauseMode) -> None:
    """Two stages with work; each has confirmed before the pause returns, and is told of no job until the resume."""
    world = ShellWorld(*TWO, by_hand=["first", "second"] if mode is not PauseMode.WAIT else [])
    async with serving(world) as engine:
        running = [engine.generate("x", request_id=f"running{number}") for number in range(4)]
        await world.of("first").wait_told("submit", 4)
        await engine.pause_generation(mode)
        backends = [world.of("first"), world.of("second")]
        assert [backend.paused for backend in backends] == [mode, mode]
        held = [engine.generate("y", request_id=f"held{number}") for number in range(10)]
        await wait_held(engine, 10)
        await engine.collective_rpc("overwrite_weights")
        for backend in backends:
            assert told(backend)[-2:] == ["call pause", "call collective_rpc"]
        await engine.resume_generation()
        await world.of("first").wait_told("submit", 14)
        order = [one.job.request for one in world.of("first").told if one.method == "submit" and one.job is not None]
        assert order[4:] == [stream.request_id for stream in held]
        await engine.abort([stream.request_id for stream in (*running, *held)])
        await settled(engine)


@pytest.mark.case("B016")
async def test_nothing_slips_into_a_stage_that_goes_to_sleep() -> None:
    """Requests come without a pause while the engine sleeps, wakes and works, again and again."""
    world = ShellWorld(limited(SOLO, max_inflight=2), replicas=2)
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        reading: list[asyncio.Task[OmniResult]] = []

        async def submit() -> None:
            for number in range(150):
                reading.append(group.create_task(engine.generate(f"r{number}").collect()))
                await asyncio.sleep(0)

        submitting = group.create_task(submit())
        for _ in range(10):
            await engine.sleep(1)
            await engine.wake_up()
            await engine.resume_generation()
        await submitting
        for number, task in enumerate(reading):
            result = await task
            assert result.outputs == {"text": Text(f"r{number}")}
        for slot in (0, 1):
            state = "call resume"
            for method in told(world.of("solo", slot)):
                if method.startswith("call "):
                    state = method
                assert method != "submit" or state == "call resume"


@pytest.mark.case("B019")
async def test_what_is_woken_by_half_takes_no_work() -> None:
    world = ShellWorld(replicas=2)
    async with serving(world) as engine:
        await engine.sleep(1)
        await engine.wake_up(["weights"])
        assert await engine.sleeping() == {"solo": {0: ("cache",), 1: ("cache",)}}
        assert await engine.barriers() == {"solo": BarrierState.ASLEEP}
        held = engine.generate("x")
        await wait_held(engine)
        with pytest.raises(ControlRejectedError):
            await engine.resume_generation()
        await engine.wake_up(["weights"])
        assert await engine.sleeping() == {"solo": {0: ("cache",), 1: ("cache",)}}, "a tag that is awake"
        await engine.wake_up(["cache"])
        await engine.resume_generation()
        assert (await held.collect()).outcome is Outcome.COMPLETED


@pytest.mark.case("B056")
async def test_whether_requests_are_admitted_can_be_asked_and_a_blocked_one_says_so_in_time() -> None:
    clock = VirtualClock()
    world = ShellWorld(limits=EngineLimits(hold_timeout_s=7.0))
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        await engine.sleep(1)
        await engine.wake_up()
        assert (await engine.is_paused(), await engine.barriers()) == (True, {"solo": BarrierState.QUIESCED})
        forgotten = engine.generate("x")
        await wait_held(engine)
        await pass_time(engine, clock, 7.0)
        error = await failure_of(forgotten)
        assert isinstance(error, WaitTimeoutError)
        assert (error.record.awaited, error.status) == ("admission", 504)
        await engine.resume_generation()
        assert (await engine.generate("x").collect()).outcome is Outcome.COMPLETED


@pytest.mark.case("B056")
@pytest.mark.parametrize("method", ["pause", "resume", "sleep", "wake_up", "update_weights"])
async def test_no_raw_call_goes_past_the_state_of_the_engine(method: str) -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        with pytest.raises(InvalidRequestError, match="use the engine's own method of that kind"):
            await engine.collective_rpc(method)
        assert told(world.of("solo")) == ["load"]


@pytest.mark.case("B108")
@pytest.mark.parametrize("make", [WatchedBackend, ThreadBackend])
async def test_when_a_pause_returns_the_output_of_the_last_step_is_there(make: type[WatchedBackend]) -> None:
    world = ShellWorld(by_hand=["solo"], make_backend={"solo": make})
    async with serving(world) as engine:
        for number in range(20):
            stream = engine.generate("x", request_id=f"r{number}")
            backend = world.of("solo")
            await backend.produce_for(await backend.wait_jobs(), Text("last step"))
            await engine.pause_generation("keep")
            with pytest.raises(StopIteration) as at_once:
                stream.__anext__().send(None)
            assert at_once.value.value.delta == Text("last step")
            await engine.abort(stream.request_id)
            await engine.resume_generation()


@pytest.mark.case("B108")
def test_a_pause_does_not_end_while_a_replica_has_not_said_that_its_step_is_over() -> None:
    world = World(SOLO, replicas=2)
    world.submit()
    world.control(Pause(PauseMode.KEEP))
    first, second = world.calls()
    assert world.answer(second) == []
    world.produce("solo", "last step")
    assert [lines([effect])[0] for effect in world.answer(first)] == ["answer 1: solo[0] ok, solo[1] ok"]
    assert world.emitted() == ["last step"]


# Calls


@pytest.mark.case("B018")
async def test_a_reset_reaches_every_live_replica_of_the_engines_that_have_a_cache() -> None:
    world = ShellWorld(*TWO, replicas=2, capabilities={"second": DIFFUSION})
    async with serving(world) as engine:
        report = await engine.reset_prefix_cache()
        assert (report["first"], report.not_applicable, report.is_true) == ([True, True], ("second",), True)
        assert [world.of("first", slot).times_told("call reset_prefix_cache") for slot in (0, 1)] == [1, 1]
        assert world.of("second").times_told("call reset_prefix_cache") == 0
        await world.of("first", 1).script("reset_prefix_cache", CallScript(value=False), CALL_FAILS)
        report = await engine.reset_prefix_cache()
        assert (report["first"], report.is_true) == ([True, False], False)
        with pytest.raises(ControlError, match="'reset_prefix_cache' failed at stage 'first'"):
            await engine.reset_prefix_cache()
        with pytest.raises(UnsupportedError):
            await engine.reset_prefix_cache(stages=["second"])


@pytest.mark.case("B045")
async def test_a_call_that_fails_at_the_third_of_four_says_so_and_has_the_others() -> None:
    world = ShellWorld(*TWO, replicas=2)
    async with serving(world) as engine:
        for method in ("add_lora", "update_weights"):
            await world.of("second", 0).script(method, CALL_FAILS)
        with pytest.raises(ControlError) as caught:
            await engine.add_lora("tone", "/x")
        assert (caught.value.stage, caught.value.record.replica) == ("second", 0)
        assert [one.ok for one in caught.value.results] == [True, True, False, True]  # type: ignore[attr-defined]
        assert (await engine.generate("x").collect()).outcome is Outcome.COMPLETED, "an adapter is no state of a stage"

        await engine.pause_generation()
        await engine.begin_weight_update(1)
        with pytest.raises(ControlError):
            await engine.update_weights("load")
        held = engine.generate("x")
        await wait_held(engine)
        for stages in (["first"], ["second"], None):
            with pytest.raises(ControlRejectedError):
                await engine.resume_generation(stages=stages)
        await engine.roll_back_weight_update("restore")
        await engine.resume_generation()
        assert (await held.collect()).outcome is Outcome.COMPLETED
        assert await engine.weights_versions() == {"first": 0, "second": 0}


@pytest.mark.case("B053")
async def test_it_is_not_paused_before_the_last_stage_says_so() -> None:
    world = ShellWorld(*TWO)
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        await world.of("second").script("pause", CALL_HANGS)
        pausing = group.create_task(engine.pause_generation("keep"))
        await world.of("second").wait_told("call pause")
        while not await engine.is_paused(["first"]):
            pass
        assert not await engine.is_paused()
        assert not pausing.done()
        await world.of("second").release()
        await pausing
        assert await engine.is_paused()
        await engine.resume_generation()


@pytest.mark.case("B053")
def test_abort_all_means_every_live_id_with_companions_and_children() -> None:
    world = World(*guided())
    world.submit("guided", companions={"negative": "ugly"})
    world.submit("many", samples=3)
    world.control(Pause(PauseMode.KEEP))
    world.answer_all()
    world.submit("held", companions={"negative": "ugly"})
    started = {effect.job for effect in world.effects if isinstance(effect, StartJob)}
    assert len(started) == 5
    effects = world.abort_all()
    assert {effect.job for effect in effects if isinstance(effect, StopJob)} == started
    for job in started:
        world.stopped(job.stage, request_id=job.request, sibling=job.sibling)
    (reply,) = [effect for effect in world.effects if isinstance(effect, ReplyAbort)]
    assert {record.request_id: record.status for record in reply.records} == dict.fromkeys(
        ["guided", "many", "held"], AbortStatus.ABORTED
    )
    world.control(Resume())
    world.answer_all()
    assert world.core.statistics().is_idle


@pytest.mark.case("B100")
@pytest.mark.parametrize(
    "kind",
    [ErrorKind.UNSUPPORTED, ErrorKind.STALE_VERSION, ErrorKind.CONTROL_REJECTED, ErrorKind.CLEANUP_PENDING],
)
async def test_a_refusal_is_an_error_of_its_own_kind_and_says_whether_to_retry(kind: ErrorKind) -> None:
    def refuse(arguments: Mapping[str, object]) -> object:
        raise ErrorRecord(kind=kind, scope=Scope.REPLICA, message="not now").to_exception()

    world = ShellWorld()
    async with serving(world) as engine:
        world.of("solo").methods["collective_rpc"] = refuse
        error = await catch(engine.collective_rpc("m"))
        assert type(error) is KINDS[kind].exception
        assert (error.stage, error.record.replica, str(error)) == ("solo", 0, "not now")
        assert error.record.is_retryable is (kind is ErrorKind.CLEANUP_PENDING)


@pytest.mark.case("B102")
async def test_a_silent_stage_is_named_in_time_and_its_late_answer_is_nobodys() -> None:
    clock = VirtualClock()
    world = ShellWorld(*TWO)
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine, asyncio.TaskGroup() as group:
        silent = world.of("second")
        await silent.script("collective_rpc", CALL_HANGS, CallScript(value="of the second call", then=Answer.HANG))
        calling = group.create_task(catch(engine.collective_rpc("m", timeout_s=0.125)))
        await silent.wait_told("call collective_rpc")
        await pass_time(engine, clock, 0.0625)
        assert not calling.done()
        await pass_time(engine, clock, 0.0625)
        error = await calling
        assert isinstance(error, ControlTimeoutError)
        assert isinstance(error, TimeoutError)
        assert str(error) == "replica 0 of stage 'second' did not answer 'collective_rpc' in time"
        assert (await engine.statistics()).open_calls == 0
        next_call = group.create_task(engine.collective_rpc("m", stages=["second"]))
        await silent.wait_told("call collective_rpc", 2)
        await silent.release()
        assert (await next_call)["second"] == ["of the second call"]
        core = (await settled(engine)).counters
        assert core.dropped == 1


# Aborts in the midst of control


@pytest.mark.case("B015")
async def test_after_a_confirmed_abort_no_output_of_old_weights_comes() -> None:
    world = ShellWorld(*TWO, by_hand=["first", "second"])
    async with serving(world) as engine:
        stream = engine.generate("x", request_id="r")
        first, second = world.of("first"), world.of("second")
        await first.produce_for(await first.wait_jobs(), Text("old"))
        jobs = [*await first.wait_jobs(), *await second.wait_jobs()]
        report = await engine.abort("r")
        assert report["r"].status is AbortStatus.ABORTED
        assert [backend.times_told("stop") for backend in (first, second)] == [1, 1]
        core = (await engine.statistics()).core
        assert sum(replica.inflight for stage in core.stages.values() for replica in stage.replicas) == 0
        await engine.pause_generation("keep")
        await engine.begin_weight_update(1)
        await engine.update_weights("load")
        await engine.commit_weight_update()
        await engine.resume_generation()
        items = [item async for item in stream]
        assert {item.weights_version for item in items} == {0}
        assert {job.request for job in jobs} == {"r"}
        assert (await engine.abort([])).records == ()


@pytest.mark.case("B015")
async def test_a_pause_does_not_hide_an_abort_that_was_not_confirmed() -> None:
    """The stop hangs: the abort raises with the id, and the pause that waits for it names the stage."""
    clock = VirtualClock()
    world = ShellWorld(scripts={"x": (NEVER_STOPS,)})
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine, asyncio.TaskGroup() as group:
        stream = engine.generate("x", request_id="r")
        await anext(stream)
        aborting = group.create_task(catch(engine.abort("r", timeout_s=3.0)))
        await world.of("solo").wait_told("stop")
        pausing = group.create_task(catch(engine.pause_generation("abort", timeout_s=3.0)))
        while (await engine.barriers())["solo"] is not BarrierState.CLOSING:
            pass
        await pass_time(engine, clock, 3.0)
        error = await aborting
        assert isinstance(error, StopUnconfirmedError)
        assert error.unconfirmed == ("r",)
        error = await pausing
        assert isinstance(error, ControlTimeoutError)
        assert (error.stage, error.record.awaited) == ("solo", "the end of its jobs")
        assert not await engine.is_paused()
        await world.of("solo").at(world.of("solo").release_stops)
        await engine.abort("r")
        await engine.pause_generation("abort")
        assert await engine.is_paused()


@pytest.mark.case("B022")
def test_control_calls_are_bounded() -> None:
    world = World(SOLO, limits=EngineLimits(max_control_calls=8))
    for _ in range(20):
        world.control(CallMethod("m"), timeout_s=1.0)
    assert world.core.statistics().control_calls == 8
    world.wait(1.0)
    assert world.core.statistics().is_idle
