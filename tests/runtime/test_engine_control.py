"""Control of a running engine: what each method has its replicas do, what it shows, and what it refuses at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import msgspec
import pytest

from podium.core.lifecycle import BarrierState
from podium.core.operations import PauseMode
from podium.errors import (
    ControlError,
    ControlRejectedError,
    ControlTimeoutError,
    EngineStoppedError,
    InvalidRequestError,
    RequestError,
    StaleVersionError,
    UnsupportedError,
)
from podium.payloads import Text
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.outputs import ControlReport
from podium.testing.fake_backend import CallScript, FakeBackend
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import make_stage, streaming
from tests.support.shell_world import (
    CALL_FAILS,
    CALL_HANGS,
    CHAIN,
    ShellWorld,
    break_core,
    catch,
    pass_time,
    serving,
)

SOLO = make_stage("solo", output="text")
PAIR = (SOLO, make_stage("echo", streaming("solo"), output="speech"))
PLAIN = msgspec.structs.replace(
    FakeBackend.capabilities,
    calls=frozenset(),
    pause_modes=frozenset({PauseMode.ABORT, PauseMode.WAIT}),
    sleep_levels={},
    irreversible_levels=frozenset(),
)
"""What a backend can do that can do no more than it has to."""

Do = Callable[[AsyncOmniEngine], Coroutine[object, object, object]]


def calls(world: ShellWorld, stage: str = "solo", slot: int = 0) -> list[tuple[str, object]]:
    """The control calls that a replica got, with their arguments."""
    return [
        (told.method.removeprefix("call "), told.inputs[0])
        for told in list(world.of(stage, slot).told)
        if told.method.startswith("call ")
    ]


RPC = {"method": "m", "args": (1,), "kwargs": {"x": 2}}

CALLS: dict[str, tuple[Do, str, object, object]] = {
    "collective_rpc": (lambda e: e.collective_rpc("m", args=[1], kwargs={"x": 2}), "collective_rpc", RPC, [RPC]),
    "reset_prefix_cache": (lambda e: e.reset_prefix_cache(), "reset_prefix_cache", {}, True),
    "reset_mm_cache": (lambda e: e.reset_mm_cache(), "reset_mm_cache", {}, True),
    "reset_encoder_cache": (lambda e: e.reset_encoder_cache(), "reset_encoder_cache", {}, True),
    "start_profile": (lambda e: e.start_profile(), "start_profile", {}, None),
    "stop_profile": (lambda e: e.stop_profile(), "stop_profile", {}, None),
    "add_lora": (lambda e: e.add_lora("tone", "/x"), "add_lora", {"name": "tone", "path": "/x"}, None),
    "remove_lora": (lambda e: e.remove_lora("tone"), "remove_lora", {"name": "tone"}, None),
    "list_loras": (lambda e: e.list_loras(), "list_loras", {}, []),
}


@pytest.mark.rule("ORCH-INV-230", "ORCH-INV-237")
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_reaches_every_replica_once_and_reports_what_each_answered(name: str) -> None:
    do, method, arguments, answer = CALLS[name]
    world = ShellWorld(*PAIR, replicas=2)
    async with serving(world) as engine:
        report = await do(engine)
        assert isinstance(report, ControlReport)
        places = [(record.stage, record.replica, record.ok) for record in report.records]
        assert places == [("solo", 0, True), ("solo", 1, True), ("echo", 0, True), ("echo", 1, True)]
        assert report["solo"] == report["echo"] == [answer, answer]
        for stage in ("solo", "echo"):
            for slot in (0, 1):
                assert calls(world, stage, slot) == [(method, arguments)]


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-235")
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_pausing_and_resuming(mode: PauseMode) -> None:
    world = ShellWorld(*PAIR)
    async with serving(world) as engine:
        assert not await engine.is_paused()
        await engine.pause_generation(mode)
        assert await engine.is_paused()
        assert calls(world) == calls(world, "echo") == [("pause", {"mode": mode})]
        assert await engine.barriers() == dict.fromkeys(["solo", "echo"], BarrierState.QUIESCED)
        await engine.resume_generation(stages=["echo"])
        assert (await engine.is_paused(), await engine.is_paused(["solo"])) == (False, True)
        assert await engine.barriers() == {"solo": BarrierState.QUIESCED, "echo": BarrierState.OPEN}
        await engine.resume_generation()
        assert calls(world) == [("pause", {"mode": mode}), ("resume", {})]
        assert (await engine.generate("x").collect()).outputs["text"] == Text("x")


@pytest.mark.rule("ORCH-INV-233", "ORCH-INV-234")
async def test_sleeping_and_waking() -> None:
    world = ShellWorld(*PAIR, replicas=2, capabilities={"echo": PLAIN})
    async with serving(world) as engine:
        report = await engine.sleep(1, mode="abort")
        assert report.not_applicable == ("echo",)
        assert calls(world) == [("pause", {"mode": "abort"}), ("sleep", {"level": 1, "tags": ("cache", "weights")})]
        assert calls(world, "echo") == [("pause", {"mode": "abort"})]
        assert await engine.sleeping() == {"solo": {0: ("cache", "weights"), 1: ("cache", "weights")}}
        assert await engine.barriers() == {"solo": BarrierState.ASLEEP, "echo": BarrierState.QUIESCED}
        report = await engine.wake_up(["weights"])
        assert (len(report.records), report.not_applicable) == (2, ("echo",))
        assert await engine.sleeping() == {"solo": {0: ("cache",), 1: ("cache",)}}
        await engine.wake_up()
        assert await engine.sleeping() == {}
        assert await engine.is_paused(), "waking restores memory and nothing else"
        await engine.resume_generation()


@pytest.mark.rule("ORCH-INV-238")
async def test_changing_weights() -> None:
    world = ShellWorld(*PAIR, capabilities={"echo": PLAIN})
    async with serving(world) as engine:
        await engine.pause_generation("wait")
        report = await engine.begin_weight_update(3)
        assert (report.records, report.not_applicable) == ((), ("echo",))
        await engine.update_weights("load", args=("/w",), kwargs={"strict": True})
        assert calls(world)[-1] == ("update_weights", {"method": "load", "args": ("/w",), "kwargs": {"strict": True}})
        assert await engine.weights_versions() == {"solo": 0, "echo": 0}, "not before the commit"
        await engine.commit_weight_update()
        assert await engine.weights_versions() == {"solo": 3, "echo": 0}
        await engine.begin_weight_update(4)
        await engine.roll_back_weight_update()
        await engine.begin_weight_update(5, stages=["solo"])
        await engine.update_weights("load", stages=["solo"])
        await engine.roll_back_weight_update("restore", stages=["solo"])
        assert calls(world)[-1] == ("update_weights", {"method": "restore", "args": (), "kwargs": {}})
        await engine.resume_generation()
        result = [item async for item in engine.generate("x")]
        assert {item.output: item.weights_version for item in result} == {"text": 3, "speech": 0}


AT_ONCE: dict[str, tuple[Do, type[RequestError], str]] = {
    "mode": (
        lambda e: e.pause_generation("stop"),
        InvalidRequestError,
        "mode: 'stop' is unknown; use one of 'abort', 'wait', 'keep'",
    ),
    "held": (
        lambda e: e.pause_generation(held="drop"),
        InvalidRequestError,
        "held: 'drop' is unknown; use one of 'hold', 'refuse'",
    ),
    "sleep held": (
        lambda e: e.sleep(stages=["solo"], held="drop"),
        InvalidRequestError,
        "held: 'drop' is unknown; use one of 'hold', 'refuse'",
    ),
    "keep": (
        lambda e: e.pause_generation("keep"),
        UnsupportedError,
        "mode: stage 'echo' cannot pause with 'keep'; use abort or wait",
    ),
    "sleep keep": (
        lambda e: e.sleep(mode="keep"),
        UnsupportedError,
        "mode: stage 'echo' cannot pause with 'keep'; use abort or wait",
    ),
    "level": (lambda e: e.sleep(7), UnsupportedError, "stage 'solo' cannot sleep at level 7"),
    "level of a stage": (
        lambda e: e.sleep(1, stages=["solo", "echo"]),
        UnsupportedError,
        "stage 'echo' cannot sleep at level 1",
    ),
    "no level": (lambda e: e.sleep(True), InvalidRequestError, "level: True is no whole number"),
    "no version": (
        lambda e: e.begin_weight_update("2"),  # type: ignore[arg-type]
        InvalidRequestError,
        "version: '2' is no whole number",
    ),
    "wake": (
        lambda e: e.wake_up(stages=["echo"]),
        UnsupportedError,
        "stage 'echo' cannot sleep, so it never wakes",
    ),
    "weights": (
        lambda e: e.begin_weight_update(1, stages=["echo"]),
        UnsupportedError,
        "stage 'echo' cannot change its weights",
    ),
    "own": (
        lambda e: e.collective_rpc("sleep"),
        InvalidRequestError,
        "method: 'sleep' changes the state of a stage; use the engine's own method of that kind",
    ),
    "call": (lambda e: e.list_loras(stages=["echo"]), UnsupportedError, "stage 'echo' has no 'list_loras'"),
    "limit": (lambda e: e.resume_generation(timeout_s=0), InvalidRequestError, "timeout_s: 0 is no positive number"),
}


@pytest.mark.rule("ORCH-INV-005", "ORCH-INV-231")
@pytest.mark.parametrize("name", AT_ONCE)
async def test_what_cannot_be_is_refused_before_anything_is_closed_for_it(name: str) -> None:
    do, kind, message = AT_ONCE[name]
    world = ShellWorld(*PAIR, capabilities={"echo": PLAIN})
    async with serving(world) as engine:
        error = await catch(do(engine))
        assert type(error) is kind
        assert str(error).startswith(message)
        assert (calls(world), calls(world, "echo")) == ([], [])
        assert set((await engine.barriers()).values()) == {BarrierState.OPEN}


@pytest.mark.rule("ORCH-INV-005")
async def test_questions_know_their_stages_too() -> None:
    async with serving(ShellWorld(*PAIR)) as engine:
        with pytest.raises(InvalidRequestError, match="there is no stage 'ech'; did you mean 'echo'"):
            await engine.is_paused(["ech"])


@pytest.mark.rule("ORCH-INV-233", "ORCH-INV-234", "ORCH-INV-238")
async def test_what_does_not_fit_the_state_of_a_stage_is_rejected() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        with pytest.raises(ControlRejectedError, match="stage 'solo' is open; pause it before its weights are changed"):
            await engine.begin_weight_update(1)
        await engine.sleep(1)
        with pytest.raises(ControlRejectedError, match="stage 'solo' is asleep; wake it up first"):
            await engine.resume_generation()
        await engine.wake_up()
        with pytest.raises(StaleVersionError, match="0 is not newer"):
            await engine.begin_weight_update(0)
        await engine.begin_weight_update(1)
        with pytest.raises(ControlRejectedError, match="the update of stage 'solo' is not complete"):
            await engine.commit_weight_update()
        await engine.update_weights("load")
        with pytest.raises(ControlRejectedError, match="say how they are restored"):
            await engine.roll_back_weight_update()
        await engine.commit_weight_update()
        await engine.resume_generation()


@pytest.mark.rule("ORCH-INV-231")
async def test_a_failure_has_the_other_answers() -> None:
    world = ShellWorld(*PAIR, replicas=2)
    async with serving(world) as engine:
        await world.of("echo", 1).script("reset_prefix_cache", CALL_FAILS)
        await world.of("solo", 0).script("reset_prefix_cache", CallScript(value=False))
        with pytest.raises(ControlError) as caught:
            await engine.reset_prefix_cache()
        error = caught.value
        assert (error.stage, error.record.replica) == ("echo", 1)
        assert str(error) == "'reset_prefix_cache' failed at stage 'echo': it raised RuntimeError"
        assert [(one.stage, one.replica, one.ok, one.value) for one in error.results] == [  # type: ignore[attr-defined]
            ("solo", 0, True, False),
            ("solo", 1, True, True),
            ("echo", 0, True, True),
            ("echo", 1, False, None),
        ]
        await world.of("solo", 0).script("reset_prefix_cache", CallScript(value=False))
        report = await engine.reset_prefix_cache()
        assert not report.is_true
        assert (await engine.reset_prefix_cache()).is_true


@pytest.mark.rule("ORCH-INV-230", "ORCH-INV-204")
async def test_a_call_has_a_limit() -> None:
    clock = VirtualClock()
    world = ShellWorld(replicas=2)
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        await world.of("solo", 1).script("list_loras", CALL_HANGS)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(catch(engine.list_loras(timeout_s=0.1)))
            await world.of("solo", 1).wait_told("call list_loras")
            assert (await engine.statistics()).open_calls == 1
            await pass_time(engine, clock, 0.1)
        error = asking.result()
        assert isinstance(error, ControlTimeoutError)
        assert isinstance(error, TimeoutError)
        assert (error.stage, error.record.replica, error.status) == ("solo", 1, 504)
        assert [record.ok for record in error.results] == [True, False]  # type: ignore[attr-defined]
        assert (await engine.statistics()).open_calls == 0
        await world.of("solo", 1).release()


@pytest.mark.rule("ORCH-INV-304", "ORCH-INV-302")
@pytest.mark.parametrize("way", ["shutdown", "death"])
async def test_whoever_waits_hears_of_the_end(way: str) -> None:
    world = ShellWorld(*CHAIN)
    engine = AsyncOmniEngine(world.parts())
    await engine.start()
    await world.of("talker").script("pause", CALL_HANGS)
    await world.of("vocoder").script("list_loras", CALL_HANGS)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(catch(engine.pause_generation("keep")))]
        waiting.append(group.create_task(catch(engine.list_loras())))
        await world.of("talker").wait_told("call pause")
        await world.of("vocoder").wait_told("call list_loras")
        if way == "death":
            break_core(engine)
            await catch(engine.resume_generation())
        await engine.shutdown()
    assert {type(task.result()) for task in waiting} == {EngineStoppedError}
    with pytest.raises(EngineStoppedError):
        await engine.resume_generation()
    with pytest.raises(EngineStoppedError):
        await engine.is_paused()


async def test_an_engine_that_is_not_started_says_so() -> None:
    engine = AsyncOmniEngine(ShellWorld().parts())
    with pytest.raises(EngineStoppedError, match="not started"):
        await engine.pause_generation()
    await engine.shutdown()


@pytest.mark.rule("ORCH-INV-236")
async def test_who_gives_up_leaves_the_call_to_itself() -> None:
    """The caller's task is cancelled; the pause goes on, and the opposite repairs it."""
    world = ShellWorld()
    async with serving(world) as engine:
        backend = world.of("solo")
        await backend.script("pause", CALL_HANGS)
        async with asyncio.TaskGroup() as group:
            pausing = group.create_task(engine.pause_generation("keep"))
            await backend.wait_told("call pause")
            pausing.cancel()
        assert (await engine.statistics()).open_calls == 0
        held = engine.generate("held")
        assert await engine.barriers() == {"solo": BarrierState.CLOSING}
        await engine.resume_generation()
        assert (await held.collect()).outputs == {"text": Text("held")}
        await backend.release()
