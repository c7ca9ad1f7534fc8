"""The life of an engine: its start, its end, its death, and callers in other loops; nothing is left of any of it."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from podium.core.effects import Outcome
from podium.errors import (
    EngineStoppedError,
    ErrorKind,
    InvalidRequestError,
    StartError,
    StopUnconfirmedError,
    WaitTimeoutError,
)
from podium.payloads import Text
from podium.runtime import async_omni_engine
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.request_stream import RequestStream
from podium.testing.fake_backend import FakeBackend, FakeOptions, Loading, Script, Then
from tests.support.core_world import make_stage
from tests.support.shell_world import (
    CHAIN,
    GUARD_S,
    ShellWorld,
    ThreadBackend,
    WatchedBackend,
    break_core,
    catch,
    complaints,
    failure_of,
    limited,
    nothing_left,
    serving,
    settled,
    turns,
    until,
)

SOLO = make_stage("solo", output="text")


# The engine's own death


@pytest.mark.rule("ORCH-INV-203", "ORCH-INV-304")
@pytest.mark.case("B032")
async def test_a_broken_loop_is_heard_by_everybody(caplog: pytest.LogCaptureFixture) -> None:
    world = ShellWorld(scripts={"slow": (Script(outputs=(Text("x"),), then=Then.HANG, hang_stop=True),)})
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            streams = [engine.generate("slow", request_id=f"r{number}") for number in range(3)]
            for stream in streams:
                await anext(stream)
            async with asyncio.TaskGroup() as group:
                aborting = group.create_task(catch(engine.abort("r0")))
                await world.of("solo").wait_told("stop")
                break_core(engine)
                streams[2].cancel_request()
                errors = [await failure_of(stream) for stream in streams]
            errors.append(aborting.result())
            assert {type(error) for error in errors} == {EngineStoppedError}
            assert {error.record.kind for error in errors} == {ErrorKind.ENGINE_DEAD}
            health = await engine.check_health()
            assert (health.is_live, health.is_ready, health.reason) == (False, False, "the engine is dead")
            with pytest.raises(EngineStoppedError, match="died of an internal error"):
                engine.generate("x")
            with pytest.raises(EngineStoppedError, match="died of an internal error"):
                await engine.abort("x")
            await engine.shutdown()
            await engine.shutdown()
            with pytest.raises(EngineStoppedError, match="died of an internal error"):
                await engine.statistics()
        assert repr(engine).endswith(", dead>")
    assert caplog.text.count("the engine's loop is broken") == 1
    assert "the planted fault" in caplog.text
    assert world.of("solo").told[-1].method == "close"


@pytest.mark.rule("ORCH-INV-203", "ORCH-INV-301")
async def test_a_loop_that_breaks_at_once_is_a_start_that_failed() -> None:
    world = ShellWorld()
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        break_core(engine)
        async with asyncio.timeout(GUARD_S):
            with pytest.raises(EngineStoppedError, match="died of an internal error"):
                await engine.start()
        assert (await engine.check_health()).reason == "the engine is dead"
    assert world.of("solo").told[-1].method == "close"


async def test_leaving_a_stream_of_a_dead_engine_is_harmless() -> None:
    world = ShellWorld()
    engine = AsyncOmniEngine(world.parts())
    await engine.start()
    streams = [engine.generate("hang") for _ in range(3)]
    await world.of("solo").wait_told("submit", 3)
    break_core(engine)
    await engine.shutdown()
    await streams[0].aclose()
    streams[1].cancel_request()
    streams.clear()
    gc.collect()


@pytest.mark.rule("ORCH-INV-305")
async def test_a_loop_that_is_held_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_omni_engine, "ANSWER_LIMIT_S", 0.01)
    gate, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert gate.wait(20)

    world = ShellWorld()
    async with serving(world) as engine:
        world.of("solo").loop.call_soon_threadsafe(hold)
        await until(held.is_set)
        health = await engine.check_health()
        assert (health.is_live, health.is_ready) == (False, False)
        assert health.reason == "the engine's loop has not answered for 0.01 s"
        with pytest.raises(WaitTimeoutError, match="has not answered"):
            await engine.statistics()
        monkeypatch.setattr(async_omni_engine, "ANSWER_GRACE_S", 0.001)
        with pytest.raises(StopUnconfirmedError, match=r"the abort was not answered within 0\.001 s") as caught:
            await engine.abort(["r1", "r2"], timeout_s=0.001)
        assert caught.value.unconfirmed == ("r1", "r2")
        gate.set()
        monkeypatch.setattr(async_omni_engine, "ANSWER_LIMIT_S", 10.0)
        assert (await engine.check_health()).is_ready


# Start


async def test_before_its_start_everything_says_so() -> None:
    engine = AsyncOmniEngine(ShellWorld().parts())
    for refusal in (catch(engine.abort("x")), catch(engine.statistics())):
        assert "the engine is not started" in str(await refusal)
    with pytest.raises(EngineStoppedError, match="the engine is not started"):
        engine.generate("x")
    assert (await engine.check_health()).reason == "the engine is new"
    await engine.shutdown()
    with pytest.raises(EngineStoppedError, match="an engine starts once; this one is stopped"):
        await engine.start()


@pytest.mark.rule("ORCH-INV-305")
async def test_it_is_ready_when_the_start_returns() -> None:
    for _ in range(50):
        async with serving(ShellWorld()) as engine:
            assert (await engine.check_health()).is_ready


async def test_a_second_start_changes_nothing() -> None:
    async with serving(ShellWorld()) as engine:
        with pytest.raises(EngineStoppedError, match="an engine starts once; this one is serving"):
            await engine.start()
        assert (await engine.generate("x").collect()).outcome is Outcome.COMPLETED


def failing(load: Loading) -> object:
    def make(stage: str, options: FakeOptions) -> FakeBackend:
        return WatchedBackend(stage, FakeOptions(load=load))

    return make


@pytest.mark.rule("ORCH-INV-301")
@pytest.mark.case("B072")
async def test_a_stage_that_does_not_come_up_ends_the_start() -> None:
    world = ShellWorld(*CHAIN, make_backend={"vocoder": failing(Loading.FAIL)})  # type: ignore[dict-item]
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        with pytest.raises(
            StartError, match=r"stage 'vocoder' did not start: RuntimeError: .*told not to load"
        ) as caught:
            await engine.start()
        assert caught.value.stage == "vocoder"
    assert (await engine.check_health()).reason == "the engine is stopped"
    assert all(world.of(stage.name).told[-1].method == "close" for stage in CHAIN)


@pytest.mark.rule("ORCH-INV-204", "ORCH-INV-301")
@pytest.mark.case("B074")
@pytest.mark.parametrize("backend", [WatchedBackend, ThreadBackend])
async def test_a_stage_that_hangs_at_its_start_is_given_up(backend: type[WatchedBackend]) -> None:
    """By its own limit: the others have theirs."""
    stages = (CHAIN[0], limited(CHAIN[1], start_timeout_s=0.01), CHAIN[2])
    world = ShellWorld(
        *stages, make_backend={"talker": lambda stage, _: backend(stage, FakeOptions(load=Loading.HANG))}
    )
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        with pytest.raises(StartError, match=r"stage 'talker' did not start: not ready after 0.01 s"):
            await engine.start()
    assert all(world.of(stage.name).told[-1].method == "close" for stage in CHAIN)


@pytest.mark.rule("ORCH-INV-302")
@pytest.mark.parametrize("wait", [0, 1, 3, 10, 100])
async def test_a_start_can_be_cancelled_at_any_moment(wait: int) -> None:
    world = ShellWorld(*CHAIN, make_backend={"vocoder": failing(Loading.HANG)})  # type: ignore[dict-item]
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S), asyncio.TaskGroup() as group:
            starting = group.create_task(engine.start())
            await turns(wait)
            starting.cancel()
        assert starting.cancelled()
        assert (await engine.check_health()).reason in {"the engine is stopped", "the engine is new"}
        await engine.shutdown()


@pytest.mark.rule("ORCH-INV-302")
@pytest.mark.parametrize("wait", [0, 1, 3, 10, 100])
async def test_a_shutdown_during_the_start_ends_both(wait: int) -> None:
    world = ShellWorld(*CHAIN, make_backend={"vocoder": failing(Loading.HANG)})  # type: ignore[dict-item]
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S), asyncio.TaskGroup() as group:
            starting = group.create_task(catch(engine.start()))
            await turns(wait)
            await engine.shutdown()
            assert isinstance(await starting, EngineStoppedError)


async def test_the_start_tells_how_it_goes() -> None:
    heard: list[tuple[str, str]] = []
    world = ShellWorld(*CHAIN)
    engine = AsyncOmniEngine(world.parts(), on_progress=lambda stage, message: heard.append((stage, message)))
    async with serving(world, engine):
        assert sorted(heard) == sorted((stage.name, word) for stage in CHAIN for word in ("starting", "ready"))


# Shutdown


@pytest.mark.rule("ORCH-INV-302")
@pytest.mark.case("B038")
async def test_a_shutdown_ends_every_request_once_and_closes_every_stage() -> None:
    world = ShellWorld(*CHAIN)
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            streams = [engine.generate("hang") for _ in range(3)]
            await world.of("thinker").wait_told("submit", 3)
            await engine.shutdown(5)
            for stream in streams:
                error = await failure_of(stream)
                assert isinstance(error, EngineStoppedError)
                assert (error.status, error.request_id) == (503, stream.request_id)
                assert [item async for item in stream] == []
    told = [one.method for one in world.of("thinker").told]
    assert told.count("stop") <= 3
    assert all(world.of(stage.name).told[-1].method == "close" for stage in CHAIN)
    with pytest.raises(EngineStoppedError, match="the engine is shut down"):
        engine.generate("x")


@pytest.mark.rule("ORCH-INV-302")
@pytest.mark.case("B022")
async def test_many_may_shut_it_down_at_once() -> None:
    world = ShellWorld(*CHAIN)
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            stream = engine.generate("hang")
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(engine.shutdown())
            await engine.shutdown()
            assert isinstance(await failure_of(stream), EngineStoppedError)
    assert world.of("thinker").times_told("close") == 1


@pytest.mark.rule("ORCH-INV-302")
async def test_a_cancelled_shutdown_goes_on_by_itself() -> None:
    world = ShellWorld(*CHAIN)
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        await engine.start()
        async with asyncio.timeout(GUARD_S), asyncio.TaskGroup() as group:
            stopping = group.create_task(engine.shutdown())
            await turns(1)
            stopping.cancel()
        await engine.shutdown()
        assert world.of("thinker").times_told("close") == 1


def join_threads() -> None:
    """Wait for threads that were abandoned: nobody in the engine does, and they end when they can."""
    for thread in threading.enumerate():
        if thread.name.startswith("podium"):
            thread.join(20)


class Clinging(WatchedBackend):
    """Does not close, until the test lets it."""

    async def close(self) -> None:
        self._tell("close")
        await asyncio.Event().wait()


class Deaf(WatchedBackend):
    """Holds its thread when it closes, whatever is cancelled."""

    gate = threading.Event()

    async def close(self) -> None:
        assert self.gate.wait(20)
        await super().close()


class DeafInAThread(Deaf, ThreadBackend):
    """In a thread of its own."""


@pytest.mark.rule("ORCH-INV-302", "ORCH-INV-204")
@pytest.mark.parametrize("backend", [Clinging, type("ClingingInAThread", (Clinging, ThreadBackend), {})])
async def test_a_stage_that_does_not_close_keeps_nobody(
    backend: type[WatchedBackend], caplog: pytest.LogCaptureFixture
) -> None:
    world = ShellWorld(*CHAIN, make_backend={"talker": backend})
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            stream = engine.generate("hello")
            await stream.collect()
            await engine.shutdown(0.05)
            await engine.shutdown(5)
        join_threads()
    assert "talker[0]@0 did not close within" in caplog.text
    assert world.of("vocoder").told[-1].method == "close"


@pytest.mark.rule("ORCH-INV-302", "ORCH-INV-204")
async def test_a_thread_that_is_held_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    Deaf.gate.clear()
    world = ShellWorld(make_backend={"solo": DeafInAThread})
    with nothing_left():
        engine = AsyncOmniEngine(world.parts())
        async with asyncio.timeout(GUARD_S):
            await engine.start()
            await engine.shutdown(0.05)
            await until(lambda: "solo[0]@0 did not close within 0.045 s and is abandoned" in caplog.text)
        Deaf.gate.set()
        join_threads()


@pytest.mark.rule("ORCH-INV-302")
@pytest.mark.case("B093")
async def test_a_quiet_engine_ends_quietly() -> None:
    with complaints("podium") as heard:
        async with serving(ShellWorld(*CHAIN)) as engine:
            await engine.generate("hello").collect()
            assert (await engine.check_health()).is_ready
    assert heard == []


async def test_a_shutdown_needs_a_limit_that_is_one() -> None:
    async with serving(ShellWorld()) as engine:
        with pytest.raises(InvalidRequestError, match="timeout_s: 0 is no positive number of seconds"):
            await engine.shutdown(0)
        assert (await engine.check_health()).is_ready


# Callers on other loops, and in other threads


@pytest.mark.case("B096")
async def test_callers_of_many_loops_get_their_own() -> None:
    async with serving(ShellWorld(*CHAIN)) as engine:
        got: dict[str, object] = {}

        async def use(name: str) -> None:
            for number in range(20):
                result = await engine.generate(f"{name}-{number}", request_id=f"{name}-{number}").collect()
                got[f"{name}-{number}"] = result.outputs["speech"]

        threads = [threading.Thread(target=asyncio.run, args=(use(f"caller{n}"),)) for n in range(4)]
        for thread in threads:
            thread.start()
        await use("here")
        await until(lambda: not any(thread.is_alive() for thread in threads))
        assert len(got) == 100
        assert all(value == Text(name) for name, value in got.items())
        assert (await engine.statistics()).streams == 0


@pytest.mark.case("B096")
@pytest.mark.rule("ORCH-INV-212")
async def test_a_caller_that_dies_with_its_loop_loses_its_requests_and_nobody_elses() -> None:
    """Its streams are still referenced when it closes; the engine finds out when it has something for them."""
    world = ShellWorld(by_hand=["solo"])
    kept: list[RequestStream] = []

    async def open_and_die(engine: AsyncOmniEngine) -> None:
        kept.extend(engine.generate("x", request_id=f"theirs-{number}") for number in range(3))

    async with serving(world) as engine:
        ours = engine.generate("x", request_id="ours")
        thread = threading.Thread(target=asyncio.run, args=(open_and_die(engine),))
        thread.start()
        thread.join()
        backend = world.of("solo")
        jobs = await backend.wait_jobs(4)
        await backend.produce_for(jobs, Text("for you"))
        await backend.wait_told("stop", 3)
        assert (await anext(ours)).delta == Text("for you")
        await backend.finish_all()
        assert (await ours.collect()).outcome is Outcome.COMPLETED
        figures = await settled(engine)
        assert (figures.counters.cancelled, figures.counters.completed) == (3, 1)


def test_without_a_loop_there_is_no_stream() -> None:
    world = ShellWorld()
    engine = AsyncOmniEngine(world.parts())
    with asyncio.Runner() as runner, nothing_left():
        runner.run(engine.start())
        with pytest.raises(RuntimeError, match="no running event loop"):
            engine.generate("x")
        assert runner.run(engine.statistics()).streams == 0
        runner.run(engine.shutdown())
