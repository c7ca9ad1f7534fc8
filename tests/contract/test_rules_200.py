"""Rules 200-229, on the core: failure, cancellation, cleanup."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from podium.core.admission import EngineLimits
from podium.core.effects import (
    AbortRecord,
    AbortStatus,
    CloseReplica,
    Effect,
    EmitOutput,
    EndRequest,
    Outcome,
    ReplyAbort,
    StartJob,
    StopJob,
)
from podium.core.events import AckLevel, FinishReason, InputRejected, StageFailed
from podium.core.graph import EdgeMode, Limits
from podium.core.lifecycle import GateAction
from podium.errors import KINDS, Category, ErrorKind, ErrorRecord, Scope
from tests.support.core_world import (
    Replicas,
    World,
    an_error,
    chain,
    complete,
    guided,
    lines,
    make_stage,
    streaming,
    voice,
)


def submit_siblings(world: World) -> list[Effect]:
    return world.submit(prompt="yes", samples=2, companions={"negative": "no"})


def submit_siblings_with_one_ahead(world: World) -> None:
    """A companion is done with the first stage before its sample is, and waits for that at the next."""
    submit_siblings(world)
    world.finish("a", "x", sibling="0.negative")


def submit_siblings_with_a_sample_ready(world: World) -> None:
    """Both samples are done with what is upstream of the stage that joins; their companions are not."""
    submit_siblings(world)
    for index in "01":
        world.finish("a", "x", sibling=index)
        world.finish("t", "x", sibling=index)


FAILURES: dict[str, Callable[[World], object]] = {
    "its stage fails": lambda world: world.fail("a", "r5"),
    "its input is rejected": lambda world: world.tell(
        InputRejected(world.at("a", "r5").replica, world.at("a", "r5").job, an_error())
    ),
    "it ends with an error": lambda world: world.finish("a", request_id="r5", reason=FinishReason.ERROR),
    "its deadline passes": lambda world: world.wait(1.0),
}

PLACES: dict[str, Callable[[World], object]] = {
    "at a held gate": lambda world: (world.gate(GateAction.HOLD), world.submit()),
    "in a queue": lambda world: (world.submit("other"), world.submit()),
    "on its way to a replica": lambda world: world.submit(),
    "running": lambda world: (world.submit(), world.start("a")),
    "waiting for a chunk": lambda world: (world.submit(), world.produce("a", "x"), world.start("b")),
    "waiting for input": lambda world: (world.submit(input_open=True), world.start("a")),
    "on a draining replica": lambda world: (world.submit(), world.join("a", 1), world.drain("a")),
    "being stopped": lambda world: (world.submit(), world.abort("r")),
    "with a stop that failed": lambda world: (world.submit(), world.abort("r"), world.stop_failed("a")),
}


def errors_of(world: World) -> list[ErrorRecord]:
    return [one.error for one in world.effects if isinstance(one, EndRequest) and one.error is not None]


class TestErrors:
    @pytest.mark.rule("ORCH-INV-200")
    @pytest.mark.parametrize("kind", ErrorKind)
    def test_every_kind_has_a_status_a_category_and_an_exception(self, kind: ErrorKind) -> None:
        record = ErrorRecord(kind=kind, scope=Scope.STAGE, message="what happened", stage="a", replica=1)
        assert record.status in {400, 409, 429, 500, 501, 503, 504}
        assert record.category is (Category.CLIENT if record.status < 500 else Category.SERVER)
        assert record.is_retryable == KINDS[kind].retryable
        assert str(record.to_exception()) == "what happened"

    @pytest.mark.rule("ORCH-INV-200")
    def test_a_record_cannot_be_made_without_its_scope(self) -> None:
        assert "scope" in {field.name for field in msgspec.structs.fields(ErrorRecord) if field.required}

    @pytest.mark.rule("ORCH-INV-200", "ORCH-INV-201")
    @pytest.mark.case("B071")
    @pytest.mark.parametrize("kind", [ErrorKind.STAGE_FAILED, ErrorKind.INVALID_REQUEST, ErrorKind.PROCESSOR_FAILED])
    def test_what_a_stage_reports_reaches_the_caller_as_it_is(self, kind: ErrorKind) -> None:
        world = World(*voice())
        world.submit()
        start = world.at("a")
        record = ErrorRecord(kind=kind, scope=Scope.REQUEST, message="no good", stage="a", replica=0)
        world.tell(StageFailed(start.replica, start.job, record))
        assert errors_of(world) == [msgspec.structs.replace(record, request_id="r")]


class TestFailuresOfOne:
    @pytest.mark.rule("ORCH-INV-201")
    @pytest.mark.case("B011")
    @pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
    def test_the_others_complete(self, fail: Callable[[World], object]) -> None:
        world = World(*voice())
        for number in range(10):
            world.submit(f"r{number}", deadline=1.0 if number == 5 else None)
        replicas = Replicas(world, seed=1)
        replicas.run(events=3)
        fail(world)
        replicas.run()
        outcomes = {one.request_id: one.outcome for one in world.effects if isinstance(one, EndRequest)}
        assert outcomes.pop("r5") is Outcome.FAILED
        assert set(outcomes.values()) == {Outcome.COMPLETED}
        assert len(outcomes) == 9


class TestLosses:
    @pytest.mark.rule("ORCH-INV-202", "ORCH-INV-214")
    @pytest.mark.parametrize("point", range(0, 60, 6))
    def test_only_what_was_on_the_replica_fails(self, point: int) -> None:
        world = World(*voice(), replicas=3)
        for number in range(9):
            world.submit(f"r{number}")
        replicas = Replicas(world, seed=point)
        replicas.run(events=point)
        ended = {one.request_id for one in world.effects if isinstance(one, EndRequest)}
        bound = {one.job.request for one in world.effects if isinstance(one, StartJob) and one.replica[:2] == ("b", 1)}
        assert lines(world.lose("b", 1))[0] == "close b[1]@0"
        replicas.run()
        failed = {
            one.request_id for one in world.effects if isinstance(one, EndRequest) and one.outcome is Outcome.FAILED
        }
        assert failed == bound - ended
        assert world.core.statistics().counters.completed == 9 - len(failed)
        assert {error.kind for error in errors_of(world)} <= {ErrorKind.REPLICA_LOST}

    @pytest.mark.rule("ORCH-INV-202")
    def test_with_no_replica_left_what_needs_the_stage_fails_fast(self) -> None:
        world = World(*voice())
        world.submit("needs it")
        world.submit("does not", outputs=("text",))
        world.lose("b")
        assert [(error.kind, error.status, error.stage) for error in errors_of(world)] == [
            (ErrorKind.STAGE_UNAVAILABLE, 503, "b")
        ]
        Replicas(world).run()
        assert world.terminals("does not")[0].outcome is Outcome.COMPLETED

    @pytest.mark.rule("ORCH-INV-202")
    def test_a_stage_that_may_runs_again_when_nothing_was_passed_on(self) -> None:
        world = World(*chain(EdgeMode.COMPLETE, 1), make_stage("z", output="more", rerun=True), replicas=2)
        world.submit(outputs=("more",))
        world.lose("z", 0)
        Replicas(world).run()
        assert world.terminals()[0].outcome is Outcome.COMPLETED
        assert [one.job.attempt for one in world.effects if isinstance(one, StartJob)] == [1, 2]


def queued(world: World) -> None:
    world.submit("first")
    world.submit()


def being_stopped(world: World) -> None:
    world.submit()
    world.cancel()
    world.wait(10.0)


def producing(world: World) -> None:
    world.submit()
    world.produce("a", "x")


def running(world: World) -> None:
    world.submit()
    world.start("a")


@pytest.mark.rule("ORCH-INV-204")
@pytest.mark.parametrize(
    ("limits", "bring", "kind", "awaited"),
    [
        (Limits(max_inflight=1, queue_timeout_s=1.0), queued, ErrorKind.WAIT_TIMEOUT, "capacity at stage 'a'"),
        (
            Limits(dispatch_timeout_s=1.0),
            World.submit,
            ErrorKind.WAIT_TIMEOUT,
            "confirmation of the start at stage 'a'",
        ),
        (Limits(first_output_timeout_s=1.0), running, ErrorKind.WAIT_TIMEOUT, "first output at stage 'a'"),
        (Limits(chunk_timeout_s=1.0), producing, ErrorKind.WAIT_TIMEOUT, "next output at stage 'a'"),
        (Limits(stuck_timeout_s=1.0), being_stopped, ErrorKind.REPLICA_LOST, "confirmation of the repeated stop"),
    ],
)
def test_every_wait_has_a_limit_and_says_what_was_awaited(
    limits: Limits, bring: Callable[[World], object], kind: ErrorKind, awaited: str
) -> None:
    world = World(make_stage("a", output="out", limits=limits))
    bring(world)
    assert not errors_of(world)
    world.wait(1.0)
    errors = errors_of(world) + [one.error for one in world.effects if isinstance(one, CloseReplica) and one.error]
    assert [(error.kind, error.awaited) for error in errors] == [(kind, awaited)]


@pytest.mark.rule("ORCH-INV-204")
def test_nobody_is_held_at_the_gate_beyond_the_limit() -> None:
    world = World(make_stage("a", output="out"), limits=EngineLimits(hold_timeout_s=1.0))
    world.gate(GateAction.HOLD)
    world.submit()
    assert not errors_of(world)
    world.wait(1.0)
    assert [(error.kind, error.awaited) for error in errors_of(world)] == [(ErrorKind.WAIT_TIMEOUT, "admission")]


@pytest.mark.rule("ORCH-INV-204")
def test_stages_know_the_deadline_of_a_request() -> None:
    world = World(*voice())
    world.submit(deadline=42.0)
    world.produce("a", "x")
    assert [one.deadline for one in world.effects if isinstance(one, StartJob)] == [42.0, 42.0]


class TestAborts:
    @pytest.mark.rule("ORCH-INV-205", "ORCH-INV-209")
    @pytest.mark.parametrize("order", ["ab", "ba"])
    def test_each_final_stage_hands_over_what_it_made_in_the_order_of_stages(self, order: str) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x", "y")
        world.abort("r")
        for stage in order:
            world.stopped(stage, f"everything of {stage}")
        aborted = [one for one in world.effects if isinstance(one, EmitOutput) and one.finish is not None]
        assert [(one.stage, one.partial, one.request_finished) for one in aborted] == [
            ("a", "everything of a", False),
            ("b", "everything of b", True),
        ]
        assert {one.finish.reason for one in aborted if one.finish} == {FinishReason.ABORT}

    @pytest.mark.rule("ORCH-INV-205")
    @pytest.mark.parametrize("actions", ["ah", "ha"])
    def test_an_abort_keeps_what_there_is_whether_the_gate_moved_before_or_after(self, actions: str) -> None:
        world = World(make_stage("a", output="out"))
        world.submit()
        world.produce("a", "x")
        for action in actions:
            if action == "a":
                world.abort("r")
            else:
                world.gate(GateAction.HOLD)
        assert lines(world.stopped("a", "x"))[0] == "emit a@1= abort partial=x last"

    @pytest.mark.rule("ORCH-INV-207")
    def test_accepted_is_answered_at_once_and_stopped_when_each_stage_has_confirmed(self) -> None:
        world = World(*voice())
        world.submit("accepted")
        world.submit("stopped")
        assert lines(world.abort("accepted", level=AckLevel.ACCEPTED))[-1] == "reply 1: accepted accepted"
        world.abort("stopped")
        assert world.stopped("a", "x", "stopped")[-1] == ReplyAbort(
            2, (AbortRecord("stopped", AbortStatus.ABORTED, {"a": "x"}),)
        )

    @pytest.mark.rule("ORCH-INV-207", "ORCH-INV-204")
    def test_it_is_answered_in_time_whoever_is_silent(self) -> None:
        world = World(*voice())
        world.submit()
        world.abort("r", "nobody", timeout_s=0.5)
        assert lines(world.wait(0.5)) == ["reply 1: r unconfirmed, nobody unknown"]

    @pytest.mark.rule("ORCH-INV-208")
    def test_the_stream_ends_with_the_requests_own_final_stage(self) -> None:
        world = World(*chain(EdgeMode.COMPLETE))
        world.submit()
        world.abort("r")
        assert lines(world.stopped("a", "of no use"))[1:3] == ["emit c@0= abort last", "end r aborted"]

    @pytest.mark.rule("ORCH-INV-210")
    @pytest.mark.case("B004")
    @pytest.mark.parametrize("bring", PLACES.values(), ids=PLACES)
    def test_it_finds_a_request_wherever_it_waits(self, bring: Callable[[World], object]) -> None:
        world = World(*voice(limits=Limits(max_inflight=1)))
        bring(world)
        world.abort("r")
        world.abort("r")
        Replicas(world).run()
        assert [end.outcome for end in world.terminals()] == [Outcome.ABORTED]
        assert all(
            one.outcome is Outcome.COMPLETED
            for one in world.effects
            if isinstance(one, EndRequest) and one.request_id != "r"
        )
        assert world.core.statistics().is_idle
        world.gate(GateAction.OPEN)
        world.submit("next")
        Replicas(world).run()
        assert world.terminals("next")[0].outcome is Outcome.COMPLETED

    @pytest.mark.rule("ORCH-INV-211")
    def test_aborting_nothing_changes_nothing(self) -> None:
        world = World(*voice())
        world.submit()
        Replicas(world).run()
        before = world.core.statistics()
        assert lines(world.abort()) == ["reply 1: "]
        assert lines(world.abort("unknown", "r")) == ["reply 2: unknown unknown, r already_ended"]
        assert world.core.statistics() == before

    @pytest.mark.rule("ORCH-INV-216")
    def test_a_stop_that_fails_does_not_keep_the_others_from_stopping(self) -> None:
        world = World(*voice())
        world.submit("r")
        world.produce("a", "x")
        world.submit("s")
        assert lines(world.abort("r", "s")) == ["stop r/a", "stop r/b", "stop s/a"]
        world.stop_failed("a", "r")
        world.stopped("b", None, "r")
        world.stopped("a", None, "s")
        assert lines(world.effects)[-2:] == ["end s aborted", "reply 1: r failed, s aborted"]

    @pytest.mark.rule("ORCH-INV-206")
    def test_a_stop_that_failed_can_be_repeated_and_gives_what_there_was(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        world.abort("r")
        world.stopped("b", "b's")
        world.stop_failed("a")
        assert world.terminals() == []
        assert lines(world.abort("r")) == ["stop r/a"]
        assert lines(world.stopped("a", "a's"))[:2] == [
            "emit a@1= abort partial=a's",
            "emit b@2= abort partial=b's last",
        ]


@pytest.mark.rule("ORCH-INV-212")
def test_a_client_that_leaves_stops_every_stage_and_is_counted_apart() -> None:
    world = World(*voice())
    world.submit()
    world.produce("a", "x")
    effects = world.cancel()
    assert {one.job.stage for one in effects if isinstance(one, StopJob)} == {"a", "b"}
    counters = world.core.statistics().counters
    assert (counters.cancelled, counters.failed) == (1, 0)
    assert world.terminals()[0].error is None


@pytest.mark.rule("ORCH-INV-213")
@pytest.mark.case("B027", "B028")
def test_ten_thousand_requests_that_end_in_all_ways_leave_every_table_as_it_was() -> None:
    draw = random.Random(7)
    world = World(*voice(), make_stage("c", streaming("a"), complete("b"), output="more"), replicas=2)
    before = world.core.statistics()
    for number in range(10_000):
        request_id = f"r{number}"
        world.submit(request_id)
        if draw.random() < 0.5:
            world.produce("a", "x", request_id=request_id)
        draw.choice((world.cancel, world.abort))(request_id)
        for one in world.effects[:]:
            if isinstance(one, StopJob):
                world.stopped(one.job.stage, "partial", request_id)
        world.effects.clear()
        world.events.clear()
        world.produced.clear()
    after = world.core.statistics()
    assert after.is_idle
    assert after.stages == before.stages
    assert after.remembered == EngineLimits().max_remembered
    assert after.counters.aborted + after.counters.cancelled == 10_000


SIBLING_PLACES: dict[str, Callable[[World], object]] = {
    "at a held gate": lambda world: (world.gate(GateAction.HOLD), submit_siblings(world)),
    "in a queue": lambda world: (world.submit("other"), submit_siblings(world)),
    "behind its sample": submit_siblings_with_one_ahead,
    "waiting for its companions": submit_siblings_with_a_sample_ready,
}


@pytest.mark.rule("ORCH-INV-210", "ORCH-INV-207", "ORCH-INV-213")
@pytest.mark.parametrize("place", SIBLING_PLACES.values(), ids=SIBLING_PLACES)
def test_an_abort_finds_every_sibling(place: Callable[[World], object]) -> None:
    world = World(*guided(limits=Limits(max_inflight=2)))
    place(world)
    world.abort("r")
    for effect in list(world.effects):
        if isinstance(effect, StopJob) and effect.job.request == "r":
            world.stopped(effect.job.stage, request_id="r", sibling=effect.job.sibling)
    assert [end.outcome for end in world.terminals()] == [Outcome.ABORTED]
    assert sum("reply 1: r aborted" in line for line in lines(world.effects)) == 1
    if "other" in world.tickets:
        world.cancel("other")
    statistics = world.core.statistics()
    assert (statistics.requests, statistics.abort_calls) == (0, 0)
    assert sum(stage.queued + stage.buffered for stage in statistics.stages.values()) == 0


@pytest.mark.rule("ORCH-INV-204")
def test_a_bundle_is_not_waited_for_longer_than_its_limit() -> None:
    world = World(*guided(limits=Limits(bundle_timeout_s=30.0)))
    submit_siblings_with_a_sample_ready(world)
    for index in range(2):
        world.start("a", sibling=f"{index}.negative")
    assert world.wait(29.0) == []
    world.wait(1.0)
    (end,) = world.terminals()
    assert end.error is not None
    assert (end.error.kind, end.error.stage) == (ErrorKind.WAIT_TIMEOUT, "b")
    assert end.error.awaited == "companions negative at stage 'b'"


@pytest.mark.rule("ORCH-INV-213")
@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_siblings_leave_every_table_as_it_was(seed: int) -> None:
    world = World(*guided(limits=Limits(max_inflight=8, max_queued=999)), replicas=2)
    before = world.core.statistics()
    random_source = random.Random(seed)
    replicas = Replicas(world, seed=seed, faults=True)
    for number in range(60):
        world.submit(f"r{number}", samples=2, companions={"negative": "no"}, group=f"g{number % 5}")
        replicas.run(random_source.randrange(20))
        match random_source.randrange(5):
            case 0:
                world.abort(f"r{number}", samples=(random_source.randrange(2),))
            case 1:
                world.abort(groups=(f"g{number % 5}",))
            case 2:
                world.cancel(f"r{number}")
            case _:
                pass
    replicas.run()
    after = world.core.statistics()
    assert after.is_idle
    assert after.stages == before.stages
    assert after.counters.submitted == 60
