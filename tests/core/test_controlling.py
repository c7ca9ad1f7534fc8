"""Control of the engine in the core: fan-out, barriers, sleep, weights, and what comes of failures."""

from __future__ import annotations

import pytest

from podium.core.admission import EngineLimits
from podium.core.effects import CallReplica, ControlRecord, EmitOutput, ReplyControl
from podium.core.events import CallReturned, ShutdownRequested
from podium.core.graph import Limits
from podium.core.lifecycle import BarrierState, FenceState
from podium.core.operations import (
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    HoldPolicy,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind, ErrorRecord, Scope
from tests.support.core_world import World, a_loss, guided, lines, make_stage, streaming, voice

ABORT, WAIT, KEEP = Pause(PauseMode.ABORT), Pause(PauseMode.WAIT), Pause(PauseMode.KEEP)
RESET = CallMethod("reset", {"x": 1})
FAILED = ErrorRecord(kind=ErrorKind.CONTROL_FAILED, scope=Scope.REPLICA, message="it broke")


def single(*, replicas: int = 1, limits: EngineLimits | None = None) -> World:
    stage_limits = Limits(max_inflight=1, queue_timeout_s=5.0, first_output_timeout_s=5.0, chunk_timeout_s=5.0)
    return World(make_stage("a", output="out", limits=stage_limits), limits=limits, replicas=replicas)


def answers(world: World) -> list[ReplyControl]:
    return [effect for effect in world.effects if isinstance(effect, ReplyControl)]


def error(world: World) -> ErrorRecord:
    found = answers(world)[-1].error
    assert found is not None
    return found


def state(world: World, stage: str = "a") -> BarrierState:
    return world.core.statistics().stages[stage].barrier


def asleep(world: World, stage: str = "a") -> list[tuple[str, ...]]:
    return [replica.asleep for replica in world.core.statistics().stages[stage].replicas]


def sleep(*tags: str, mode: PauseMode = PauseMode.WAIT, stages: str = "a") -> Sleep:
    return Sleep(1, dict.fromkeys(stages, tags), mode)


def wake(*tags: str) -> WakeUp:
    return WakeUp({"a": tags})


class TestCalls:
    @pytest.mark.rule("ORCH-INV-230")
    def test_they_fan_out_and_are_answered_once_with_a_record_for_each_replica(self) -> None:
        world = World(*voice(), replicas=2)
        assert lines(world.control(RESET, "b", "a")) == [
            "call b[0]@0 reset x=1",
            "call b[1]@0 reset x=1",
            "call a[0]@0 reset x=1",
            "call a[1]@0 reset x=1",
        ]
        for number, call in enumerate(reversed(world.calls())):
            world.answer(call, value=number)
        assert answers(world) == [
            ReplyControl(1, tuple(ControlRecord(stage, slot, ok=True, value=value) for stage, slot, value in RECORDS))
        ]
        assert world.core.statistics().is_idle

    @pytest.mark.rule("ORCH-INV-231")
    @pytest.mark.case("B045")
    def test_one_that_fails_somewhere_fails_and_has_the_other_answers(self) -> None:
        world = single(replicas=3)
        world.control(RESET)
        first, second, third = world.calls()
        world.answer(third, "three")
        world.answer(first, "one")
        assert lines(world.answer(second, error=FAILED)) == [
            "answer 1 control_failed: a[0] ok, a[1] control_failed, a[2] ok"
        ]
        assert error(world) == ErrorRecord(
            kind=ErrorKind.CONTROL_FAILED, scope=Scope.REPLICA, stage="a", replica=1, message="it broke"
        )

    @pytest.mark.rule("ORCH-INV-231")
    @pytest.mark.case("B100")
    @pytest.mark.parametrize(
        "kind", [ErrorKind.UNSUPPORTED, ErrorKind.STALE_VERSION, ErrorKind.CONTROL_REJECTED, ErrorKind.CLEANUP_PENDING]
    )
    def test_failures_that_share_a_kind_keep_it(self, kind: ErrorKind) -> None:
        world = single(replicas=2)
        world.control(RESET)
        for call in world.calls():
            world.answer(call, error=ErrorRecord(kind=kind, scope=Scope.REPLICA, message="no"))
        assert (error(world).kind, error(world).scope, error(world).stage) == (kind, Scope.STAGE, "a")

    @pytest.mark.rule("ORCH-INV-230")
    @pytest.mark.case("B102")
    def test_who_does_not_answer_in_time_is_named_and_its_late_answer_dropped(self) -> None:
        world = single(replicas=2)
        world.control(RESET, timeout_s=0.1)
        silent, prompt = world.calls()
        world.answer(prompt, "well")
        assert lines(world.wait(0.1)) == ["answer 1 control_timeout: a[0] control_timeout, a[1] ok"]
        assert error(world).message == "replica 0 of stage 'a' did not answer 'reset' in time"
        assert (error(world).stage, error(world).replica, error(world).awaited) == ("a", 0, "the answer to 'reset'")
        assert world.core.statistics().is_idle
        assert lines(world.answer(silent, "late")) == ["release late"]
        assert world.tell(CallReturned(silent.replica, silent.call)) == []
        assert world.core.statistics().counters.dropped == 2

    def test_an_answer_from_elsewhere_is_no_answer(self) -> None:
        world = single(replicas=2)
        world.control(RESET)
        first, second = world.calls()
        assert lines(world.tell(CallReturned(second.replica, first.call, "x"))) == ["release x"]

    @pytest.mark.rule("ORCH-INV-231")
    def test_a_replica_that_dies_or_leaves_is_named(self) -> None:
        world = single(replicas=3)
        world.control(RESET)
        other = world.control(RESET, timeout_s=50.0)
        assert len(other) == 3
        world.lose("a", 0)
        world.drain("a", 1)
        world.answer_all()
        assert [lines([one])[0] for one in answers(world)] == [
            "answer 1 control_failed: a[0] replica_lost, a[1] replica_lost, a[2] ok",
            "answer 2 control_failed: a[0] replica_lost, a[1] replica_lost, a[2] ok",
        ]
        assert error(world).message == (
            "replica 0 of stage 'a' was lost before it answered 'reset'; "
            "replica 1 of stage 'a' was drained before it answered 'reset'"
        )

    def test_a_stage_without_replicas_cannot_be_called(self) -> None:
        world = World(*voice())
        world.lose("b")
        world.control(RESET)
        assert (
            lines(world.answer(world.calls()[0]))[-1] == "answer 1 control_failed: a[0] ok, b[None] stage_unavailable"
        )
        assert error(world).message == "stage 'b' has no live replica to call"
        world.lose("a")
        assert lines(world.control(RESET, "a")) == ["answer 2 control_failed: a[None] stage_unavailable"]

    @pytest.mark.rule("ORCH-INV-304")
    def test_a_shutdown_answers_all_and_lets_none_in(self) -> None:
        world = single()
        world.control(RESET)
        world.control(KEEP)
        stop = ErrorRecord(kind=ErrorKind.ENGINE_STOPPED, scope=Scope.ENGINE, message="the engine is shut down")
        assert lines(world.tell(ShutdownRequested(stop))) == ["answer 1 engine_stopped: ", "answer 2 engine_stopped: "]
        assert world.core.statistics().control_calls == 0
        assert lines(world.control(RESET)) == ["answer 3 engine_stopped: "]


RECORDS = [("b", 0, 3), ("b", 1, 2), ("a", 0, 1), ("a", 1, 0)]


class TestPausing:
    @pytest.mark.rule("ORCH-INV-232", "ORCH-INV-205")
    def test_abort_ends_running_work_with_its_prefix_before_replicas_are_asked(self) -> None:
        world = single()
        world.submit("running")
        world.produce("a", "x", request_id="running")
        world.submit("queued")
        assert lines(world.control(ABORT)) == ["stop running/a", "emit a@0= abort last", "end queued aborted"]
        assert state(world) is BarrierState.CLOSING
        assert world.submit("held") == []
        assert lines(world.stopped("a", "x", "running")) == [
            "emit a@1= abort partial=x last",
            "end running aborted",
            "call a[0]@0 pause mode=abort",
        ]
        assert lines(world.answer_all()) == ["answer 1: a[0] ok"]
        assert state(world) is BarrierState.QUIESCED
        assert lines(world.control(Resume())) == ["call a[0]@0 resume"]
        assert state(world) is BarrierState.OPENING
        assert lines(world.answer_all()) == ["answer 2: a[0] ok", "start held/a on a[0]@0"]

    @pytest.mark.rule("ORCH-INV-232")
    def test_wait_lets_what_was_admitted_drain(self) -> None:
        world = single()
        world.submit("running")
        world.submit("queued")
        assert world.control(WAIT) == []
        world.submit("held")
        assert lines(world.finish("a", "x", request_id="running"))[-1] == "start queued/a on a[0]@0"
        assert lines(world.finish("a", "y", request_id="queued"))[-1] == "call a[0]@0 pause mode=wait"
        world.answer_all()
        assert state(world) is BarrierState.QUIESCED
        assert world.core.statistics().held == 1

    @pytest.mark.rule("ORCH-INV-232")
    def test_a_drain_waits_for_what_will_still_come_to_the_stage(self) -> None:
        world = World(*voice())
        world.submit()
        assert world.control(WAIT, "b") == []
        world.produce("a", "x")
        assert lines(world.finish("a"))[-1] == "end input r/b a stop"
        assert lines(world.finish("b"))[-1] == "call b[0]@0 pause mode=wait"

    @pytest.mark.rule("ORCH-INV-232", "ORCH-INV-235")
    def test_abort_takes_only_what_still_needs_the_stage(self) -> None:
        world = World(*voice(), replicas=2)
        world.submit("past")
        world.finish("a", "x", request_id="past")
        world.submit("there")
        world.submit("text", outputs=("text",))
        assert lines(world.control(ABORT, "b"))[0:1] == ["stop past/b"]
        assert world.core.statistics().aborting == 2
        assert lines(world.finish("a", "x", request_id="text"))[-1] == "end text completed"

    @pytest.mark.rule("ORCH-INV-232")
    def test_keep_lets_everything_stand_still(self) -> None:
        world = single()
        world.submit("running")
        world.submit("queued")
        assert lines(world.control(KEEP)) == ["call a[0]@0 pause mode=keep"]
        assert lines(world.finish("a", "late", request_id="running")) == [
            "emit a@0=late stop last",
            "end running completed",
        ]
        world.answer_all()
        assert state(world) is BarrierState.QUIESCED
        world.control(Resume())
        assert lines(world.answer_all())[-1] == "start queued/a on a[0]@0"

    @pytest.mark.rule("ORCH-INV-204")
    def test_what_stands_still_does_not_time_out_and_begins_its_wait_anew(self) -> None:
        world = single()
        world.submit()
        world.start("a")
        world.submit("queued")
        world.wait(4.0)
        world.control(KEEP)
        world.answer_all()
        assert world.wait(5.0) == []
        world.control(Resume())
        world.answer_all()
        assert world.wait(4.9) == []
        assert "end r failed wait_timeout" in lines(world.wait(0.1))

    @pytest.mark.rule("ORCH-INV-204")
    def test_nothing_stands_still_beyond_the_limit(self) -> None:
        world = single(limits=EngineLimits(hold_timeout_s=7.0))
        world.submit()
        world.control(KEEP)
        world.answer_all()
        world.wait(6.9)
        assert "end r failed wait_timeout" in lines(world.wait(0.1))
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.message == "timed out after 7 s waiting for the resume of stage 'a' (limits.hold_timeout_s)"

    @pytest.mark.rule("ORCH-INV-204")
    def test_to_pause_again_does_not_lengthen_it(self) -> None:
        world = single(limits=EngineLimits(hold_timeout_s=7.0))
        world.submit()
        world.control(KEEP)
        world.answer_all()
        world.wait(5.0)
        world.control(KEEP)
        world.answer_all()
        assert "end r failed wait_timeout" in lines(world.wait(2.0))

    @pytest.mark.rule("ORCH-INV-204", "ORCH-INV-115")
    @pytest.mark.parametrize(("stage", "waits"), [("a", True), ("b", True), ("c", False)])
    def test_a_bundle_waits_on_where_its_sample_stands_still(self, stage: str, waits: bool) -> None:
        limits = Limits(bundle_timeout_s=9.0)
        world = World(
            *guided(limits=limits), make_stage("c", output="text"), limits=EngineLimits(hold_timeout_s=7.0), replicas=2
        )
        world.submit(companions={"negative": "no"})
        for name in "at":
            world.finish(name, "x", sibling="main")
        world.finish("c", "done")
        world.wait(1.0)
        world.control(KEEP, stage)
        world.answer_all()
        assert world.wait(6.9) == []
        ended = lines(world.wait(0.1))
        assert ("end r failed wait_timeout" in ended) is waits
        if not waits:
            assert world.wait(0.9) == []
            world.wait(0.1)
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.awaited == (f"the resume of stage '{stage}'" if waits else "companions negative at stage 'b'")

    @pytest.mark.rule("ORCH-INV-205", "ORCH-INV-210")
    @pytest.mark.parametrize("by_pause", [True, False])
    def test_what_stands_still_can_be_aborted(self, by_pause: bool) -> None:
        world = single()
        world.submit()
        world.produce("a", "x")
        world.control(KEEP)
        world.answer_all()
        assert "stop r/a" in lines(world.control(ABORT) if by_pause else world.abort("r"))
        assert state(world) is BarrierState.QUIESCED
        assert lines(world.stopped("a", "x"))[:2] == ["emit a@1= abort partial=x last", "end r aborted"]

    @pytest.mark.rule("ORCH-INV-232")
    def test_what_stands_still_is_let_go_to_drain(self) -> None:
        world = single()
        world.submit("r")
        world.submit("queued")
        world.control(KEEP)
        world.answer_all()
        assert lines(world.control(WAIT)) == ["call a[0]@0 resume"]
        assert state(world) is BarrierState.CLOSING
        assert world.answer_all() == []
        assert lines(world.finish("a", "x"))[-1] == "start queued/a on a[0]@0"
        assert lines(world.finish("a", "x", request_id="queued"))[-1] == "call a[0]@0 pause mode=wait"

    @pytest.mark.rule("ORCH-INV-232", "ORCH-INV-235")
    @pytest.mark.case("B053")
    def test_a_stage_is_paused_once_its_last_replica_has_confirmed(self) -> None:
        world = World(*voice(), replicas=2)
        world.control(KEEP)
        for call in world.calls("a"):
            assert state(world, "a") is BarrierState.CLOSING
            world.answer(call)
        assert (state(world, "a"), state(world, "b")) == (BarrierState.QUIESCED, BarrierState.CLOSING)
        assert answers(world) == []

    @pytest.mark.rule("ORCH-INV-232", "ORCH-INV-204")
    def test_what_does_not_drain_in_time_is_named(self) -> None:
        world = World(*voice())
        world.submit()
        world.control(WAIT, timeout_s=1.0)
        assert lines(world.wait(1.0)) == ["answer 1 control_timeout: a[0] control_timeout, b[0] control_timeout"]
        assert error(world).message == (
            "stage 'a' has not drained in time: replica 0 has 1 jobs, and requests that were admitted may still need it"
            "; stage 'b' has not drained in time: replica 0 has 0 jobs, "
            "and requests that were admitted may still need it"
        )
        assert state(world) is BarrierState.CLOSING

    @pytest.mark.rule("ORCH-INV-236")
    def test_a_failed_pause_is_repaired_by_itself_and_by_its_opposite(self) -> None:
        for repair in (KEEP, Resume()):
            world = single(replicas=2)
            world.control(KEEP)
            first, second = world.calls()
            world.answer(first)
            world.answer(second, error=FAILED)
            assert state(world) is BarrierState.CLOSING
            assert world.submit() == []
            world.control(repair)
            world.answer_all()
            assert answers(world)[-1].error is None
            assert state(world) is (BarrierState.OPEN if isinstance(repair, Resume) else BarrierState.QUIESCED)

    @pytest.mark.rule("ORCH-INV-236")
    def test_a_failed_resume_leaves_the_stage_closed(self) -> None:
        world = single()
        world.control(KEEP)
        world.answer_all()
        world.control(Resume())
        world.answer(world.calls()[0], error=FAILED)
        assert state(world) is BarrierState.OPENING
        assert world.submit() == []
        world.control(Resume())
        assert "start r/a on a[0]@0" in lines(world.answer_all())

    @pytest.mark.rule("ORCH-INV-236")
    def test_the_later_call_takes_over(self) -> None:
        world = single()
        world.control(KEEP)
        (late,) = world.calls()
        assert lines(world.control(Resume())) == ["answer 1 superseded: ", "call a[0]@0 resume"]
        superseded = answers(world)[0].error
        assert superseded is not None
        assert superseded.message == "Pause was not done when Resume took over stage 'a'"
        assert world.answer(late) == []
        assert state(world) is BarrierState.OPENING
        world.answer_all()
        assert state(world) is BarrierState.OPEN

    @pytest.mark.rule("ORCH-INV-230", "ORCH-INV-236")
    def test_a_call_that_moves_nothing_leaves_the_one_in_charge(self) -> None:
        world = single()
        world.submit("r")
        world.control(WAIT)
        world.control(RESET)
        assert lines(world.answer_all()) == ["answer 2: a[0] ok"]
        assert lines(world.control(Resume())) == ["answer 1 superseded: ", "call a[0]@0 resume"]

    @pytest.mark.rule("ORCH-INV-236")
    def test_nothing_starts_in_a_stage_that_drained_and_is_resumed_before_it_is_open(self) -> None:
        for repair in (Resume(), WAIT):
            world = single()
            world.submit("r")
            world.submit("queued")
            world.control(WAIT)
            world.control(Resume())
            assert "start queued/a on a[0]@0" not in lines(world.finish("a", "x"))
            assert state(world) is BarrierState.OPENING
            assert "start queued/a on a[0]@0" in lines(world.control(repair) + world.answer_all())

    @pytest.mark.rule("ORCH-INV-236")
    def test_what_was_not_let_go_by_all_stands_still(self) -> None:
        world = single()
        world.submit("r")
        world.submit("queued")
        world.control(KEEP)
        world.answer_all()
        world.control(WAIT)
        (late,) = world.calls()
        assert lines(world.control(wake("kv"))) == ["answer 2 superseded: ", "answer 3: a[0] ok"]
        assert world.answer(late) == []
        assert "start queued/a on a[0]@0" not in lines(world.finish("a", "x"))
        world.control(WAIT)
        assert "start queued/a on a[0]@0" in lines(world.answer_all())

    @pytest.mark.rule("ORCH-INV-230")
    def test_a_slot_has_one_record_whoever_lived_in_it(self) -> None:
        world = single(replicas=2)
        world.submit()
        world.control(KEEP)
        world.answer_all()
        world.control(WAIT)
        for call in world.calls():
            world.answer(call, f"{call.replica} let go")
        world.lose("a", 1)
        world.join("a", 1, generation=1)
        assert lines(world.finish("a", "x"))[-2:] == [
            "call a[0]@0 pause mode=wait",
            "call a[1]@1 pause mode=wait",
        ]
        assert lines(world.answer_all()) == [
            "release a[0]@0 let go",
            "release a[1]@0 let go",
            "answer 2: a[0] ok, a[1] ok",
        ]

    @pytest.mark.rule("ORCH-INV-231")
    def test_a_loss_during_a_pause_is_named_and_the_others_still_stand_still(self) -> None:
        world = single(replicas=2)
        world.control(KEEP)
        world.lose("a", 0)
        world.answer_all()
        assert lines([answers(world)[0]]) == ["answer 1 control_failed: a[0] replica_lost, a[1] ok"]
        assert state(world) is BarrierState.QUIESCED

    def test_a_stage_without_replicas_is_quiet(self) -> None:
        world = single()
        world.lose("a")
        assert lines(world.control(KEEP)) == ["answer 1: "]
        assert state(world) is BarrierState.QUIESCED

    @pytest.mark.rule("ORCH-INV-234")
    def test_resuming_what_works_is_harmless(self) -> None:
        world = single()
        assert lines(world.control(Resume())) == ["answer 1: a[0] ok"]

    @pytest.mark.rule("ORCH-INV-235")
    def test_what_is_held_waits_for_the_last_of_its_stages(self) -> None:
        world = World(*voice())
        world.control(KEEP)
        world.answer_all()
        world.submit(deadline=50.0)
        world.control(Resume(), "b")
        assert lines(world.answer_all()) == ["answer 2: b[0] ok"]
        world.control(Resume(), "a")
        assert lines(world.answer_all()) == ["answer 3: a[0] ok", "start r/a on a[0]@0"]

    def test_refusing(self) -> None:
        world = single()
        world.control(Pause(PauseMode.WAIT, HoldPolicy.REFUSE))
        assert lines(world.submit()) == ["refuse r stage_unavailable"]


class TestSleeping:
    @pytest.mark.rule("ORCH-INV-233")
    @pytest.mark.case("B016")
    def test_it_closes_drains_pauses_and_then_sleeps(self) -> None:
        world = single(replicas=2)
        world.submit()
        assert world.control(sleep("kv", "weights")) == []
        assert world.submit("held") == []
        assert lines(world.finish("a", "x"))[2:] == ["call a[0]@0 pause mode=wait", "call a[1]@0 pause mode=wait"]
        first, second = world.calls()
        world.answer(first)
        assert lines(world.answer(second))[0] == "call a[0]@0 sleep level=1 tags=('kv', 'weights')"
        assert state(world) is BarrierState.FALLING_ASLEEP
        world.answer(world.calls()[0])
        assert asleep(world) == [("kv", "weights"), ()]
        world.answer_all()
        assert state(world) is BarrierState.ASLEEP
        assert asleep(world) == [("kv", "weights")] * 2

    @pytest.mark.rule("ORCH-INV-234")
    @pytest.mark.case("B019")
    @pytest.mark.case("B056")
    def test_waking_restores_memory_and_nothing_else(self) -> None:
        world = single()
        world.control(sleep("kv", "weights"))
        world.answer_all()
        world.submit("held")
        world.control(Resume())
        assert error(world).message == "stage 'a' is asleep; wake it up first"
        world.control(wake("weights"))
        assert state(world) is BarrierState.WAKING
        world.answer_all()
        assert (state(world), asleep(world)) == (BarrierState.ASLEEP, [("kv",)])
        world.control(wake("kv"))
        world.answer_all()
        assert (state(world), asleep(world)) == (BarrierState.QUIESCED, [()])
        assert lines(world.control(wake("kv"))) == ["answer 5: a[0] ok"]
        assert world.core.statistics().held == 1
        world.control(Resume())
        assert lines(world.answer_all())[-1] == "start held/a on a[0]@0"

    @pytest.mark.rule("ORCH-INV-233", "ORCH-INV-236")
    @pytest.mark.case("B013")
    def test_what_did_not_sleep_or_wake_is_not_shown_so_and_can_be_repeated(self) -> None:
        world = single(replicas=2)
        world.control(sleep("kv"))
        for call in world.calls():
            world.answer(call)
        first, second = world.calls()
        world.answer(first)
        world.answer(second, error=FAILED)
        assert (state(world), asleep(world)) == (BarrierState.FALLING_ASLEEP, [("kv",), ()])
        world.control(sleep("kv"))
        world.answer_all()
        assert state(world) is BarrierState.ASLEEP
        world.control(wake("kv"))
        world.answer(world.calls()[0], error=FAILED)
        world.answer_all()
        assert (error(world).stage, error(world).replica) == ("a", 0)
        assert (state(world), asleep(world)) == (BarrierState.WAKING, [("kv",), ()])
        world.control(wake("kv"))
        world.answer_all()
        assert state(world) is BarrierState.QUIESCED

    @pytest.mark.rule("ORCH-INV-234")
    def test_a_stage_that_sleeps_is_paused_already(self) -> None:
        world = single()
        world.control(sleep("kv"))
        world.answer_all()
        assert lines(world.control(ABORT)) == ["answer 2: a[0] ok"]
        assert state(world) is BarrierState.ASLEEP

    def test_stages_that_give_nothing_up_are_paused_only(self) -> None:
        world = World(*voice())
        world.control(sleep("kv"))
        world.answer_all()
        assert (state(world, "a"), state(world, "b")) == (BarrierState.ASLEEP, BarrierState.QUIESCED)
        assert lines(answers(world)) == ["answer 1: a[0] ok, b[0] ok"]

    @pytest.mark.rule("ORCH-INV-235")
    def test_other_stages_work_meanwhile(self) -> None:
        world = World(*voice())
        world.control(sleep("kv", stages="b"), "b")
        world.answer_all()
        assert lines(world.submit("text", outputs=("text",))) == ["start text/a on a[0]@0"]
        assert world.submit("both") == []

    def test_frozen_work_in_a_sleeping_stage_can_be_aborted_and_does_not_hinder_more_sleep(self) -> None:
        world = single()
        world.submit()
        world.control(sleep("kv", mode=PauseMode.KEEP))
        world.answer_all()
        assert lines(world.control(sleep("weights"))) == ["call a[0]@0 sleep level=1 tags=('weights',)"]
        world.answer_all()
        assert asleep(world) == [("kv", "weights")]
        assert lines(world.control(ABORT)) == ["stop r/a"]
        assert lines(world.stopped("a"))[-1] == "answer 3: a[0] ok"

    def test_the_answer_to_a_former_step_is_released(self) -> None:
        world = single()
        world.control(sleep("kv"))
        world.answer(world.calls()[0], "paused")
        assert lines(world.answer(world.calls()[0], "slept")) == ["release paused", "answer 1: a[0] ok"]

    def test_a_replica_that_joins_meanwhile_is_awake_and_waits(self) -> None:
        world = single()
        world.control(sleep("kv"))
        world.answer_all()
        world.join("a", 1)
        assert asleep(world) == [("kv",), ()]
        world.submit()
        world.control(wake("kv"))
        world.answer_all()
        world.control(Resume())
        assert lines(world.answer_all())[-1] == "start r/a on a[0]@0"

    def test_the_last_sleeper_may_be_gone(self) -> None:
        world = single(replicas=2)
        world.control(sleep("kv"))
        world.answer_all()
        world.control(wake("kv"))
        world.answer(world.calls()[1])
        world.lose("a", 0)
        assert state(world) is BarrierState.QUIESCED


class TestWeights:
    def paused(self, *, replicas: int = 1) -> World:
        world = single(replicas=replicas)
        world.control(WAIT)
        world.answer_all()
        return world

    def fence(self, world: World) -> tuple[FenceState, int]:
        stage = world.core.statistics().stages["a"]
        return stage.fence, stage.weights_version

    @pytest.mark.rule("ORCH-INV-238")
    def test_outputs_carry_the_version_of_the_weights_that_made_them(self) -> None:
        world = self.paused()
        world.submit()
        assert lines(world.control(BeginUpdate(5))) == ["answer 2: "]
        assert lines(world.control(UpdateWeights({"method": "load"}))) == ["call a[0]@0 update_weights method=load"]
        world.answer_all()
        assert lines(world.control(CommitUpdate())) == ["answer 4: "]
        assert self.fence(world) == (FenceState.SETTLED, 5)
        world.control(Resume())
        world.answer_all()
        world.produce("a", "x")
        world.finish("a")
        assert [one.weights_version for one in world.effects if isinstance(one, EmitOutput)] == [5, 5]

    @pytest.mark.rule("ORCH-INV-238")
    @pytest.mark.case("B045")
    def test_a_failed_update_keeps_every_stage_of_it_closed(self) -> None:
        world = World(*voice())
        world.control(KEEP)
        world.answer_all()
        world.control(BeginUpdate(1))
        world.control(UpdateWeights())
        world.answer(world.calls()[0], error=FAILED)
        world.answer_all()
        for stage in "ab":
            assert world.core.statistics().stages[stage].fence is FenceState.BROKEN
            world.control(Resume(), stage)
            assert error(world).message == (
                f"the weights of stage '{stage}' are broken; commit the update, or roll it back, first"
            )
            world.control(CommitUpdate(), stage)
            assert error(world).message == f"the weights of stage '{stage}' are broken; begin an update first"
        world.control(BeginUpdate(1))
        world.control(UpdateWeights())
        world.answer_all()
        world.control(CommitUpdate())
        assert answers(world)[-1].error is None

    @pytest.mark.rule("ORCH-INV-238")
    def test_it_can_be_rolled_back(self) -> None:
        world = self.paused()
        world.control(BeginUpdate(1))
        world.control(RollBackUpdate())
        assert self.fence(world) == (FenceState.SETTLED, 0)
        world.control(BeginUpdate(1))
        world.control(UpdateWeights())
        world.control(RollBackUpdate())
        assert error(world).message == "weights of stage 'a' were changed; say how they are restored"
        assert lines(world.control(RollBackUpdate({"method": "restore"})))[-1] == (
            "call a[0]@0 update_weights method=restore"
        )
        world.answer(world.calls()[-1], error=FAILED)
        assert self.fence(world) == (FenceState.BROKEN, 0)
        world.control(RollBackUpdate({"method": "restore"}))
        world.answer(world.calls()[-1])
        assert self.fence(world) == (FenceState.SETTLED, 0)
        world.control(RollBackUpdate())
        assert error(world).message == "no update of the weights of stage 'a' is under way"

    @pytest.mark.rule("ORCH-INV-238")
    def test_it_is_committed_once_every_replica_has_confirmed(self) -> None:
        world = self.paused(replicas=2)
        world.control(BeginUpdate(1))
        world.control(CommitUpdate())
        assert error(world).message == "the update of stage 'a' is not complete: replica 0, 1 has not confirmed it"
        world.lose("a", 0)
        world.lose("a", 1)
        world.control(CommitUpdate())
        assert error(world).message == "the update of stage 'a' is not complete: no replica has confirmed it"

    @pytest.mark.rule("ORCH-INV-238")
    def test_a_replica_with_other_weights_gets_no_work_until_an_update_reached_it(self) -> None:
        world = self.paused()
        world.control(BeginUpdate(1))
        world.control(UpdateWeights())
        world.answer_all()
        world.control(CommitUpdate())
        world.join("a", 1)
        world.lose("a", 0)
        assert not world.core.statistics().stages["a"].is_available
        world.control(Resume())
        world.answer_all()
        assert lines(world.submit()) == ["refuse r stage_unavailable"]
        world.control(WAIT)
        world.answer_all()
        world.control(BeginUpdate(2))
        world.control(UpdateWeights())
        world.answer_all()
        world.control(CommitUpdate())
        world.control(Resume())
        world.answer_all()
        assert lines(world.submit()) == ["start r/a on a[1]@0"]

    @pytest.mark.rule("ORCH-INV-003")
    def test_a_core_goes_on_from_a_snapshot_in_the_midst_of_it(self) -> None:
        world = self.paused()
        world.control(BeginUpdate(1))
        world.control(UpdateWeights())
        world.answer_all()
        world.control(sleep("kv"))
        world.answer_all()
        core = Orchestrator(world.core.graph, world.core.limits, world.core.snapshot())
        assert core.snapshot() == world.core.snapshot()
        world.core = core
        assert lines(world.control(CommitUpdate())) == ["answer 5: "]
        assert asleep(world) == [("kv",)]


def test_calls_are_only_made_for_those_who_wait() -> None:
    """Nothing of control is left behind, whatever happened to it."""
    world = World(make_stage("a"), make_stage("b", streaming("a"), output="out"))
    world.submit()
    for operation in (KEEP, ABORT, sleep("kv"), wake("kv"), Resume(), RESET):
        world.control(operation, timeout_s=1.0)
    world.lose("a")
    world.lose("b")
    world.wait(30.0)
    assert world.core.statistics().is_idle
    assert len(answers(world)) == 6
    assert a_loss().kind in {record.error.kind for reply in answers(world) for record in reply.records if record.error}
    assert [call for call in world.effects if isinstance(call, CallReplica)] != []
