"""The cases of docs/cases.md that the core alone answers for, each as a story."""

from __future__ import annotations

import random
from typing import Any

import pytest

from podium.core.effects import Effect, EmitOutput, EndRequest, FeedJob, Outcome, StartJob, StopJob
from podium.core.events import (
    FinishReason,
    JobOutput,
    RequestCancelled,
    ShutdownRequested,
    StageProduced,
)
from podium.core.graph import EdgeMode, Limits
from podium.core.identity import ReplicaKey
from podium.errors import ErrorKind
from tests.support.core_world import (
    Replicas,
    World,
    a_loss,
    an_error,
    chain,
    complete,
    guided,
    lines,
    make_stage,
    streaming,
    voice,
)


def outcomes(world: World) -> dict[str, Outcome]:
    return {one.request_id: one.outcome for one in world.effects if isinstance(one, EndRequest)}


@pytest.mark.case("B001")
def test_a_dead_replica_takes_only_its_own_requests_with_it() -> None:
    world = World(make_stage("a", output="out"), replicas=2)
    for request_id in ("one", "two", "three"):
        world.submit(request_id)
    lost = world.at("a", "one").replica
    replicas = Replicas(world)
    world.lose("a", lost.slot)
    world.submit("new")
    assert world.at("a", "new").replica != lost
    replicas.run()
    bound = {one.job.request for one in world.effects if isinstance(one, StartJob) and one.replica == lost}
    assert outcomes(world) == {
        request_id: Outcome.FAILED if request_id in bound else Outcome.COMPLETED
        for request_id in ("one", "two", "three", "new")
    }
    assert bound == {"one", "three"}


@pytest.mark.case("B002")
def test_in_a_batch_one_error_leaves_nobody_waiting() -> None:
    world = World(*voice())
    for number in range(8):
        world.submit(f"r{number}")
    world.fail("a", "r3")
    Replicas(world).run()
    assert outcomes(world) == {
        f"r{number}": Outcome.FAILED if number == 3 else Outcome.COMPLETED for number in range(8)
    }
    assert len([one for one in world.effects if isinstance(one, EndRequest)]) == 8


@pytest.mark.case("B003")
def test_input_that_comes_after_the_end_revives_nothing() -> None:
    for end in ("finish", "abort"):
        world = World(make_stage("a", output="out"))
        world.submit(input_open=True)
        if end == "finish":
            world.finish("a", "x")
        else:
            world.abort("r")
            world.stopped("a")
        before = world.core.statistics().requests
        assert lines(world.append("late")) == ["release late"]
        assert world.core.statistics().requests == before == 0
        assert len([one for one in world.effects if isinstance(one, StartJob)]) == 1


@pytest.mark.case("B005")
def test_a_producer_that_falls_silent_fails_its_request_and_frees_both_stages() -> None:
    world = World(*voice(limits=Limits(chunk_timeout_s=2.0)))
    world.submit("r")
    world.produce("a", "x")
    world.submit("s")
    effects = world.wait(2.0)
    assert {one.job.stage for one in effects if isinstance(one, StopJob)} == {"a", "b"}
    (end,) = world.terminals("r")
    assert end.error is not None
    assert (end.error.kind, end.error.awaited) == (ErrorKind.WAIT_TIMEOUT, "next output at stage 'a'")
    Replicas(world).run()
    assert outcomes(world) == {"r": Outcome.FAILED, "s": Outcome.COMPLETED}


@pytest.mark.case("B005")
def test_a_producer_that_fails_fails_its_consumer_at_once() -> None:
    world = World(*voice())
    world.submit()
    world.produce("a", "x")
    assert lines(world.fail("a")) == ["stop r/b", "end r failed stage_failed"]


@pytest.mark.case("B008")
@pytest.mark.parametrize("seed", range(20))
def test_outputs_that_arrive_interleaved_never_cross(seed: int) -> None:
    """50 requests in each of 20 orders: 1000 requests, every payload like no other."""
    world = World(*voice(), replicas=2)
    for number in range(50):
        world.submit(f"r{number}")
    Replicas(world, seed=seed, faults=True, chunks=3).run()
    for number in range(50):
        request_id = f"r{number}"
        for stage in ("a", "b"):
            assert world.emitted(request_id, stage) == [f"{request_id}.{stage}.{chunk}" for chunk in range(3)]
    for effect in world.effects:
        if isinstance(effect, FeedJob):
            assert all(str(payload).startswith(f"{effect.job.request}.a.") for payload in effect.payloads)


@pytest.mark.case("B011", "B107")
def test_a_request_that_cannot_be_refuses_itself_only() -> None:
    world = World(*voice())
    for number in range(10):
        world.submit(f"r{number}")
    assert lines(world.submit("bad", outputs=("smell",))) == ["refuse bad invalid_request"]
    Replicas(world).run()
    assert set(outcomes(world).values()) == {Outcome.COMPLETED}
    assert all(stage.is_available for stage in world.core.statistics().stages.values())


@pytest.mark.case("B015")
def test_an_abort_returns_when_every_stage_has_confirmed_and_later_outputs_are_dropped() -> None:
    world = World(*voice())
    world.submit()
    world.produce("a", "x")
    start = world.at("a")
    assert lines(world.abort("r")) == ["stop r/a", "stop r/b"]
    world.stopped("a", "ax")
    assert lines(world.stopped("b", "bx"))[-1] == "reply 1: r aborted"
    assert lines(world.tell(StageProduced(start.replica, (JobOutput(start.job, 1, ("late",)),)))) == ["release late"]
    assert lines(world.abort()) == ["reply 2: "]


@pytest.mark.case("B023")
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize("chunks", [(), ("x",)])
def test_the_last_stage_hears_of_the_end_whatever_the_middle_one_made(
    reason: FinishReason, chunks: tuple[str, ...]
) -> None:
    world = World(
        make_stage("a"), make_stage("b", streaming("a")), make_stage("c", streaming("b"), output="out", prewarm=True)
    )
    world.submit()
    world.produce("a", "x")
    assert lines(world.finish("b", *chunks, reason=reason))[-1] == f"end input r/c b {reason}"
    assert lines(world.finish("c"))[-1] == "end r completed"


@pytest.mark.case("B025")
def test_chunks_out_of_order_and_an_end_before_the_last_chunk() -> None:
    world = World(*voice())
    world.submit("r")
    world.submit("s")

    def deliver(sequence: int, *payloads: str, finish: FinishReason | None = None) -> None:
        world.produce("a", *payloads, request_id="r", sequence=sequence, finish=finish)

    deliver(2, "r2", finish=FinishReason.STOP)
    world.produce("a", "s0", request_id="s")
    assert world.emitted("s") == ["s0"]
    deliver(0, "r0")
    deliver(1, "r1")
    assert world.emitted("r") == ["r0", "r1", "r2"]
    assert lines(world.effects)[-1] == "end input r/b a stop"


@pytest.mark.case("B026")
def test_an_idle_core_asks_for_no_wake_up() -> None:
    world = World(make_stage("a", output="out"), replicas=12)
    assert world.core.next_deadline() is None
    world.submit()
    Replicas(world).run()
    assert world.core.next_deadline() is None


@pytest.mark.case("B031")
def test_a_request_is_complete_after_the_last_of_the_final_stages_it_asked_for() -> None:
    world = World(
        make_stage("a", output="text"),
        make_stage("b", streaming("a")),
        make_stage("c", streaming("b"), output="audio"),
    )
    world.submit("both")
    world.submit("text", outputs=("text",))
    Replicas(world).run()
    started = {one.job.stage for one in world.effects if isinstance(one, StartJob) and one.job.request == "text"}
    assert started == {"a"}
    finished = [one for one in world.effects if isinstance(one, EmitOutput) and one.ticket == world.tickets["both"]]
    assert [(one.stage, one.request_finished) for one in finished if one.finish] == [("a", False), ("c", True)]


@pytest.mark.case("B032")
@pytest.mark.parametrize("fault", ["stage raises", "replica dies", "engine dies"])
def test_whatever_fails_every_request_ends_and_the_engine_is_not_healthy_but_dead(fault: str) -> None:
    world = World(*voice(), replicas=2)
    for number in range(6):
        world.submit(f"r{number}")
    replicas = Replicas(world)
    replicas.run(events=8)
    live = next(one for one in world.effects if isinstance(one, StartJob) and not world.terminals(one.job.request))
    match fault:
        case "stage raises":
            world.fail(live.job.stage, live.job.request)
        case "replica dies":
            world.lose(*live.replica)
        case _:
            world.tell(ShutdownRequested(a_loss()))
    replicas.run()
    assert all(len(world.terminals(f"r{number}")) == 1 for number in range(6))
    answer = lines(world.submit("next"))[0]
    assert answer.startswith("refuse" if fault == "engine dies" else "start")


@pytest.mark.case("B033")
def test_the_slot_of_an_aborted_job_is_free_again_or_its_replica_is_declared_stuck() -> None:
    slow = Limits(max_inflight=1, stop_timeout_s=5.0, stuck_timeout_s=20.0, queue_timeout_s=900.0)
    world = World(make_stage("a", output="image", limits=slow))
    world.submit("first")
    world.submit("second")
    world.abort("first")
    assert lines(world.stopped("a", None, "first"))[-1] == "start second/a on a[0]@0"
    world.submit("third")
    world.abort("second")
    world.wait(5.0)
    assert lines(world.wait(20.0)) == ["close a[0]@0", "end third failed stage_unavailable"]
    world.join("a", 0, 1)
    assert lines(world.submit("fourth")) == ["start fourth/a on a[0]@1"]


@pytest.mark.case("B035")
def test_a_queued_job_never_starts_once_it_is_aborted_and_a_running_one_is_told() -> None:
    world = World(make_stage("a", output="video", limits=Limits(max_inflight=1)))
    world.submit("running")
    world.submit("queued")
    assert world.core.statistics().stages["a"].queued == 1
    assert lines(world.abort("queued"))[-1] == "reply 1: queued aborted"
    assert lines(world.abort("running", timeout_s=3.0)) == ["stop running/a"]
    assert lines(world.wait(3.0)) == ["reply 2: running unconfirmed"]
    world.stopped("a", None, "running")
    assert [one.job.request for one in world.effects if isinstance(one, StartJob)] == ["running"]


@pytest.mark.case("B037")
def test_of_two_requests_with_one_id_the_second_is_refused_and_the_first_completes() -> None:
    world = World(*voice())
    world.submit()
    assert lines(world.submit()) == ["refuse r duplicate_request_id"]
    world.tickets["r"] = 1
    Replicas(world).run()
    assert outcomes(world) == {"r": Outcome.COMPLETED}
    assert world.emitted(stage="a") == ["r.a.0", "r.a.1"]


@pytest.mark.case("B041")
def test_what_a_refused_request_brought_is_released() -> None:
    world = World(make_stage("a", output="out"), replicas=0)
    assert lines(world.submit(prompt="a file")) == ["release a file", "refuse r stage_unavailable"]


@pytest.mark.case("B042")
def test_between_the_loss_and_the_return_of_a_replica_requests_fail_fast() -> None:
    world = World(*voice())
    world.submit("before")
    world.lose("b")
    assert outcomes(world) == {"before": Outcome.FAILED}
    assert lines(world.submit("between")) == ["refuse between stage_unavailable"]
    world.join("b", 0, 1)
    world.submit("after")
    Replicas(world).run()
    assert outcomes(world)["after"] is Outcome.COMPLETED


@pytest.mark.case("B062")
@pytest.mark.parametrize("edge", EdgeMode)
def test_a_pipeline_gives_the_same_with_streaming_on_and_off(edge: EdgeMode) -> None:
    world = World(*chain(edge))
    world.submit()
    Replicas(world, chunks=4).run()
    assert world.emitted() == [f"r.c.{number}" for number in range(4)]
    assert outcomes(world) == {"r": Outcome.COMPLETED}


@pytest.mark.case("B064")
def test_chunks_that_come_before_a_consumer_has_started_are_kept() -> None:
    world = World(
        make_stage("a"), make_stage("b", streaming("a"), output="out", limits=Limits(max_inflight=1)), replicas=1
    )
    world.submit("busy")
    world.produce("a", "busy", request_id="busy")
    world.submit("r")
    for number in range(5):
        world.produce("a", f"r{number}", request_id="r")
    world.finish("b", request_id="busy")
    assert world.at("b", "r").inputs[0].payloads == ("r0", "r1", "r2", "r3", "r4")
    assert lines(world.produce("a", "r5", request_id="r")) == ["feed r/b a@5=r5"]


@pytest.mark.case("B068")
@pytest.mark.parametrize("first", ["finish", "deadline", "failure"])
def test_an_end_and_a_timeout_at_the_same_moment_give_one_terminal(first: str) -> None:
    world = World(make_stage("a", output="out"))
    world.submit(deadline=5.0)
    world.now = 5.0
    if first == "deadline":
        world.tell()
        world.finish("a", "x")
    elif first == "finish":
        world.finish("a", "x")
        world.tell()
    else:
        world.fail("a")
        world.tell()
    world.tell(RequestCancelled(world.tickets["r"], "r"))
    world.abort("r")
    assert [end.outcome for end in world.terminals()] == [Outcome.COMPLETED if first == "finish" else Outcome.FAILED]
    assert world.core.next_deadline() is None or first == "deadline"


@pytest.mark.case("B075", "B103")
def test_a_finish_repeats_no_data_and_nothing_is_kept_once_it_was_passed_on() -> None:
    world = World(*voice())
    world.submit()
    world.produce("a", "x")
    for number in range(20):
        world.produce("a", f"y{number}")
        assert world.core.statistics().stages["b"].buffered == 0
        world.start("b")
    emit = world.finish("a")[0]
    assert isinstance(emit, EmitOutput)
    assert emit.finish is not None
    assert emit.payloads == ()
    assert emit.partial is None
    assert len(world.emitted(stage="a")) == len(set(world.emitted(stage="a"))) == 21


@pytest.mark.case("B076", "B110")
def test_each_stage_gets_its_own_parameters_those_that_start_later_too() -> None:
    world = World(*chain(EdgeMode.COMPLETE))
    world.submit(params={"a": {"seed": 1}, "c": {"speed": 2.0}})
    Replicas(world).run()
    started = {one.job.stage: one.params for one in world.effects if isinstance(one, StartJob)}
    assert started == {"a": {"seed": 1}, "b": None, "c": {"speed": 2.0}}


@pytest.mark.case("B091")
@pytest.mark.parametrize("state", ["held", "queued", "dispatched", "running", "aborting"])
def test_the_core_alone_decides_that_a_request_is_too_late_wherever_it_is(state: str) -> None:
    world = World(make_stage("a", output="out", limits=Limits(max_inflight=1, stop_timeout_s=2.0)))
    if state == "queued":
        world.submit("other")
    world.submit(deadline=3.0)
    if state == "running":
        world.start("a")
    if state == "aborting":
        world.abort("r")
    effects = world.wait(3.0)
    assert len(world.terminals()) == 1
    stops = [one.job.request for one in effects if isinstance(one, StopJob)]
    assert stops == ([] if state == "queued" else ["r"])


@pytest.mark.case("B099")
def test_gauges_show_what_waits_and_what_runs_and_come_back_to_nothing() -> None:
    world = World(make_stage("a", output="out", limits=Limits(max_inflight=1)))

    def gauges() -> tuple[int, int]:
        stage = world.core.statistics().stages["a"]
        return stage.running, stage.queued

    for number in range(10):
        world.submit(f"r{number}")
    assert gauges() == (1, 9)
    world.abort("r9", "r8")
    world.cancel("r7")
    assert gauges() == (1, 6)
    world.fail("a", "r0")
    assert gauges() == (1, 5)
    Replicas(world).run()
    assert gauges() == (0, 0)


@pytest.mark.case("B105")
@pytest.mark.parametrize("window", [1, 2, 8])
def test_a_window_bounds_jobs_and_not_the_chunks_of_one(window: int) -> None:
    world = World(*voice(limits=Limits(max_inflight=window)))
    for number in range(3):
        world.submit(f"r{number}")
    Replicas(world, chunks=20).run()
    assert all(len(world.emitted(f"r{number}", stage)) == 20 for number in range(3) for stage in ("a", "b"))


@pytest.mark.case("B111")
def test_a_request_for_a_stage_without_a_replica_is_told_which() -> None:
    world = World(*voice(), replicas=0)
    world.join("b")
    world.submit()
    (refused,) = [one for one in world.effects if lines([one])[0].startswith("refuse")]
    assert lines([refused]) == ["refuse r stage_unavailable"]
    assert "stage 'a' has no live replica" in repr(refused)


@pytest.mark.case("B021")
def test_an_output_of_a_replica_that_does_not_have_the_job_reaches_nobody() -> None:
    world = World(make_stage("a", output="out"), replicas=2)
    world.submit()
    job = world.at("a").job
    other = ReplicaKey("a", 1 - world.at("a").replica.slot, 0)
    assert lines(world.tell(StageProduced(other, (JobOutput(job, 0, ("stray",)),)))) == ["release stray"]
    Replicas(world).run()
    assert world.emitted() == ["r.a.0", "r.a.1"]


@pytest.mark.case("B036")
def test_requests_do_not_pile_up_without_limit() -> None:
    world = World(make_stage("a", output="out", limits=Limits(max_inflight=2, max_queued=3)))
    for number in range(100):
        world.submit(f"r{number}")
    statistics = world.core.statistics()
    assert (statistics.requests, statistics.counters.refused) == (5, 95)


@pytest.mark.case("B022", "B038")
def test_going_down_ends_everything_in_one_step_though_no_stage_answers() -> None:
    world = World(*voice())
    for number in range(3):
        world.submit(f"r{number}")
    world.abort("r0")
    effects = world.tell(ShutdownRequested(an_error("down", ErrorKind.ENGINE_STOPPED)))
    assert len([one for one in effects if isinstance(one, EndRequest)]) == 3
    assert lines(effects).count("reply 1: r0 failed") == 1
    assert world.tell(ShutdownRequested(an_error())) == []


@pytest.mark.case("B027", "B028")
@pytest.mark.parametrize("seed", range(5))
def test_requests_aborted_at_random_moments_leave_nothing(seed: int) -> None:
    draw = random.Random(seed)
    world = World(*voice(), make_stage("c", complete("b"), output="more"), replicas=2)
    idle = world.core.statistics().stages
    replicas = Replicas(world, seed=seed, faults=True)
    for number in range(200):
        world.submit(f"r{number}", input_open=number % 5 == 0)
        if number % 5 == 0:
            world.append("more", request_id=f"r{number}", last=draw.random() < 0.5)
        replicas.run(events=draw.randrange(6))
        if draw.random() < 0.7:
            world.abort(f"r{draw.randint(0, number)}")
    for number in range(200):
        world.abort(f"r{number}")
    replicas.run()
    assert world.core.statistics().is_idle
    assert world.core.statistics().stages == idle


@pytest.mark.case("B009")
def test_a_companion_that_makes_no_progress_ends_its_parent_within_the_limit() -> None:
    limits = Limits(bundle_timeout_s=45.0, first_output_timeout_s=600.0)
    world = World(*guided(limits=limits))
    before = world.core.statistics()
    world.submit(prompt="yes", companions={"negative": "no", "style": "so"})
    for stage in ("a", "t"):
        for sibling in ("main", "main.style"):
            world.finish(stage, f"{stage} of {sibling}", sibling=sibling)
    world.start("a", sibling="main.negative")
    assert lines(world.wait(44.9)) == []
    assert lines(world.wait(0.1))[-2:] == ["stop r/a/main.negative", "end r failed wait_timeout"]
    world.stopped("a", sibling="main.negative")
    assert world.core.is_idle
    assert world.core.statistics().stages == before.stages
    assert len(world.terminals()) == 1


@pytest.mark.case("B061")
@pytest.mark.parametrize("siblings", [{"samples": 3}, {"companions": {"negative": "no", "style": "so"}}])
def test_a_request_with_three_children_and_capacity_for_two_is_refused_as_a_whole(siblings: dict[str, Any]) -> None:
    limits = Limits(max_inflight=1, max_queued=1)
    world = World(make_stage("a", limits=limits), make_stage("b", complete("a"), output="x", joins=True))
    before = world.core.statistics().stages
    assert lines(world.submit(prompt="p", **siblings))[-1] == "refuse r overloaded"
    assert not any(isinstance(effect, StartJob) for effect in world.effects)
    assert world.core.statistics().stages == before
    assert lines(world.submit("other", prompt="p", samples=2)) == ["start other/a/0 on a[0]@0"]
    world.cancel("other")
    world.stopped("a", request_id="other", sibling="0")
    assert world.core.statistics().stages == before


@pytest.mark.case("B059")
def test_children_that_end_at_different_times_make_one_terminal_after_the_last() -> None:
    world = World(make_stage("a", output="text"))
    world.submit(samples=3)
    for index, steps in ((0, 1), (1, 5), (2, 9)):
        for step in range(steps):
            world.produce("a", f"{index}.{step}", sibling=str(index))
        assert world.terminals() == []
        world.finish("a", sibling=str(index))
    (end,) = world.terminals()
    assert end.outcome is Outcome.COMPLETED
    emitted = [one for one in world.effects if isinstance(one, EmitOutput)]
    assert [one.index for one in emitted if one.finish] == [0, 1, 2]
    assert all(str(payload).startswith(f"{one.index}.") for one in emitted for payload in one.payloads)


@pytest.mark.case("B059")
def test_aborting_the_parent_reaches_all_children_and_aborting_a_child_reaches_it_alone() -> None:
    world = World(make_stage("a", output="text"))
    world.submit(samples=3)
    assert lines(world.abort("r", samples=(1,))) == ["stop r/a/1"]
    world.stopped("a", sibling="1")
    assert world.terminals() == []
    assert lines(world.abort("r")) == ["stop r/a/0", "stop r/a/2"]
    for sibling in "02":
        world.stopped("a", sibling=sibling)
    assert [end.outcome for end in world.terminals()] == [Outcome.ABORTED]
    assert world.core.is_idle


@pytest.mark.case("B092")
def test_an_abort_stops_the_documented_set_and_answers_for_whatever_it_was_given() -> None:
    world = World(*guided(), replicas=2)
    for name, group in (("one", "mine"), ("two", "mine"), ("three", "yours")):
        world.submit(name, samples=2, companions={"negative": "no"}, group=group)

    def stopped_by(effects: list[Effect]) -> set[tuple[str, str]]:
        return {(one.job.request, one.job.sibling) for one in effects if isinstance(one, StopJob)}

    assert stopped_by(world.abort("one", samples=(1,))) == {("one", "1"), ("one", "1.negative")}
    assert stopped_by(world.abort("one")) == {("one", "0"), ("one", "0.negative")}
    assert stopped_by(world.abort(groups=("mine",))) == {
        ("two", name) for name in ("0", "0.negative", "1", "1.negative")
    }
    assert stopped_by(world.abort_all()) == {("three", name) for name in ("0", "0.negative", "1", "1.negative")}
    assert lines(world.abort("1", "one/1", "nobody"))[-1] == "reply 5: 1 unknown, one/1 unknown, nobody unknown"
