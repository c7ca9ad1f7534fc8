"""What can be wrong with a control call: why one does not fit, and what is said of those that failed.

Makes error records; it changes nothing and calls nobody.
"""

from __future__ import annotations

from typing import assert_never

from podium.core.control import ControlCall
from podium.core.events import ControlRequested
from podium.core.identity import ReplicaKey
from podium.core.lifecycle import SLEEPY, FenceState
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
from podium.core.stage_pool import StagePool
from podium.core.state import CoreState
from podium.errors import ErrorKind, ErrorRecord, Scope

NAMED_FAILURES = 4
"""How many failed replicas the text of an error names; all of them are among the records."""


def reason_to_refuse(state: CoreState, event: ControlRequested) -> ErrorRecord | None:
    """Why a control call cannot be begun; None when it can."""
    unknown = [stage for stage in event.stages if stage not in state.pools]
    if unknown or not event.stages:
        what = f"there is no stage '{unknown[0]}'" if unknown else "no stage is named"
        return ErrorRecord(
            kind=ErrorKind.INVALID_REQUEST,
            scope=Scope.REQUEST,
            message=f"stages: {what}; use some of: {', '.join(state.pools)}",
        )
    if state.gate.is_shut:
        return ErrorRecord(kind=ErrorKind.ENGINE_STOPPED, scope=Scope.ENGINE, message="the engine is shut down")
    if len(state.control_calls) >= state.limits.max_control_calls:
        return ErrorRecord(
            kind=ErrorKind.OVERLOADED,
            scope=Scope.ENGINE,
            retry_after_s=state.limits.retry_after_s,
            message=f"{state.limits.max_control_calls} control calls are open (limits.max_control_calls)",
        )
    for stage in event.stages:
        misfit = _misfit(state.pools[stage], event.operation)
        if misfit is not None:
            return misfit
    return None


def _misfit(pool: StagePool, operation: Operation) -> ErrorRecord | None:  # noqa: C901 - one row for each operation
    """Why an operation does not fit the state of a stage."""
    stage, barrier, fence = pool.stage.name, pool.barrier, pool.fence
    match operation:
        case Resume():
            if barrier.state in SLEEPY:
                return _rejected(stage, f"stage '{stage}' is {barrier.state}; wake it up first")
            if not fence.is_settled:
                return _rejected(stage, f"the weights of stage '{stage}' are {fence.state}; {_WAY_OUT}")
        case BeginUpdate():
            if not barrier.is_quiet:
                return _rejected(stage, f"stage '{stage}' is {barrier.state}; pause it before its weights are changed")
            if operation.version <= fence.version:
                message = (
                    f"version: stage '{stage}' has the weights of version {fence.version}; "
                    f"{operation.version} is not newer"
                )
                return ErrorRecord(kind=ErrorKind.STALE_VERSION, scope=Scope.STAGE, stage=stage, message=message)
        case UpdateWeights() | CommitUpdate():
            return _misfit_of_update(pool, operation)
        case RollBackUpdate():
            if fence.is_settled:
                return _rejected(stage, f"no update of the weights of stage '{stage}' is under way")
            if operation.arguments is None and fence.touched:
                return _rejected(stage, f"weights of stage '{stage}' were changed; say how they are restored")
        case Pause() | Sleep():
            return _misfit_of_pause(pool, operation)
        case CallMethod() | WakeUp():
            pass
        case _:
            assert_never(operation)
    return None


_WAY_OUT = "commit the update, or roll it back, first"


def _misfit_of_pause(pool: StagePool, operation: Pause | Sleep) -> ErrorRecord | None:
    """What stands still must not be let go to drain while nobody knows its weights."""
    stage, barrier, fence = pool.stage.name, pool.barrier, pool.fence
    is_thaw = operation.mode is PauseMode.WAIT and barrier.is_frozen and barrier.state not in SLEEPY
    if is_thaw and not fence.is_settled:
        why = f"the weights of stage '{stage}' are {fence.state}, and its jobs stand still"
        return _rejected(stage, f"{why}; pause with 'keep' or 'abort', or {_WAY_OUT}")
    return None


def _misfit_of_update(pool: StagePool, operation: UpdateWeights | CommitUpdate) -> ErrorRecord | None:
    stage, fence = pool.stage.name, pool.fence
    if fence.state is not FenceState.UPDATING:
        return _rejected(stage, f"the weights of stage '{stage}' are {fence.state}; begin an update first")
    if isinstance(operation, CommitUpdate):
        missing = [str(key.slot) for key in pool.present() if key not in fence.updated]
        if missing or not fence.updated:
            lack = f"replica {', '.join(missing)} has not confirmed it" if missing else "no replica has confirmed it"
            return _rejected(stage, f"the update of stage '{stage}' is not complete: {lack}")
    return None


def _rejected(stage: str, message: str) -> ErrorRecord:
    return ErrorRecord(kind=ErrorKind.CONTROL_REJECTED, scope=Scope.STAGE, stage=stage, message=message)


def superseded(old: ControlCall, new: ControlCall, stage: str) -> ErrorRecord:
    """The error of a call whose place a later one took."""
    names = type(old.operation).__name__, type(new.operation).__name__
    message = f"{names[0]} was not done when {names[1]} took over stage '{stage}'"
    return ErrorRecord(kind=ErrorKind.SUPERSEDED, scope=Scope.STAGE, stage=stage, message=message)


def silent(replica: ReplicaKey, method: str) -> ErrorRecord:
    """The error of a replica that did not answer in time."""
    return ErrorRecord(
        kind=ErrorKind.CONTROL_TIMEOUT,
        scope=Scope.REPLICA,
        stage=replica.stage,
        replica=replica.slot,
        awaited=f"the answer to '{method}'",
        message=f"replica {replica.slot} of stage '{replica.stage}' did not answer '{method}' in time",
    )


def lost(replica: ReplicaKey, method: str, error: ErrorRecord | None) -> ErrorRecord:
    """The error of a replica that was gone before it answered; `error` says why, None when it was drained."""
    stage, slot = replica.stage, replica.slot
    if error is None:
        message = f"replica {slot} of stage '{stage}' was drained before it answered '{method}'"
    else:
        message = f"replica {slot} of stage '{stage}' was lost before it answered '{method}'"
    return ErrorRecord(kind=ErrorKind.REPLICA_LOST, scope=Scope.REPLICA, stage=stage, replica=slot, message=message)


def nobody_to_call(stage: str) -> ErrorRecord:
    """The error of a stage that has no replica to call."""
    return ErrorRecord(
        kind=ErrorKind.STAGE_UNAVAILABLE,
        scope=Scope.STAGE,
        stage=stage,
        message=f"stage '{stage}' has no live replica to call",
    )


def undrained(pool: StagePool, key: ReplicaKey) -> ErrorRecord:
    """The error of a stage whose work has not ended in time."""
    stage, slot = pool.stage.name, key.slot
    replica = pool.find(key)
    left = "it has no replica now" if replica is None else f"replica {slot} has {len(replica.jobs)} jobs"
    return ErrorRecord(
        kind=ErrorKind.CONTROL_TIMEOUT,
        scope=Scope.REPLICA,
        stage=stage,
        replica=None if replica is None else slot,
        awaited="the end of its jobs",
        message=f"stage '{stage}' has not drained in time: {left}, and requests that were admitted may still need it",
    )


def error_of(call: ControlCall) -> ErrorRecord | None:
    """One error for all that failed: of their kind when they share it, and at their place when they share that."""
    failures = call.failures()
    if not failures:
        return None
    errors = [record.error for record in failures if record.error is not None]
    kinds = {error.kind for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else ErrorKind.CONTROL_FAILED
    if kind not in _CONTROL_KINDS:
        kind = ErrorKind.CONTROL_FAILED
    stages = {record.stage for record in failures}
    is_one = len(failures) == 1
    named = [error.message for error in errors[:NAMED_FAILURES]]
    more = f"; and {len(errors) - NAMED_FAILURES} more" if len(errors) > NAMED_FAILURES else ""
    return ErrorRecord(
        kind=kind,
        scope=Scope.REPLICA if is_one else Scope.STAGE if len(stages) == 1 else Scope.ENGINE,
        stage=failures[0].stage if len(stages) == 1 else None,
        replica=failures[0].replica if is_one else None,
        awaited=errors[0].awaited,
        message="; ".join(named) + more,
    )


_CONTROL_KINDS = frozenset(
    {
        ErrorKind.CONTROL_FAILED,
        ErrorKind.CONTROL_TIMEOUT,
        ErrorKind.CONTROL_REJECTED,
        ErrorKind.STALE_VERSION,
        ErrorKind.CLEANUP_PENDING,
        ErrorKind.UNSUPPORTED,
    }
)
