"""Rules 100-199, on the core: the state of a request, and order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from podium.core.admission import EngineLimits
from podium.core.effects import EmitOutput, EndInput, EndRequest, FeedJob, Outcome, StartJob, StopJob
from podium.core.events import FinishReason, JobOutput, StageProduced
from podium.core.graph import EdgeMode, Limits, Stage
from podium.core.identity import JobKey, Payload
from podium.core.lifecycle import GateAction
from tests.support.core_world import Replicas, World, chain, complete, guided, lines, make_stage, streaming, voice

DIAMOND = (
    make_stage("a"),
    make_stage("b", streaming("a"), output="one"),
    make_stage("c", complete("a")),
    make_stage("d", streaming("b"), complete("c"), output="two"),
)
PIPELINES = {
    "voice": voice(),
    "streaming chain": chain(EdgeMode.STREAMING),
    "complete chain": chain(EdgeMode.COMPLETE),
    "diamond": DIAMOND,
}
each_pipeline = pytest.mark.parametrize("stages", PIPELINES.values(), ids=PIPELINES)

INTERRUPTIONS: dict[str, Callable[[World], object]] = {
    "cancel": lambda world: world.cancel(),
    "abort": lambda world: world.abort("r"),
    "deadline": lambda world: world.wait(10_000.0),
    "loss of the first stage": lambda world: world.lose("a"),
    "loss of the second stage": lambda world: world.lose("b"),
}
each_interruption = pytest.mark.parametrize("interrupt", INTERRUPTIONS.values(), ids=INTERRUPTIONS)


def events_of_a_whole_run(stages: tuple[Stage, ...]) -> int:
    world = World(*stages)
    world.submit()
    return Replicas(world).run()


def inputs_of(world: World) -> dict[tuple[JobKey, str], list[Payload]]:
    """What each job got of each source."""
    got: dict[tuple[JobKey, str], list[Payload]] = {}
    for effect in world.effects:
        if isinstance(effect, StartJob):
            for one in effect.inputs:
                got[effect.job, one.source] = list(one.payloads)
        elif isinstance(effect, FeedJob):
            assert effect.sequence == len(got[effect.job, effect.source])
            got[effect.job, effect.source] += effect.payloads
    return got


@pytest.mark.rule("ORCH-INV-100", "ORCH-INV-101")
@each_pipeline
@each_interruption
def test_whenever_a_request_is_interrupted_it_ends_once_and_then_nothing_more_is_done_for_it(
    stages: tuple[Stage, ...], interrupt: Callable[[World], object]
) -> None:
    for point in range(events_of_a_whole_run(stages)):
        world = World(*stages)
        world.submit(deadline=9_000.0)
        replicas = Replicas(world)
        replicas.run(events=point)
        interrupt(world)
        replicas.run()
        assert len(world.terminals()) == 1
        after = world.effects[world.effects.index(world.terminals()[0]) + 1 :]
        assert not [one for one in after if isinstance(one, StartJob | FeedJob | EndInput | EmitOutput | EndRequest)]
        assert world.core.statistics().is_idle


@pytest.mark.rule("ORCH-INV-101")
@each_pipeline
def test_whenever_all_replicas_fall_silent_every_request_ends_within_its_limits(stages: tuple[Stage, ...]) -> None:
    limits = sum((120.0, 30.0, 120.0, 60.0, 10.0, 60.0)) * len(stages)
    for point in range(events_of_a_whole_run(stages)):
        world = World(*stages)
        world.submit("r")
        world.submit("s")
        Replicas(world).run(events=point)
        while (deadline := world.core.next_deadline()) is not None:
            world.wait(deadline - world.now)
        assert len(world.terminals("r")) == len(world.terminals("s")) == 1
        assert world.now < limits
        assert world.core.statistics().is_idle


@pytest.mark.rule("ORCH-INV-102")
def test_a_live_id_is_refused_and_is_free_again_once_its_terminal_was_issued() -> None:
    world = World(*voice())
    world.submit()
    assert lines(world.submit()) == ["refuse r duplicate_request_id"]
    world.tickets["r"] = 1
    world.cancel()
    assert lines(world.submit()) == ["start r/a on a[0]@0"]


@pytest.mark.rule("ORCH-INV-102")
def test_what_is_late_of_the_first_use_of_an_id_never_reaches_the_second() -> None:
    world = World(*voice())
    world.submit()
    former = world.at("a")
    world.cancel()
    world.submit()
    world.tell(StageProduced(former.replica, (JobOutput(former.job, 0, ("old",)),)))
    Replicas(world).run()
    assert world.emitted(stage="a") == ["r.a.0", "r.a.1"]


@pytest.mark.rule("ORCH-INV-103", "ORCH-INV-104")
@each_pipeline
@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_deliveries_outputs_and_inputs_are_complete_in_order_and_without_a_gap(
    stages: tuple[Stage, ...], seed: int
) -> None:
    world = World(*stages, replicas=2)
    requests = [f"r{number}" for number in range(8)]
    for request_id in requests:
        world.submit(request_id)
    Replicas(world, chunks=5, seed=seed, faults=True).run()

    for request_id in requests:
        outputs = [
            one for one in world.effects if isinstance(one, EmitOutput) and one.ticket == world.tickets[request_id]
        ]
        expected = 0
        for output in outputs:
            assert output.sequence == expected
            expected += len(output.payloads) + (output.finish is not None)
        assert [output.request_finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        for stage in stages:
            if stage.output is not None:
                assert world.emitted(request_id, stage.name) == [f"{request_id}.{stage.name}.{n}" for n in range(5)]
    for (job, source), payloads in inputs_of(world).items():
        assert payloads == [f"{job.request}.{source}.{number}" for number in range(5)]


@pytest.mark.rule("ORCH-INV-103")
def test_a_request_with_a_gap_delays_no_other() -> None:
    world = World(*voice())
    world.submit("r")
    world.submit("s")
    world.produce("a", "late", request_id="r", sequence=1)
    assert lines(world.produce("a", "x", request_id="s"))[0] == "emit a@0=x"


@pytest.mark.rule("ORCH-INV-105", "ORCH-INV-106")
def test_each_final_stage_delivers_its_own_finish_and_only_the_last_the_requests() -> None:
    world = World(*voice())
    world.submit()
    world.finish("a", "x", reason=FinishReason.LENGTH)
    world.finish("b", "y")
    finishes = [one for one in world.effects if isinstance(one, EmitOutput) and one.finish is not None]
    assert [(one.stage, one.finish.reason, one.request_finished) for one in finishes if one.finish] == [
        ("a", FinishReason.LENGTH, False),
        ("b", FinishReason.STOP, True),
    ]
    assert world.terminals()[0].outcome is Outcome.COMPLETED


@pytest.mark.rule("ORCH-INV-107")
def test_a_stage_that_no_requested_output_needs_is_never_started() -> None:
    world = World(*DIAMOND)
    world.submit(outputs=("one",))
    Replicas(world).run()
    assert {one.job.stage for one in world.effects if isinstance(one, StartJob)} == {"a", "b"}
    assert lines(world.submit("s", outputs=("three",))) == ["refuse s invalid_request"]


@pytest.mark.rule("ORCH-INV-108", "ORCH-INV-109")
@pytest.mark.parametrize("prewarm", [False, True])
@pytest.mark.parametrize("edge", [streaming, complete])
@pytest.mark.parametrize("chunks", [(), ("x",)])
@pytest.mark.parametrize("reason", FinishReason)
def test_however_a_stage_ends_its_consumer_hears_of_it_and_the_request_ends(
    reason: FinishReason, chunks: tuple[str, ...], edge: Callable[[str], object], prewarm: bool
) -> None:
    source = streaming("a") if edge is streaming else complete("a")
    world = World(make_stage("a"), make_stage("b", source, output="out", prewarm=prewarm))
    world.submit()
    world.finish("a", *chunks, reason=reason)
    started = [one for one in world.effects if isinstance(one, StartJob) and one.job.stage == "b"]
    told = [one for one in world.effects if isinstance(one, EndInput | StopJob) and one.job.stage == "b"]
    if started and started[0].input_open:
        assert len(told) == 1
        assert isinstance(told[0], EndInput) == (reason in {FinishReason.STOP, FinishReason.LENGTH})
    Replicas(world).run()
    assert len(world.terminals()) == 1


@pytest.mark.rule("ORCH-INV-110", "ORCH-INV-111")
@each_pipeline
def test_everything_that_comes_again_after_the_end_changes_nothing(stages: tuple[Stage, ...]) -> None:
    world = World(*stages)
    world.submit()
    Replicas(world).run()
    before = len(world.effects)
    for start in [one for one in world.effects if isinstance(one, StartJob)]:
        world.tell(StageProduced(start.replica, (JobOutput(start.job, 0, ("again",)),)))
    world.append("more")
    world.cancel()
    kinds = {type(one).__name__ for one in world.effects[before:]}
    assert kinds == {"ReleasePayloads"}
    assert world.core.statistics().is_idle


@pytest.mark.rule("ORCH-INV-112")
@pytest.mark.parametrize("reason", ["output", "gate", "replica", "queue", "requests", "id"])
def test_a_refused_request_leaves_nothing_behind(reason: str) -> None:
    tight = Limits(max_inflight=1, max_queued=1)
    limits = EngineLimits(max_requests=2 if reason == "requests" else 9)
    world = World(make_stage("a"), make_stage("b", complete("a"), output="out", limits=tight), limits=limits)
    for request_id in ("first", "second"):
        world.submit(request_id)
        if reason == "queue":
            world.finish("a", "x", request_id=request_id)
    if reason == "gate":
        world.gate(GateAction.REFUSE, "b")
    if reason == "replica":
        world.cancel("first")
        world.cancel("second")
        world.lose("b")
    before = world.core.statistics()
    world.submit("first" if reason == "id" else "third", outputs=("nothing",) if reason == "output" else None)
    effect = world.effects[-1]
    after = world.core.statistics()
    assert lines([effect])[0].startswith("refuse")
    assert (after.requests, after.timers, after.stages) == (before.requests, before.timers, before.stages)


@pytest.mark.rule("ORCH-INV-115")
def test_everything_of_a_job_goes_to_the_replica_on_which_it_started() -> None:
    world = World(*voice(), replicas=4)
    for number in range(12):
        world.submit(f"r{number}")
    Replicas(world, chunks=4, seed=3).run()
    homes = {one.job: one.replica for one in world.effects if isinstance(one, StartJob)}
    assert len(set(homes.values())) == 8
    assert all(homes[one.job] == one.replica for one in world.effects if isinstance(one, FeedJob | EndInput))


@pytest.mark.rule("ORCH-INV-116")
@pytest.mark.case("B062")
def test_complete_and_streaming_edges_give_the_same_outputs() -> None:
    emitted = []
    for edge in EdgeMode:
        world = World(*chain(edge))
        world.submit()
        Replicas(world, chunks=3).run()
        emitted.append(world.emitted())
    assert emitted[0] == emitted[1] == ["r.c.0", "r.c.1", "r.c.2"]


@pytest.mark.rule("ORCH-INV-117")
@pytest.mark.parametrize("batch", [2, 7, 1000])
def test_events_in_batches_have_the_effects_of_the_same_events_one_by_one(batch: int) -> None:
    world = World(*DIAMOND, replicas=2)
    for number in range(10):
        world.submit(f"r{number}")
    Replicas(world, chunks=3, seed=1, faults=True).run()
    polled = World(*DIAMOND, replicas=0)
    for first in range(0, len(world.events), batch):
        polled.tell(*world.events[first : first + batch])
    assert polled.effects == world.effects


@pytest.mark.rule("ORCH-INV-118")
def test_credits_are_never_exceeded_and_the_rest_waits_by_priority_and_arrival() -> None:
    stage = make_stage("a", output="out", limits=Limits(max_inflight=2, max_queued=50))
    world = World(stage, replicas=2)
    for number in range(20):
        world.submit(f"r{number}", priority=0 if number < 4 else -(number % 2))
    replicas = Replicas(world, seed=5)
    while replicas.run(events=1):
        statistics = world.core.statistics().stages["a"]
        assert all(replica.inflight <= 2 for replica in statistics.replicas)
        assert statistics.queued == 0 or statistics.running == 4
    started = [int(one.job.request[1:]) for one in world.effects if isinstance(one, StartJob)]
    assert started == [0, 1, 2, 3, *range(5, 20, 2), *range(4, 20, 2)]


@pytest.mark.rule("ORCH-INV-118")
def test_beyond_its_queue_a_stage_refuses_at_once_with_a_hint_and_takes_nothing() -> None:
    stage = make_stage("a", output="out", limits=Limits(max_inflight=1, max_queued=2))
    world = World(stage)
    answers = [lines(world.submit(f"r{number}")) for number in range(5)]
    assert answers == [["start r0/a on a[0]@0"], [], [], ["refuse r3 overloaded"], ["refuse r4 overloaded"]]
    assert world.core.statistics().stages["a"].queued == 2
    Replicas(world).run()
    assert world.core.statistics().counters.completed == 3


def guided_world(samples: int, *, replicas: int = 2) -> World:
    world = World(*guided(), replicas=replicas)
    world.submit(prompt="yes", samples=samples, companions={"negative": "no", "style": "so"})
    return world


@pytest.mark.rule("ORCH-INV-112")
@pytest.mark.parametrize(
    ("limits", "engine_limits", "is_accepted"),
    [
        (Limits(), EngineLimits(), True),
        (Limits(max_inflight=4, max_queued=5), EngineLimits(), True),
        (Limits(max_inflight=4, max_queued=4), EngineLimits(), False),
        (Limits(), EngineLimits(max_siblings=8), False),
    ],
)
def test_a_request_is_admitted_with_all_its_siblings_or_not_at_all(
    limits: Limits, engine_limits: EngineLimits, is_accepted: bool
) -> None:
    world = World(*guided(limits=limits), limits=engine_limits)
    effects = world.submit(prompt="yes", samples=3, companions={"negative": "no", "style": "so"})
    if is_accepted:
        assert world.core.statistics().requests == 1
        Replicas(world).run()
        assert [end.outcome for end in world.terminals()] == [Outcome.COMPLETED]
        return
    assert [type(effect).__name__ for effect in effects] == ["ReleasePayloads", "RefuseRequest"]
    assert sorted(map(str, world.released())) == ["no", "so", "yes"]
    assert world.core.is_idle


@pytest.mark.rule("ORCH-INV-113")
@pytest.mark.parametrize("seed", range(8))
def test_a_stage_that_joins_gets_the_whole_bundle_in_the_order_of_roles(seed: int) -> None:
    world = guided_world(samples=2)
    Replicas(world, seed=seed, faults=True).run()
    joined = [one for one in world.effects if isinstance(one, StartJob) and one.job.stage == "b"]
    assert sorted(one.job.sibling for one in joined) == ["0", "1"]
    for start in joined:
        assert not start.input_open
        assert [(one.role, one.source) for one in start.inputs] == [
            (role, source) for role in ("main", "negative", "style") for source in ("a", "t")
        ]
        for one in start.inputs:
            sibling = start.job.sibling if one.role == "main" else f"{start.job.sibling}.{one.role}"
            assert one.payloads == tuple(f"r.{one.source}.{sibling}.{number}" for number in range(2))


@pytest.mark.rule("ORCH-INV-113")
@pytest.mark.parametrize("how", ["fails", "is lost", "runs out of time"])
def test_a_companion_that_does_not_come_fails_its_parent_once_and_stops_the_siblings(how: str) -> None:
    world = guided_world(samples=1, replicas=1)
    for sibling in ("main", "main.style"):
        world.finish("a", "x", sibling=sibling)
        world.finish("t", "x", sibling=sibling)
    match how:
        case "fails":
            world.fail("a", sibling="main.negative")
        case "is lost":
            world.lose("a")
        case _:
            world.start("a", sibling="main.negative")
            world.wait(120.0)
    (end,) = world.terminals()
    assert end.error is not None
    assert (end.request_id, end.error.request_id) == ("r", "r")
    working = {one.job for one in world.effects if isinstance(one, StartJob)}
    assert not any(job.stage == "b" for job in working)
    if how == "runs out of time":
        world.stopped("a", sibling="main.negative")
    assert world.core.is_idle


@pytest.mark.rule("ORCH-INV-114", "ORCH-INV-103")
@pytest.mark.parametrize("seed", range(8))
def test_every_sample_runs_through_every_stage_and_the_request_ends_after_the_last(seed: int) -> None:
    world = World(*voice(), replicas=2)
    world.submit(samples=3)
    Replicas(world, seed=seed, faults=True).run()
    outputs = [one for one in world.effects if isinstance(one, EmitOutput)]
    expected = 0
    for output in outputs:
        assert output.sequence == expected
        expected += len(output.payloads) + (output.finish is not None)
    for index in range(3):
        for stage in "ab":
            own = [one for one in outputs if (one.stage, one.index) == (stage, index)]
            assert [chunk for one in own for chunk in one.payloads] == [
                f"r.{stage}.{index}.{number}" for number in range(2)
            ]
            assert [one.finish is not None for one in own][-1]
    assert [one.request_finished for one in outputs if one.finish is not None] == [False] * 5 + [True]
    assert [end.outcome for end in world.terminals()] == [Outcome.COMPLETED]


@pytest.mark.rule("ORCH-INV-114")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_samples_are_aborted_one_by_one_until_none_is_left(order: tuple[int, ...]) -> None:
    world = World(*voice())
    world.submit(samples=3)
    for index in order:
        assert not world.terminals()
        world.abort("r", samples=(index,))
        world.stopped("a", sibling=str(index))
    assert [end.outcome for end in world.terminals()] == [Outcome.ABORTED]
    assert world.core.is_idle


@pytest.mark.rule("ORCH-INV-115")
@pytest.mark.parametrize("seed", range(8))
def test_companions_run_where_their_parent_does(seed: int) -> None:
    world = World(*guided(limits=Limits(max_inflight=2)), replicas=3)
    for number in range(3):
        world.submit(f"r{number}", companions={"negative": "no", "style": "so"})
    Replicas(world, seed=seed).run()
    where = {one.job[:3]: one.replica for one in world.effects if isinstance(one, StartJob)}
    for (request, stage, sibling), replica in where.items():
        assert replica == where[request, stage, sibling.partition(".")[0]]
    assert world.core.is_idle
