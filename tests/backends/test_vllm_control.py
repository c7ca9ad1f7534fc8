"""Control calls of the vLLM backend on an engine that tests hold: what is sent, in which order, and when it is done."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from podium.backends.vllm import VllmBackend, VllmOptions, VllmParams, control
from podium.backends.vllm.device import is_cpu_build, sleep_levels
from podium.backends.vllm.engine import EngineFeatures
from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.identity import MAIN, JobKey, Payload
from podium.core.operations import PauseMode
from podium.errors import (
    CleanupPendingError,
    ControlError,
    ControlRejectedError,
    InvalidRequestError,
    RequestError,
    SupersededError,
    UnsupportedError,
)
from podium.payloads import Text
from podium.ports.stage_backend import BackendDead, StageTask
from tests.backends.fake_vllm import FakeEngine, FakeStart, Plan

FIRST, SECOND = JobKey("r1", "thinker", MAIN, 1), JobKey("r2", "thinker", MAIN, 2)
ENDLESS = Plan(None)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()

    class Start(FakeStart):
        def run(self) -> FakeEngine:
            return engine

    monkeypatch.setattr("podium.backends.vllm.backend.Start", Start)
    monkeypatch.setattr("podium.backends.vllm.backend.client_errors", lambda: (ValueError,))
    return engine


async def loaded() -> VllmBackend:
    backend = VllmBackend("thinker", VllmOptions(model="somewhere"))
    await backend.load()
    return backend


def task(job: JobKey, plan: object, params: VllmParams | None = None) -> StageTask:
    return StageTask(job=job, inputs=(plan,), params=params, input_open=False, priority=0, deadline=None)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def outcome(backend: VllmBackend, method: str, **arguments: Payload) -> Exception | None:
    """What a call raised; None when it succeeded."""
    try:
        await backend.call(method, arguments)
    except (RequestError, BackendDead) as error:
        return error
    return None


async def read(backend: VllmBackend) -> NoReturn:
    """Take whatever comes."""
    while True:
        await backend.next_outputs()


def test_what_is_declared_is_what_there_is() -> None:
    capabilities = VllmBackend.capabilities
    work = VllmBackend("thinker", VllmOptions(model="somewhere"))
    assert control.Control("thinker", work).names == capabilities.calls | {"pause", "resume"}


@pytest.mark.parametrize(("version", "levels"), [("0.32.0", {0, 1, 2}), ("0.32.0+cpu", {0}), (None, {0})])
def test_only_builds_for_accelerators_give_up_memory(
    monkeypatch: pytest.MonkeyPatch, version: str | None, levels: set[int]
) -> None:
    def version_of(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    from podium.backends.vllm import device  # noqa: PLC0415 - patched here only

    monkeypatch.delenv("VLLM_TARGET_DEVICE", raising=False)
    monkeypatch.setattr(device, "version", version_of)
    assert set(sleep_levels()) == levels
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    assert is_cpu_build()


# Pausing.


@pytest.mark.rule("ORCH-INV-232")
@pytest.mark.case("B108")
async def test_a_pause_returns_behind_the_confirmation_and_the_last_outputs(engine: FakeEngine) -> None:
    backend = await loaded()
    backend.submit(task(FIRST, ENDLESS))
    await backend.next_outputs()
    engine.hold_confirmations()
    async with asyncio.TaskGroup() as group:
        pause = group.create_task(outcome(backend, "pause", mode=PauseMode.KEEP))
        await settle()
        assert engine.told == ["pause keep"]
        assert not pause.done(), "it was not confirmed"
        engine.confirm_all()
        await settle()
        assert not pause.done(), "outputs of a step that ran were not taken"
        assert await backend.next_outputs()
    assert pause.result() is None
    await backend.close()


@pytest.mark.rule("ORCH-INV-232")
async def test_what_was_submitted_before_a_pause_is_sent_before_it(engine: FakeEngine) -> None:
    """And what comes later is not sent at all until the resume; then in order."""
    backend = await loaded()
    engine.may_step = False
    backend.submit(task(FIRST, ENDLESS))
    await backend.call("pause", {"mode": "keep"})
    assert engine.sent == [f"add {FIRST}"]
    later = [JobKey(f"r{number}", "thinker", MAIN, number) for number in range(3, 6)]
    for job in (SECOND, *later):
        backend.submit(task(job, ENDLESS))
    assert await backend.stop(SECOND) == Text("")
    assert f"{SECOND}-internal" not in engine.registered
    await settle()
    assert engine.sent == [f"add {FIRST}"]
    await backend.call("resume", {})
    await settle()
    assert engine.sent == [f"add {job}" for job in (FIRST, *later)]
    await backend.close()


@pytest.mark.rule("ORCH-INV-232")
async def test_a_waiting_pause_tells_the_engine_when_all_is_over(engine: FakeEngine) -> None:
    backend = await loaded()
    backend.submit(task(FIRST, Plan(("a", "b"), meets_stop_text=True)))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(backend))
        await backend.call("pause", {"mode": PauseMode.WAIT})
        reading.cancel()
    assert engine.sent == [f"add {FIRST}", f"abort {FIRST}"]
    assert engine.told == ["pause keep"]
    assert not engine.core
    await backend.close()


@pytest.mark.rule("ORCH-INV-232")
async def test_frozen_work_drains_when_a_pause_waits_for_it(engine: FakeEngine) -> None:
    backend = await loaded()
    backend.submit(task(FIRST, Plan(("a", "b"))))
    await backend.call("pause", {"mode": PauseMode.KEEP})
    backend.submit(task(SECOND, ENDLESS))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(backend))
        await backend.call("pause", {"mode": PauseMode.WAIT})
        reading.cancel()
    assert engine.told == ["pause keep", "resume", "pause keep"]
    assert engine.sent == [f"add {FIRST}"], "what came during the pause still waits"
    await backend.close()


@pytest.mark.rule("ORCH-INV-205")
async def test_an_aborting_pause_hands_out_every_end(engine: FakeEngine) -> None:
    backend = await loaded()
    engine.may_step = False
    for job in (FIRST, SECOND):
        backend.submit(task(job, ENDLESS))
    async with asyncio.TaskGroup() as group:
        pause = group.create_task(outcome(backend, "pause", mode=PauseMode.ABORT))
        await settle()
        outputs = await backend.next_outputs()
    assert pause.result() is None
    ends = {output.job: output.finish for output in outputs if isinstance(output, JobOutput)}
    assert {end.reason for end in ends.values() if isinstance(end, Finish)} == {FinishReason.ABORT}
    assert set(ends) == {FIRST, SECOND}
    assert backend.job_count == 0
    await backend.close()


@pytest.mark.rule("ORCH-INV-236")
@pytest.mark.parametrize("failing", ["pause", "resume"])
async def test_what_failed_is_repaired_by_itself_and_by_its_opposite(engine: FakeEngine, failing: str) -> None:
    backend = await loaded()
    engine.failures[failing] = RuntimeError("no answer\nand a long story")
    if failing == "resume":
        await backend.call("pause", {"mode": "keep"})
    with pytest.raises(ControlError, match=rf"stage 'thinker' could not {failing}: no answer$"):
        await backend.call(failing, {"mode": "keep"} if failing == "pause" else {})
    backend.submit(task(FIRST, Plan(("a",))))
    await settle()
    assert engine.sent == [], "it is not known to work"
    engine.failures.clear()
    await backend.call("pause", {"mode": "keep"})
    await backend.call("resume", {})
    assert await backend.next_outputs()
    await backend.close()


@pytest.mark.rule("ORCH-INV-230", "ORCH-INV-236")
async def test_the_latest_call_counts(engine: FakeEngine) -> None:
    """Whatever hangs: the engine is told in the order of the calls, and each overtaken one hears of it."""
    backend = await loaded()
    engine.hold_confirmations()
    calls = [("pause", {"mode": "keep"}), ("resume", {}), ("pause", {"mode": "abort"}), ("resume", {})]
    async with asyncio.TaskGroup() as group:
        running = []
        for method, arguments in calls:
            running.append(group.create_task(outcome(backend, method, **arguments)))
            await settle()
        assert [type(call.result()) for call in running[:-1]] == [SupersededError] * 3
        assert not running[-1].done()
        engine.confirm_all()
    assert running[-1].result() is None
    assert engine.told == ["pause keep", "resume", "pause abort", "resume"]
    await backend.close()


@pytest.mark.rule("ORCH-INV-202")
async def test_death_ends_a_pause_that_waits(engine: FakeEngine) -> None:
    backend = await loaded()
    backend.submit(task(FIRST, ENDLESS))
    async with asyncio.TaskGroup() as group:
        pause = group.create_task(outcome(backend, "pause", mode=PauseMode.WAIT))
        await settle()
        engine.die(ConnectionError("EngineCore is gone"))
    assert isinstance(pause.result(), BackendDead)
    assert isinstance(await outcome(backend, "resume"), BackendDead)
    await backend.close()


# Sleeping, on a build that can.


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = frozenset({"weights", "kv_cache"})
    monkeypatch.setattr(control, "SLEEP_LEVELS", {0: frozenset({"scheduling"}), 1: memory, 2: memory})


@pytest.mark.rule("ORCH-INV-233", "ORCH-INV-234")
@pytest.mark.case("B019", "B016")
@pytest.mark.usefixtures("levels")
async def test_memory_comes_back_tag_by_tag(engine: FakeEngine) -> None:
    backend = await loaded()
    with pytest.raises(ControlRejectedError, match="works; pause it"):
        await backend.call("sleep", {"level": 1})
    await backend.call("pause", {"mode": "keep"})
    with pytest.raises(UnsupportedError, match="kv_cache and weights together at level 1"):
        await backend.call("sleep", {"level": 1, "tags": ("weights",)})
    await backend.call("sleep", {"level": 1, "tags": ("kv_cache", "weights")})
    with pytest.raises(ControlRejectedError, match="sleeps at level 1; wake it up first"):
        await backend.call("sleep", {"level": 2})
    await backend.call("sleep", {"level": 1})
    with pytest.raises(InvalidRequestError, match="has no 'wieghts' that sleeps"):
        await backend.call("wake_up", {"tags": ("wieghts",)})
    await backend.call("wake_up", {"tags": ("weights",)})
    with pytest.raises(ControlRejectedError, match=r"sleeps \(kv_cache\); wake it up first"):
        await backend.call("resume", {})
    await backend.call("wake_up", {})
    await backend.call("wake_up", {})
    await backend.call("resume", {})
    assert engine.told == ["pause keep", "sleep 1", "sleep 1", "wake_up weights", "wake_up kv_cache", "resume"]
    await backend.close()


@pytest.mark.usefixtures("levels")
async def test_a_sleep_that_failed_is_no_wakefulness(engine: FakeEngine) -> None:
    """Nobody knows how far it came: only a wake-up makes a resume possible."""
    backend = await loaded()
    engine.may_step = False
    backend.submit(task(FIRST, ENDLESS))
    await backend.call("pause", {"mode": "keep"})
    engine.failures["sleep"] = RuntimeError("out of memory")
    with pytest.raises(ControlError, match="could not sleep at level 2: out of memory"):
        await backend.call("sleep", {"level": 2})
    with pytest.raises(ControlRejectedError):
        await backend.call("resume", {})
    with pytest.raises(ControlRejectedError, match="has work that would have to run"):
        await backend.call("pause", {"mode": "wait"})
    await backend.call("wake_up", {})
    await backend.call("resume", {})
    assert engine.told == ["pause keep", "sleep 2", "wake_up kv_cache,weights", "resume"]
    await backend.close()


@pytest.mark.usefixtures("levels")
async def test_sleep_mode_is_an_option_of_the_engine(engine: FakeEngine) -> None:
    engine.features = EngineFeatures()
    backend = await loaded()
    await backend.call("pause", {"mode": "keep"})
    with pytest.raises(UnsupportedError, match="enable_sleep_mode: true"):
        await backend.call("sleep", {"level": 1})
    await backend.call("sleep", {"level": 0})
    assert engine.told == ["pause keep", "sleep 0"]
    await backend.close()


# Everything else.


@pytest.mark.rule("ORCH-INV-237")
async def test_resets_say_whether_they_could(engine: FakeEngine) -> None:
    """During a pause they always can: what stands still is computed anew."""
    backend = await loaded()
    backend.submit(task(FIRST, ENDLESS))
    await backend.next_outputs()
    assert await backend.call("reset_prefix_cache", {}) is False
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(backend))
        await backend.call("pause", {"mode": "keep"})
        reading.cancel()
    assert await backend.call("reset_prefix_cache", {}) is True
    assert await backend.call("reset_mm_cache", {}) is True
    assert await backend.call("reset_encoder_cache", {}) is True
    await backend.close()


@pytest.mark.rule("ORCH-INV-231")
@pytest.mark.case("B045")
async def test_workers_answer_one_by_one(engine: FakeEngine) -> None:
    backend = await loaded()
    engine.answers = [(True, 1), (True, {"a": 2})]
    answer = await backend.call("collective_rpc", {"method": "m", "args": (1,), "kwargs": {"x": "y"}})
    assert answer == [1, {"a": 2}]
    assert engine.told == ["run m (1,) {'x': 'y'}"]
    engine.answers = [(True, 1), (False, "ValueError: too large"), (False, "KeyError: 'a'")]
    with pytest.raises(ControlError) as caught:
        await backend.call("update_weights", {"method": "m"})
    assert str(caught.value) == (
        "'m' failed at stage 'thinker': worker 1: ValueError: too large; worker 2: KeyError: 'a'"
    )
    with pytest.raises(InvalidRequestError, match="the arguments cannot be sent"):
        await backend.call("collective_rpc", {"method": "m", "kwargs": {"x": object()}})
    with pytest.raises(InvalidRequestError, match=r"collective_rpc\.method: is missing"):
        await backend.call("collective_rpc", {})
    await backend.close()


async def test_a_profile_is_started_and_stopped(engine: FakeEngine) -> None:
    backend = await loaded()
    engine.failures["profile"] = RuntimeError("no disk")
    with pytest.raises(ControlError, match="could not start its profiler: no disk"):
        await backend.call("start_profile", {})
    engine.failures.clear()
    with pytest.raises(ControlRejectedError, match="is not profiled"):
        await backend.call("stop_profile", {})
    await backend.call("start_profile", {})
    with pytest.raises(ControlRejectedError, match="is profiled already"):
        await backend.call("start_profile", {})
    await backend.call("stop_profile", {})
    engine.features = EngineFeatures()
    with pytest.raises(UnsupportedError, match="set its option profile_dir"):
        await backend.call("start_profile", {})
    await backend.close()


# LoRA.


def adapter(directory: Path) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text("{}")
    return str(directory)


async def test_adapters_are_known_by_name(engine: FakeEngine, tmp_path: Path) -> None:
    backend = await loaded()
    path = adapter(tmp_path)
    with pytest.raises(InvalidRequestError, match=r"no adapter_config.json in '/nowhere'"):
        await backend.call("add_lora", {"name": "a", "path": "/nowhere"})
    await backend.call("add_lora", {"name": "a", "path": path})
    with pytest.raises(ControlRejectedError, match="has an adapter 'a' already"):
        await backend.call("add_lora", {"name": "a", "path": path})
    await backend.call("add_lora", {"name": "b", "path": path})
    with pytest.raises(ControlRejectedError, match="has 2 adapters; remove one"):
        await backend.call("add_lora", {"name": "c", "path": path})
    assert await backend.call("list_loras", {}) == ["a", "b"]
    with pytest.raises(InvalidRequestError, match="there is no adapter 'c'; there is a, b"):
        backend.submit(task(FIRST, ENDLESS, VllmParams(lora="c")))
    assert backend.job_count == 0
    await backend.call("remove_lora", {"name": "a"})
    with pytest.raises(ControlRejectedError, match="has no adapter 'a'"):
        await backend.call("remove_lora", {"name": "a"})
    await backend.call("add_lora", {"name": "a", "path": path})
    assert engine.loras == {2, 3}, "a number is never used twice"
    await backend.close()


async def test_an_adapter_in_use_stays(engine: FakeEngine, tmp_path: Path) -> None:
    backend = await loaded()
    await backend.call("add_lora", {"name": "a", "path": adapter(tmp_path)})
    backend.submit(task(FIRST, ENDLESS, VllmParams(lora="a")))
    with pytest.raises(CleanupPendingError, match="1 jobs of stage 'thinker' use the adapter 'a'") as caught:
        await backend.call("remove_lora", {"name": "a"})
    assert caught.value.record.is_retryable
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(backend))
        await backend.stop(FIRST)
        reading.cancel()
    await backend.call("remove_lora", {"name": "a"})
    assert engine.loras == set()
    await backend.close()


async def test_an_adapter_that_vllm_does_not_take_is_not_there(engine: FakeEngine, tmp_path: Path) -> None:
    backend = await loaded()
    path = adapter(tmp_path)
    engine.failures["add_lora"] = RuntimeError("rank 99 is too large")
    with pytest.raises(ControlError, match="could not load the adapter 'a': rank 99 is too large"):
        await backend.call("add_lora", {"name": "a", "path": path})
    assert await backend.call("list_loras", {}) == []
    engine.failures.clear()
    await backend.call("add_lora", {"name": "a", "path": path})
    engine.loras.clear()
    with pytest.raises(ControlError, match="did not unload the adapter 'a'"):
        await backend.call("remove_lora", {"name": "a"})
    engine.features = EngineFeatures()
    with pytest.raises(UnsupportedError, match="started without LoRA; set its option max_loras"):
        await backend.call("list_loras", {})
    await backend.close()
