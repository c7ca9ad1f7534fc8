"""What is said of control calls that do not fit, or that failed: each text, and where it points."""

from __future__ import annotations

import pytest

from podium.core.admission import EngineLimits
from podium.core.effects import ReplyControl
from podium.core.events import ControlRequested, ShutdownRequested
from podium.core.operations import (
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    Operation,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from podium.errors import ErrorKind, ErrorRecord, Scope
from tests.support.core_world import World, a_loss, make_stage, voice

KEEP, RESET = Pause(PauseMode.KEEP), CallMethod("reset")
REJECTED = ErrorKind.CONTROL_REJECTED


def single(replicas: int = 1) -> World:
    return World(make_stage("a", output="out"), limits=EngineLimits(max_control_calls=2), replicas=replicas)


def last_error(world: World) -> ErrorRecord:
    found = [effect.error for effect in world.effects if isinstance(effect, ReplyControl)][-1]
    assert found is not None
    return found


def after(*operations: Operation) -> World:
    world = single()
    for operation in operations:
        world.control(operation)
        world.answer_all()
    return world


NO_DRAIN = (
    "the weights of stage 'a' are updating, and its jobs stand still; "
    "pause with 'keep' or 'abort', or commit the update, or roll it back, first"
)
PREFIXES: dict[str, tuple[tuple[Operation, ...], Operation, ErrorKind, str]] = {
    "asleep": (
        (Sleep(1, {"a": ("kv",)}),),
        Resume(),
        REJECTED,
        "stage 'a' is asleep; wake it up first",
    ),
    "updating": (
        (KEEP, BeginUpdate(1)),
        Resume(),
        REJECTED,
        "the weights of stage 'a' are updating; commit the update, or roll it back, first",
    ),
    "open": (
        (),
        BeginUpdate(1),
        REJECTED,
        "stage 'a' is open; pause it before its weights are changed",
    ),
    "stale": (
        (KEEP,),
        BeginUpdate(0),
        ErrorKind.STALE_VERSION,
        "version: stage 'a' has the weights of version 0; 0 is not newer",
    ),
    "not begun": (
        (KEEP,),
        UpdateWeights(),
        REJECTED,
        "the weights of stage 'a' are settled; begin an update first",
    ),
    "not updated": (
        (KEEP, BeginUpdate(1)),
        CommitUpdate(),
        REJECTED,
        "the update of stage 'a' is not complete: replica 0 has not confirmed it",
    ),
    "nothing to roll back": (
        (KEEP,),
        RollBackUpdate(),
        REJECTED,
        "no update of the weights of stage 'a' is under way",
    ),
    "no weights to drain with": (
        (KEEP, BeginUpdate(1)),
        Pause(PauseMode.WAIT),
        REJECTED,
        NO_DRAIN,
    ),
    "no weights to sleep after": (
        (KEEP, BeginUpdate(1)),
        Sleep(1, {"a": ("kv",)}),
        REJECTED,
        NO_DRAIN,
    ),
    "no way back": (
        (KEEP, BeginUpdate(1), UpdateWeights()),
        RollBackUpdate(),
        REJECTED,
        "weights of stage 'a' were changed; say how they are restored",
    ),
}


@pytest.mark.rule("ORCH-INV-231")
@pytest.mark.case("B100")
@pytest.mark.parametrize("name", PREFIXES)
def test_what_does_not_fit_is_rejected_with_its_reason(name: str) -> None:
    before, operation, kind, message = PREFIXES[name]
    world = after(*before)
    world.control(operation)
    error = last_error(world)
    assert (error.kind, error.scope, error.stage, error.message) == (kind, Scope.STAGE, "a", message)


@pytest.mark.parametrize(
    ("before", "operation"),
    [
        ((KEEP,), Resume()),
        ((KEEP,), WakeUp({"a": ("kv",)})),
        ((KEEP, BeginUpdate(1), UpdateWeights()), CommitUpdate()),
        ((KEEP, BeginUpdate(1)), RollBackUpdate()),
        ((KEEP, BeginUpdate(1), UpdateWeights()), RollBackUpdate({"method": "restore"})),
        ((KEEP,), BeginUpdate(1)),
        ((KEEP,), Pause(PauseMode.WAIT)),
        ((KEEP, BeginUpdate(1)), KEEP),
        ((Pause(PauseMode.WAIT), BeginUpdate(1)), Pause(PauseMode.WAIT)),
        ((Sleep(1, {"a": ("kv",)}, PauseMode.KEEP), BeginUpdate(1)), Pause(PauseMode.WAIT)),
    ],
)
def test_what_fits_is_not(before: tuple[Operation, ...], operation: Operation) -> None:
    world = after(*before)
    world.control(operation)
    world.answer_all()
    assert [effect for effect in world.effects if isinstance(effect, ReplyControl)][-1].error is None


def test_a_commit_needs_a_replica() -> None:
    world = after(KEEP, BeginUpdate(1))
    world.lose("a")
    world.control(CommitUpdate())
    assert last_error(world).message == "the update of stage 'a' is not complete: no replica has confirmed it"


@pytest.mark.rule("ORCH-INV-238")
def test_a_commit_needs_every_replica() -> None:
    world = after(KEEP, BeginUpdate(1), UpdateWeights())
    world.join("a", 1)
    world.control(CommitUpdate())
    assert last_error(world).message == "the update of stage 'a' is not complete: replica 1 has not confirmed it"


@pytest.mark.rule("ORCH-INV-238")
def test_weights_are_not_changed_before_the_stage_stands_still() -> None:
    world = single()
    world.submit()
    world.control(Pause(PauseMode.WAIT))
    world.control(BeginUpdate(1))
    assert last_error(world).message == "stage 'a' is closing; pause it before its weights are changed"


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (("a", "nobody"), "stages: there is no stage 'nobody'; use some of: a"),
        ((), "stages: no stage is named; use some of: a"),
    ],
)
def test_stages_have_to_be_known(stages: tuple[str, ...], message: str) -> None:
    world = single()
    world.tell(ControlRequested(1, RESET, stages, 9.0))
    assert (last_error(world).kind, last_error(world).message) == (ErrorKind.INVALID_REQUEST, message)


def test_so_many_can_be_open_and_none_once_it_is_shut() -> None:
    world = single()
    for _ in range(3):
        world.control(RESET)
    assert last_error(world).message == "2 control calls are open (limits.max_control_calls)"
    world.tell(ShutdownRequested(a_loss()))
    world.control(RESET)
    assert last_error(world).message == "the engine is shut down"


def test_the_later_call_takes_over() -> None:
    world = after()
    world.control(KEEP)
    world.control(Resume())
    error = last_error(world)
    assert (error.kind, error.message) == (
        ErrorKind.SUPERSEDED,
        "Pause was not done when Resume took over stage 'a'",
    )


def failed(kind: ErrorKind, message: str = "no") -> ErrorRecord:
    return ErrorRecord(kind=kind, scope=Scope.REPLICA, message=message)


@pytest.mark.rule("ORCH-INV-231")
def test_one_failure_points_at_its_replica_and_several_at_what_they_share() -> None:
    world = World(*voice(), replicas=2)
    places = []
    for failing in ({("a", 1)}, {("a", 0), ("a", 1)}, {("a", 0), ("b", 0)}):
        world.control(RESET)
        for call in world.calls():
            is_failing = (call.replica.stage, call.replica.slot) in failing
            world.answer(call, error=failed(ErrorKind.CLEANUP_PENDING) if is_failing else None)
        places.append((last_error(world).scope, last_error(world).stage, last_error(world).replica))
    assert places == [(Scope.REPLICA, "a", 1), (Scope.STAGE, "a", None), (Scope.ENGINE, None, None)]


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        ((ErrorKind.UNSUPPORTED, ErrorKind.UNSUPPORTED), ErrorKind.UNSUPPORTED),
        ((ErrorKind.UNSUPPORTED, ErrorKind.CLEANUP_PENDING), ErrorKind.CONTROL_FAILED),
        ((ErrorKind.STAGE_FAILED, ErrorKind.STAGE_FAILED), ErrorKind.CONTROL_FAILED),
    ],
)
def test_a_kind_that_all_share_is_kept_when_it_is_one_of_control(
    kinds: tuple[ErrorKind, ErrorKind], kind: ErrorKind
) -> None:
    world = single(replicas=2)
    world.control(RESET)
    for call, one in zip(world.calls(), kinds, strict=True):
        world.answer(call, error=failed(one))
    assert last_error(world).kind is kind


def test_the_text_names_the_first_few() -> None:
    world = single(replicas=6)
    world.control(RESET)
    for number, call in enumerate(world.calls()):
        world.answer(call, error=failed(ErrorKind.CONTROL_FAILED, f"{number}"))
    assert last_error(world).message == "0; 1; 2; 3; and 2 more"


@pytest.mark.rule("ORCH-INV-204")
def test_who_was_silent_is_named_and_who_is_gone_and_what_has_not_drained() -> None:
    world = single(replicas=2)
    world.control(RESET, timeout_s=1.0)
    world.lose("a", 0)
    world.wait(1.0)
    assert last_error(world).message == (
        "replica 0 of stage 'a' was lost before it answered 'reset'; "
        "replica 1 of stage 'a' did not answer 'reset' in time"
    )
    world.control(RESET)
    world.drain("a", 1)
    assert last_error(world).message == "replica 1 of stage 'a' was drained before it answered 'reset'"
    world.control(RESET)
    assert last_error(world).message == "stage 'a' has no live replica to call"
    world.join("a", 2)
    world.submit()
    world.control(Pause(PauseMode.WAIT), timeout_s=1.0)
    world.wait(1.0)
    assert last_error(world).message == (
        "stage 'a' has not drained in time: replica 2 has 1 jobs, and requests that were admitted may still need it"
    )


@pytest.mark.rule("ORCH-INV-204")
def test_a_stage_between_two_lives_of_its_replica_has_not_drained() -> None:
    world = single()
    world.drain("a", succeeded=True)
    world.submit()
    world.control(Pause(PauseMode.WAIT), timeout_s=1.0)
    world.wait(1.0)
    assert last_error(world).message == (
        "stage 'a' has not drained in time: it has no replica now, and requests that were admitted may still need it"
    )
    assert last_error(world).replica is None
