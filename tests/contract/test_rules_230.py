"""Rules 230 to 239: control of the engine. On whole engines over fakes, and on the core alone where that is sharper."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from podium.core.effects import AbortStatus, CallReplica, EmitOutput, Outcome, ReplyControl, StartJob
from podium.core.events import ControlRequested, FinishReason, RequestSubmitted
from podium.core.graph import Limits
from podium.core.lifecycle import BarrierState, FenceState
from podium.core.operations import (
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    HoldPolicy,
    Operation,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from podium.errors import (
    ControlError,
    ControlRejectedError,
    ControlTimeoutError,
    ErrorKind,
    ErrorRecord,
    InvalidRequestError,
    Scope,
    StageUnavailableError,
    UnsupportedError,
)
from podium.payloads import Text
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.outputs import ControlReport
from podium.runtime.request_stream import RequestStream
from podium.testing.fake_backend import Answer, CallScript, Script, Then
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import World, lines, make_stage, streaming, voice
from tests.support.shell_world import (
    CALL_FAILS,
    CALL_HANGS,
    CHAIN,
    SCRIPTS,
    ShellWorld,
    WatchedBackend,
    catch,
    failure_of,
    limited,
    pass_time,
    serving,
    settled,
    turns,
)

SOLO = make_stage("solo", output="text")
TAGS = {"a": ("cache", "weights"), "b": ("cache", "weights")}
FAILED = ErrorRecord(kind=ErrorKind.CONTROL_FAILED, scope=Scope.REPLICA, message="it broke")


def told(backend: WatchedBackend) -> list[str]:
    """The names of what a replica was told, in order."""
    return [one.method for one in list(backend.told)]


def barriers(world: World) -> dict[str, BarrierState]:
    return {name: stage.barrier for name, stage in world.core.statistics().stages.items()}


def last_answer(world: World) -> ReplyControl:
    return [effect for effect in world.effects if isinstance(effect, ReplyControl)][-1]


def carry_out(world: World, *operations: Operation) -> None:
    """Have operations carried out by replicas that confirm everything."""
    for operation in operations:
        world.control(operation)
        world.answer_all()
        assert last_answer(world).error is None


class Streams:
    """Requests that are read to their end in the background, by id."""

    def __init__(self, engine: AsyncOmniEngine, group: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._group = group
        self.tasks: dict[str, asyncio.Task[object]] = {}
        self.items: dict[str, list[str]] = {}
        self.ended: list[str] = []

    def open(self, *request_ids: str, prompt: str = "x") -> None:
        for request_id in request_ids:
            stream = self._engine.generate(prompt, request_id=request_id)
            self.tasks[request_id] = self._group.create_task(self._read(stream))

    async def _read(self, stream: RequestStream) -> None:
        items = self.items.setdefault(stream.request_id, [])
        async for item in stream:
            if isinstance(item.delta, Text):
                items.append(item.delta.text)
        self.ended.append(stream.request_id)


# 230


@pytest.mark.rule("ORCH-INV-230")
async def test_data_does_not_wait_for_control() -> None:
    """A call hangs at one replica of two; requests run on both as if there were none."""
    world = ShellWorld(*CHAIN, replicas=2)
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        hanging = world.of("talker", 1)
        await hanging.script("collective_rpc", CALL_HANGS)
        calling = group.create_task(engine.collective_rpc("m"))
        await hanging.wait_told("call collective_rpc")
        results = await asyncio.gather(*(engine.generate(f"p{number}").collect() for number in range(100)))
        assert [result.outputs["text"] for result in results] == [Text(f"p{number}") for number in range(100)]
        assert hanging.times_told("submit") > 0, "data went past the call that hangs"
        assert not calling.done()
        await hanging.release()
        assert len((await calling).records) == 6


@pytest.mark.rule("ORCH-INV-230")
async def test_control_does_not_wait_for_data() -> None:
    """Every credit is taken and a hundred jobs wait; calls of every kind are answered nevertheless."""
    world = ShellWorld(limited(SOLO, max_inflight=1, max_queued=1000), by_hand=["solo"])
    async with serving(world) as engine:
        streams = [engine.generate("x", request_id=f"r{number}") for number in range(100)]
        await world.of("solo").wait_jobs()
        assert (await engine.collective_rpc("m"))["solo"] == [[{"method": "m", "args": (), "kwargs": {}}]]
        assert (await engine.reset_prefix_cache()).is_true
        await engine.pause_generation("keep")
        await engine.resume_generation()
        await engine.abort([stream.request_id for stream in streams])


@pytest.mark.rule("ORCH-INV-230")
async def test_calls_go_to_all_targets_at_once_and_a_hanging_one_delays_no_other_call() -> None:
    world = ShellWorld(*CHAIN, replicas=2)
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        everyone = [world.of(stage.name, slot) for stage in CHAIN for slot in (0, 1)]
        for backend in everyone:
            await backend.script("collective_rpc", CALL_HANGS)
        calling = group.create_task(engine.collective_rpc("m"))
        for backend in everyone:  # each was called before any has answered
            await backend.wait_told("call collective_rpc")
        assert len((await engine.list_loras()).records) == 6
        for backend in everyone:
            await backend.release()
        assert [record.ok for record in (await calling).records] == [True] * 6


@pytest.mark.rule("ORCH-INV-230")
async def test_a_late_answer_is_dropped_and_freed() -> None:
    clock = VirtualClock()
    world = ShellWorld()
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine, asyncio.TaskGroup() as group:
        backend = world.of("solo")
        await backend.script("list_loras", CALL_HANGS, CallScript(value="second"))
        first = group.create_task(catch(engine.list_loras(timeout_s=1.0)))
        await backend.wait_told("call list_loras")
        await pass_time(engine, clock, 1.0)
        assert isinstance(await first, ControlTimeoutError)
        await backend.release()
        while not (await engine.statistics()).core.counters.dropped:
            pass
        assert (await engine.statistics()).released_payloads == 1
        assert (await engine.list_loras())["solo"] == ["second"]


@pytest.mark.rule("ORCH-INV-230")
def test_the_number_of_a_call_is_used_once() -> None:
    world = World(*voice(), replicas=2)
    for _ in range(5):
        carry_out(world, CallMethod("m"), Pause(PauseMode.KEEP), Resume())
    numbers = [effect.call for effect in world.effects if isinstance(effect, CallReplica)]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5 * 3 * 4


@pytest.mark.rule("ORCH-INV-230", "ORCH-INV-213")
@pytest.mark.parametrize("way", ["answered", "silent", "overtaken", "lost"])
def test_nothing_is_left_of_a_call_however_it_ends(way: str) -> None:
    world = World(*voice(), replicas=2)
    for number in range(10):
        world.control(Pause(PauseMode.KEEP), timeout_s=1.0)
        if way == "overtaken":
            world.control(Resume(), timeout_s=1.0)
        elif way == "lost":
            for stage, slot in itertools.product("ab", (0, 1)):
                world.lose(stage, slot, number)
                world.join(stage, slot, number + 1)
        if way == "silent":
            world.wait(1.0)
        else:
            world.answer_all()
        carry_out(world, Resume())
    assert world.core.statistics().is_idle
    assert world.core._state.replica_calls == {}


# 231


@pytest.mark.rule("ORCH-INV-231")
@pytest.mark.parametrize(
    "failure", [NotImplementedError("no such thing"), AttributeError("m"), ValueError("m"), OSError()]
)
async def test_what_a_worker_raised_is_a_failure_and_never_called_unsupported(failure: Exception) -> None:
    def broken(arguments: object) -> object:
        raise failure

    world = ShellWorld(replicas=3)
    async with serving(world) as engine:
        world.of("solo", 1).methods["collective_rpc"] = broken
        with pytest.raises(ControlError) as caught:
            await engine.collective_rpc("m")
        error = caught.value
        assert type(error) is ControlError
        assert error.record.kind is ErrorKind.CONTROL_FAILED
        assert (error.status, error.stage, error.record.replica) == (500, "solo", 1)
        assert str(error) == f"'collective_rpc' failed at stage 'solo': it raised {type(failure).__name__}"
        assert [record.ok for record in error.results] == [True, False, True]  # type: ignore[attr-defined]


@pytest.mark.rule("ORCH-INV-231")
async def test_what_an_engine_cannot_do_is_said_by_it_and_is_no_success() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        await world.of("solo").script("start_profile", CallScript(then=Answer.UNSUPPORTED))
        error = await catch(engine.start_profile())
        assert type(error) is UnsupportedError
        assert (error.status, error.record.is_retryable) == (501, False)


@pytest.mark.rule("ORCH-INV-231")
async def test_a_replica_that_dies_of_a_call_is_named() -> None:
    world = ShellWorld(replicas=2)
    async with serving(world) as engine:
        await world.of("solo", 1).script("collective_rpc", CallScript(then=Answer.DIE))
        error = await catch(engine.collective_rpc("m"))
        assert isinstance(error, ControlError)
        assert str(error) == "replica 1 of stage 'solo' was lost before it answered 'collective_rpc'"
        assert (await engine.generate("x").collect()).outcome is Outcome.COMPLETED


# 232


@pytest.mark.rule("ORCH-INV-232")
@pytest.mark.parametrize("mode", list(PauseMode))
def test_admission_is_closed_before_anything_else(mode: PauseMode) -> None:
    """A request in the same batch, behind the pause, does not slip in."""
    world = World(*voice())
    world.tell(
        ControlRequested(1, Pause(mode), ("a", "b"), 30.0),
        RequestSubmitted(ticket=1, request_id="late", prompt="x"),
    )
    world.answer_all()
    assert not [effect for effect in world.effects if isinstance(effect, StartJob)]
    assert world.core.statistics().held == 1
    carry_out(world, Resume())
    assert [effect.job.request for effect in world.effects if isinstance(effect, StartJob)] == ["late"]


@pytest.mark.rule("ORCH-INV-232")
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_pause_returns_with_the_last_confirmation_whichever_that_is(order: Sequence[int]) -> None:
    world = World(*voice(), replicas=2)
    world.control(Pause(PauseMode.KEEP))
    calls = world.calls()
    for index in order[:-1]:
        assert not [effect for effect in world.answer(calls[index]) if isinstance(effect, ReplyControl)]
        assert BarrierState.CLOSING in barriers(world).values()
    assert lines(world.answer(calls[order[-1]])) == ["answer 1: a[0] ok, a[1] ok, b[0] ok, b[1] ok"]


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-205")
async def test_abort_ends_running_work_with_its_prefix() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        streams = [engine.generate("half", request_id=f"r{number}", outputs=["text"]) for number in range(3)]
        for stream in streams:
            await anext(stream)
        await engine.pause_generation("abort")
        for stream in streams:
            items = [item async for item in stream]
            assert (items[-1].finish_reason, items[-1].partial) == (FinishReason.ABORT, Text("half way"))
        assert all(not world.of(stage.name).tasks for stage in CHAIN)
        await engine.resume_generation()


@pytest.mark.rule("ORCH-INV-232")
async def test_wait_lets_running_work_drain_before_any_replica_is_asked() -> None:
    world = ShellWorld(*CHAIN, by_hand=["vocoder"])
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        stream = engine.generate("x")
        await world.of("vocoder").wait_jobs()
        pausing = group.create_task(engine.pause_generation("wait"))
        while set((await engine.barriers()).values()) != {BarrierState.CLOSING}:
            pass
        assert all(world.of(stage.name).times_told("call pause") == 0 for stage in CHAIN)
        assert not await engine.is_paused()
        await world.of("vocoder").finish_all(Text("y"))
        await pausing
        assert (await stream.collect()).outcome is Outcome.COMPLETED
        assert await engine.is_paused()
        await engine.resume_generation()


@pytest.mark.rule("ORCH-INV-232")
async def test_keep_freezes_running_work_which_goes_on_after_the_resume() -> None:
    world = ShellWorld(by_hand=["solo"])
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        streams = Streams(engine, group)
        streams.open("r")
        backend = world.of("solo")
        jobs = await backend.wait_jobs()
        await backend.produce_for(jobs, Text("before "))
        await engine.pause_generation("keep")
        assert list(backend.tasks) == jobs, "the job is still there"
        assert streams.items["r"] == ["before "]
        await engine.resume_generation()
        await backend.finish_all(Text("after"))
        await streams.tasks["r"]
        assert streams.items["r"] == ["before ", "after"]


@pytest.mark.rule("ORCH-INV-232")
def test_keep_lets_nothing_start_and_the_resume_starts_what_was_queued() -> None:
    world = World(make_stage("a", output="out", limits=Limits(max_inflight=1)))
    world.submit("running")
    world.submit("queued")
    world.control(Pause(PauseMode.KEEP))
    assert lines(world.finish("a", "x", request_id="running"))[-1] == "end running completed", "and nothing starts"
    world.answer_all()
    world.join("a", 1)
    assert world.core.statistics().stages["a"].queued == 1
    world.control(Resume())
    assert "start queued/a on a[0]@0" in lines(world.answer_all())


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-103")
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_what_arrives_meanwhile_is_held_in_order(mode: PauseMode) -> None:
    world = ShellWorld(limited(SOLO, max_inflight=1))
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        await engine.pause_generation(mode)
        streams = Streams(engine, group)
        ids = [f"r{number}" for number in range(20)]
        streams.open(*ids)
        while (await engine.statistics()).core.held < len(ids):
            pass
        assert world.of("solo").times_told("submit") == 0
        await engine.resume_generation()
        await asyncio.wait(streams.tasks.values())
        submitted = [one.job.request for one in world.of("solo").told if one.method == "submit" and one.job]
        assert submitted == ids


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-210")
async def test_what_is_held_stays_abortable() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        await engine.pause_generation("keep")
        stream = engine.generate("x", request_id="held")
        leaving = engine.generate("x", request_id="leaving")
        while (await engine.statistics()).core.held < 2:
            pass
        assert (await engine.abort("held"))["held"].status is AbortStatus.ABORTED
        assert (await stream.collect()).finish_reasons == {"text": FinishReason.ABORT}
        await leaving.aclose()
        await engine.resume_generation()
        await settled(engine)
        assert world.of("solo").times_told("submit") == 0


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-235")
async def test_or_it_is_refused_and_told_which_stage() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        await engine.pause_generation("wait", stages=["vocoder"], held="refuse")
        error = await failure_of(engine.generate("x"))
        assert isinstance(error, StageUnavailableError)
        assert str(error) == "stage 'vocoder' is paused and takes no requests; retry when it is resumed"
        assert (error.status, error.record.is_retryable, error.stage) == (503, True, "vocoder")
        assert (await engine.generate("x", outputs=["text"]).collect()).outcome is Outcome.COMPLETED


# 233


@pytest.mark.rule("ORCH-INV-233")
async def test_sleep_closes_settles_quiesces_and_then_sleeps() -> None:
    world = ShellWorld(SOLO, by_hand=["solo"])
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        streams = Streams(engine, group)
        streams.open("admitted")
        backend = world.of("solo")
        await backend.wait_jobs()
        sleeping = group.create_task(engine.sleep(1))
        while (await engine.barriers())["solo"] is not BarrierState.CLOSING:
            pass
        streams.open("late")
        while not (await engine.statistics()).core.held:
            pass
        assert told(backend) == ["load", "submit"], "what was admitted settles first"
        await backend.finish_all()
        await sleeping
        assert told(backend) == ["load", "submit", "call pause", "call sleep"]
        await engine.wake_up()
        await engine.resume_generation()
        await backend.wait_told("submit", 2)
        await backend.finish_all()
        assert told(backend)[2:] == ["call pause", "call sleep", "call wake_up", "call resume", "submit"]


@pytest.mark.rule("ORCH-INV-233")
async def test_what_does_not_come_back_needs_force() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        with pytest.raises(InvalidRequestError, match="pass force=True"):
            await engine.sleep(2)
        assert not await engine.is_paused()
        assert told(world.of("solo")) == ["load"]
        await engine.sleep(2, force=True)
        assert await engine.sleeping() == {"solo": {0: ("cache", "weights")}}


@pytest.mark.rule("ORCH-INV-233", "ORCH-INV-235")
def test_a_state_moves_by_confirmations_alone() -> None:
    """Whatever is asked for: nothing is shown as done before every replica has said so."""
    world = World(*voice(), replicas=2)
    carry_out(world, Pause(PauseMode.WAIT))
    done: list[tuple[Operation, BarrierState, BarrierState]] = [
        (Sleep(1, TAGS), BarrierState.FALLING_ASLEEP, BarrierState.ASLEEP),
        (WakeUp(TAGS), BarrierState.WAKING, BarrierState.QUIESCED),
        (Resume(), BarrierState.OPENING, BarrierState.OPEN),
    ]
    for operation, going, gone in done:
        world.control(operation)
        while world.calls()[0].method == "pause":
            world.answer(world.calls()[0])
        calls = world.calls()
        assert len(calls) == 4
        for number, call in enumerate(calls):
            expected = {"a": gone if number >= 2 else going, "b": going}
            assert barriers(world) == expected
            world.answer(call)
        assert set(barriers(world).values()) == {gone}


# 234


@pytest.mark.rule("ORCH-INV-234")
@pytest.mark.parametrize("held", list(HoldPolicy))
async def test_while_a_tag_sleeps_only_work_for_that_stage_is_kept_back(held: HoldPolicy) -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        await engine.sleep(1, stages=["vocoder"], held=held)
        await engine.wake_up(["weights"], stages=["vocoder"])
        assert (await engine.barriers())["vocoder"] is BarrierState.ASLEEP, "the cache still sleeps"
        with pytest.raises(ControlRejectedError, match="stage 'vocoder' is asleep; wake it up first"):
            await engine.resume_generation(stages=["vocoder"])
        assert (await engine.generate("x", outputs=["text"]).collect()).outcome is Outcome.COMPLETED
        stream = engine.generate("both")
        if held is HoldPolicy.REFUSE:
            assert isinstance(await failure_of(stream), StageUnavailableError)
        await engine.wake_up(["cache"], stages=["vocoder"])
        assert (await engine.barriers())["vocoder"] is BarrierState.QUIESCED, "nothing but memory is restored"
        assert world.of("vocoder").times_told("submit") == 0
        await engine.resume_generation()
        if held is HoldPolicy.HOLD:
            assert (await stream.collect()).outcome is Outcome.COMPLETED


@pytest.mark.rule("ORCH-INV-234")
async def test_waking_what_is_awake_does_nothing() -> None:
    world = ShellWorld()
    async with serving(world) as engine:
        assert [record.ok for record in (await engine.wake_up()).records] == [True]
        await engine.pause_generation("keep")
        await engine.wake_up(["weights"])
        assert told(world.of("solo")) == ["load", "call pause"]
        assert await engine.barriers() == {"solo": BarrierState.QUIESCED}


@pytest.mark.rule("ORCH-INV-234", "ORCH-INV-236")
@pytest.mark.parametrize("way", ["silent", "failed", "overtaken"])
def test_half_a_wake_up_does_not_wake_what_may_be_asleep(way: str) -> None:
    """A replica was told to sleep, and nobody knows whether it did."""
    world = World(make_stage("a", output="out"))
    carry_out(world, Pause(PauseMode.WAIT))
    world.control(Sleep(1, {"a": ("cache", "weights")}), timeout_s=1.0)
    world.answer(world.calls()[0])
    if way == "silent":
        world.wait(1.0)
    elif way == "failed":
        world.answer(world.calls()[0], error=FAILED)
    carry_out(world, WakeUp({"a": ("weights",)}))
    assert barriers(world) == {"a": BarrierState.ASLEEP}
    world.control(Resume())
    assert last_answer(world).error is not None
    carry_out(world, WakeUp({"a": ("cache",)}), Resume())
    assert barriers(world) == {"a": BarrierState.OPEN}


# 235


@pytest.mark.rule("ORCH-INV-235")
def test_without_targets_every_stage_is_meant_and_each_opens_by_its_own_resume() -> None:
    world = World(*voice())
    carry_out(world, Pause(PauseMode.KEEP))
    world.submit("text", outputs=("text",))
    world.submit("both")
    for operation in (Pause(PauseMode.WAIT), WakeUp(TAGS), CallMethod("m"), Pause(PauseMode.ABORT)):
        carry_out(world, operation)
        assert world.core.statistics().held == 2, "only a resume opens"
    world.control(Resume(), "a")
    assert lines(world.answer_all())[-1] == "start text/a on a[0]@0"
    assert world.core.statistics().held == 1
    world.control(Resume(), "b")
    assert lines(world.answer_all())[-1] == "start both/a on a[0]@0"


@pytest.mark.rule("ORCH-INV-235", "ORCH-INV-204")
async def test_nobody_is_held_for_ever_and_the_wait_is_named() -> None:
    clock = VirtualClock()
    world = ShellWorld()
    async with serving(world, AsyncOmniEngine(world.parts(), clock=clock)) as engine:
        await engine.pause_generation()
        stream = engine.generate("x")
        await engine.abort([])
        await pass_time(engine, clock, 299.0)
        assert (await engine.statistics()).core.held == 1
        await pass_time(engine, clock, 1.0)
        error = await failure_of(stream)
        assert str(error) == "timed out after 300 s waiting for admission (limits.hold_timeout_s)"


# 236

REPAIRS: list[tuple[str, Sequence[Operation], Operation, Sequence[Operation]]] = [
    ("pause", (), Pause(PauseMode.KEEP), (Pause(PauseMode.KEEP),)),
    ("pause", (), Pause(PauseMode.KEEP), (Resume(),)),
    ("resume", (Pause(PauseMode.KEEP),), Resume(), (Resume(),)),
    ("resume", (Pause(PauseMode.KEEP),), Resume(), (Pause(PauseMode.KEEP),)),
    ("sleep", (Pause(PauseMode.KEEP),), Sleep(1, TAGS), (Sleep(1, TAGS),)),
    ("sleep", (Pause(PauseMode.KEEP),), Sleep(1, TAGS), (WakeUp(TAGS), Resume())),
    ("wake_up", (Sleep(1, TAGS),), WakeUp(TAGS), (WakeUp(TAGS), Resume())),
    ("wake_up", (Sleep(1, TAGS),), WakeUp(TAGS), (Sleep(1, TAGS),)),
    (
        "update_weights",
        (Pause(PauseMode.KEEP), BeginUpdate(1)),
        UpdateWeights(),
        (BeginUpdate(1), UpdateWeights(), CommitUpdate(), Resume()),
    ),
    (
        "update_weights",
        (Pause(PauseMode.KEEP), BeginUpdate(1)),
        UpdateWeights(),
        (RollBackUpdate({"method": "restore"}), Resume()),
    ),
]


@pytest.mark.rule("ORCH-INV-236")
@pytest.mark.parametrize("way", ["failed", "silent", "lost"])
@pytest.mark.parametrize(("method", "before", "operation", "repair"), REPAIRS)
def test_what_failed_is_repaired_by_itself_and_by_its_opposite(
    way: str, method: str, before: Sequence[Operation], operation: Operation, repair: Sequence[Operation]
) -> None:
    world = World(*voice(), replicas=2)
    carry_out(world, *before)
    world.control(operation, timeout_s=1.0)
    while world.calls()[0].method != method:
        world.answer(world.calls()[0])
    broken, *well = world.calls()
    if way == "failed":
        world.answer(broken, error=FAILED)
    elif way == "lost":
        world.lose(broken.replica.stage, broken.replica.slot)
    for call in well:
        world.answer(call)
    world.wait(1.0)
    error = last_answer(world).error
    assert error is not None
    assert (error.stage, error.replica) == (broken.replica.stage, broken.replica.slot)
    if way != "lost" and isinstance(operation, Resume):
        assert barriers(world)["a"] is BarrierState.OPENING, "not open before all have confirmed"
    carry_out(world, *repair)
    ends = {BarrierState.OPEN} if isinstance(repair[-1], Resume) else {BarrierState.QUIESCED, BarrierState.ASLEEP}
    assert set(barriers(world).values()) <= ends
    if isinstance(repair[-1], Resume):
        assert lines(world.submit("after"))[0].startswith("start after/a")


@pytest.mark.rule("ORCH-INV-236")
@pytest.mark.parametrize("opposite", [True, False])
async def test_a_call_that_its_caller_gave_up_can_be_repaired(opposite: bool) -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        await world.of("talker").script("pause", CALL_HANGS)
        pausing = group.create_task(engine.pause_generation("keep"))
        await world.of("talker").wait_told("call pause")
        pausing.cancel()
        await turns()
        if not opposite:
            await engine.pause_generation("keep")
            assert await engine.is_paused()
        await engine.resume_generation()
        assert (await engine.generate("x").collect()).outcome is Outcome.COMPLETED
        await world.of("talker").release()


# 237


@pytest.mark.rule("ORCH-INV-237")
@pytest.mark.parametrize("method", ["reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache"])
async def test_a_reset_reaches_every_live_replica_once_in_every_state(method: str) -> None:
    world = ShellWorld(*CHAIN, replicas=2)
    async with serving(world) as engine:
        reset: Callable[[], Awaitable[ControlReport]] = getattr(engine, method)
        dead = world.of("talker", 1)
        await dead.at(dead.die)
        while len((await engine.statistics()).core.stages["talker"].replicas) == 2:
            pass
        states: list[Callable[[], Awaitable[object]]] = [engine.pause_generation, engine.sleep, engine.wake_up]
        for number, prepare in enumerate([engine.resume_generation, *states], 1):
            await prepare()
            report = await reset()
            places = [(record.stage, record.replica, record.value) for record in report.records]
            assert places == [
                ("thinker", 0, True),
                ("thinker", 1, True),
                ("talker", 0, True),
                ("vocoder", 0, True),
                ("vocoder", 1, True),
            ]
            live = [backend for key, backend in world.backends.items() if key != ("talker", 1, 0)]
            assert {sum(one.method == f"call {method}" for one in backend.told) for backend in live} == {number}


# 238


@pytest.mark.rule("ORCH-INV-238")
async def test_an_update_that_fails_anywhere_keeps_every_stage_of_it_closed() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        await engine.pause_generation("abort")
        await engine.begin_weight_update(1)
        await world.of("talker").script("update_weights", CALL_FAILS)
        with pytest.raises(ControlError, match="'update_weights' failed at stage 'talker'"):
            await engine.update_weights("load")
        held = engine.generate("x")
        for stage in CHAIN:
            with pytest.raises(ControlRejectedError, match=f"the weights of stage '{stage.name}' are broken"):
                await engine.resume_generation(stages=[stage.name])
            with pytest.raises(ControlRejectedError, match="begin an update first"):
                await engine.commit_weight_update(stages=[stage.name])
        assert await engine.weights_versions() == {"thinker": 0, "talker": 0, "vocoder": 0}
        await engine.begin_weight_update(1)
        await engine.update_weights("load")
        await engine.commit_weight_update()
        await engine.resume_generation()
        items = [item async for item in held]
        assert {item.weights_version for item in items} == {1}


@pytest.mark.rule("ORCH-INV-238")
async def test_every_output_carries_the_version_of_its_stage() -> None:
    world = ShellWorld(*CHAIN)
    async with serving(world) as engine:
        for version in (1, 2):
            await engine.pause_generation("wait")
            await engine.begin_weight_update(version, stages=["thinker"])
            await engine.update_weights("load", stages=["thinker"])
            await engine.commit_weight_update(stages=["thinker"])
            await engine.resume_generation()
            items = [item async for item in engine.generate("x")]
            assert {(item.output, item.weights_version) for item in items} == {("text", version), ("speech", 0)}


@pytest.mark.rule("ORCH-INV-238")
@pytest.mark.parametrize("state", list(FenceState))
@pytest.mark.parametrize("operation", [Pause(PauseMode.WAIT), Sleep(1, TAGS)])
def test_frozen_work_is_not_let_go_while_nobody_knows_its_weights(state: FenceState, operation: Operation) -> None:
    """A drain would run steps on weights of no known version, and deliver what they make."""
    world = World(make_stage("a", output="out"))
    world.submit()
    carry_out(world, Pause(PauseMode.KEEP))
    if state is not FenceState.SETTLED:
        carry_out(world, BeginUpdate(1))
    if state is FenceState.BROKEN:
        world.control(UpdateWeights())
        world.answer(world.calls()[0], error=FAILED)
    assert world.core.statistics().stages["a"].fence is state
    world.control(operation)
    resumed = [call for call in world.calls() if call.method == "resume"]
    if state is FenceState.SETTLED:
        assert len(resumed) == 1
        return
    error = last_answer(world).error
    assert (resumed, error and error.kind) == ([], ErrorKind.CONTROL_REJECTED)
    assert lines(world.control(Pause(PauseMode.ABORT))) == ["stop r/a"]
    world.stopped("a")
    world.answer_all()
    assert last_answer(world).error is None


@pytest.mark.rule("ORCH-INV-238")
def test_an_update_is_complete_when_the_last_replica_has_it() -> None:
    """One that came up in the middle, too; and one that comes after the commit gets no work before it was updated."""
    world = World(make_stage("a", output="out"))
    carry_out(world, Pause(PauseMode.WAIT), BeginUpdate(1), UpdateWeights())
    world.join("a", 1)
    world.control(CommitUpdate())
    error = last_answer(world).error
    assert error is not None
    assert error.message == "the update of stage 'a' is not complete: replica 1 has not confirmed it"
    carry_out(world, UpdateWeights(), CommitUpdate())
    world.join("a", 2)
    carry_out(world, Resume())
    for number in range(6):
        world.submit(f"r{number}")
    assert {world.at("a", f"r{number}").replica.slot for number in range(6)} == {0, 1}


@pytest.mark.rule("ORCH-INV-238")
async def test_weights_are_changed_while_no_step_runs() -> None:
    """Under traffic, for ten versions: between pause and resume a replica is told nothing of jobs."""
    world = ShellWorld(limited(SOLO, max_inflight=4), replicas=2)
    async with serving(world) as engine, asyncio.TaskGroup() as group:
        streams = Streams(engine, group)
        for version in range(1, 11):
            streams.open(*(f"r{version}.{number}" for number in range(8)))
            await engine.pause_generation("abort" if version % 2 else "wait")
            await engine.begin_weight_update(version)
            await engine.update_weights("load")
            await engine.commit_weight_update()
            await engine.resume_generation()
        await asyncio.wait(streams.tasks.values())
        for slot in (0, 1):
            names = told(world.of("solo", slot))
            for number, name in enumerate(names):
                if name == "call pause":
                    assert names[number : number + 3] == ["call pause", "call update_weights", "call resume"]


# 239


@pytest.mark.rule("ORCH-INV-239", "ORCH-INV-205")
@pytest.mark.parametrize("first", ["abort", "pause", "at once"])
async def test_the_collocated_training_step_again_and_again(first: str) -> None:
    """In either order of abort and pause the prefixes are delivered; what goes on from them has the new weights."""
    scripts = {**SCRIPTS, "question": (Script(outputs=(Text("the "), Text("beginning")), then=Then.HANG),)}
    world = ShellWorld(SOLO, replicas=2, scripts=scripts)
    async with serving(world) as engine:
        for version in range(1, 4):
            streams = [engine.generate("question", request_id=f"r{number}") for number in range(8)]
            for stream in streams:
                await anext(stream)
            ids = [stream.request_id for stream in streams]
            if first == "abort":
                await engine.abort(ids)
                await engine.pause_generation("abort")
            elif first == "pause":
                await engine.pause_generation("keep")
                await engine.abort(ids)
            else:
                await asyncio.gather(engine.abort(ids), engine.pause_generation("abort"))
            prefixes = [(await stream.collect_whatever()).outputs["text"] for stream in streams]
            await engine.sleep(1)
            await engine.wake_up()
            await engine.begin_weight_update(version)
            await engine.update_weights("load")
            await engine.commit_weight_update()
            assert (await engine.reset_prefix_cache()).is_true
            await engine.resume_generation()
            assert all(isinstance(prefix, Text) and prefix.text.startswith("the ") for prefix in prefixes)
            going_on = [engine.generate(prefix.text) for prefix in prefixes if isinstance(prefix, Text)]
            for stream, prefix in zip(going_on, prefixes, strict=True):
                items = [item async for item in stream]
                assert (items[0].delta, {item.weights_version for item in items}) == (prefix, {version})
        assert (await settled(engine)).is_idle


# Control within the rules for requests


@pytest.mark.rule("ORCH-INV-101", "ORCH-INV-118")
def test_a_pause_in_the_midst_takes_no_credit_and_loses_no_request() -> None:
    world = World(make_stage("a", output="out", limits=Limits(max_inflight=1, max_queued=3)))
    for number in range(4):
        world.submit(f"r{number}")
    carry_out(world, Pause(PauseMode.KEEP), Resume())
    for number in range(4):
        world.finish("a", f"{number}", request_id=f"r{number}")
        assert world.emitted(f"r{number}") == [f"{number}"]
    assert world.core.statistics().is_idle


@pytest.mark.rule("ORCH-INV-238", "ORCH-INV-108")
def test_a_streaming_consumer_is_fed_by_the_version_that_made_it() -> None:
    world = World(make_stage("a", output="text"), make_stage("b", streaming("a"), output="speech"))
    world.submit()
    world.produce("a", "x")
    carry_out(world, Pause(PauseMode.KEEP), BeginUpdate(2), UpdateWeights(), CommitUpdate(), Resume())
    world.finish("a", "y")
    world.finish("b", "z")
    versions = [
        (one.stage, one.weights_version) for one in world.effects if isinstance(one, EmitOutput) and one.payloads
    ]
    assert versions == [("a", 0), ("a", 2), ("b", 2)]
