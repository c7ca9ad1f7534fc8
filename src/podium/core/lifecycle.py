"""Every state and every move between states, as tables: of jobs, requests, replicas and the admission gate.

State changes nowhere else. A pair that is not in a table is a bug of podium and raises InternalError; whatever the
outside world does wrong is sorted out before a table is asked. The diagrams in the docs are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from podium.core.events import FinishReason, GateAction
from podium.errors import InternalError


class JobState(StrEnum):
    """Where the work of one request at one stage stands."""

    WAITING = "waiting"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    STOPPING = "stopping"
    STOP_FAILED = "stop_failed"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    SKIPPED = "skipped"


class JobTrigger(StrEnum):
    """What moves a job."""

    READY = "ready"
    DISPATCH = "dispatch"
    START = "start"
    FINISH = "finish"
    STOP = "stop"
    STOP_FAILS = "stop fails"
    CONFIRM_STOP = "confirm stop"
    CANCEL = "cancel"
    FAIL = "fail"
    SKIP = "skip"
    REQUEUE = "requeue"


class RequestState(StrEnum):
    """Where a request stands."""

    HELD = "held"
    ACTIVE = "active"
    ABORTING = "aborting"
    COMPLETED = "completed"
    ABORTED = "aborted"
    FAILED = "failed"


class RequestTrigger(StrEnum):
    """What moves a request."""

    ADMIT = "admit"
    ABORT = "abort"
    COMPLETE = "complete"
    SETTLE = "settle"
    CANCEL = "cancel"
    FAIL = "fail"


class ReplicaState(StrEnum):
    """Where a replica stands."""

    LIVE = "live"
    DRAINING = "draining"
    GONE = "gone"


class ReplicaTrigger(StrEnum):
    """What moves a replica."""

    DRAIN = "drain"
    LEAVE = "leave"
    LOSE = "lose"


class GateState(StrEnum):
    """What the admission gate does with new work for a stage."""

    OPEN = "open"
    HOLDING = "holding"
    REFUSING = "refusing"
    CLOSED = "closed"


class Forwarding(StrEnum):
    """What a finish means downstream."""

    FORWARD = "forward"
    ABORT = "abort"
    FAIL = "fail"


State = TypeVar("State", bound=StrEnum)
Trigger = TypeVar("Trigger", bound=StrEnum)
Table = Mapping[State, Mapping[Trigger, State]]

_J, _JT = JobState, JobTrigger

JOBS: Table[JobState, JobTrigger] = {
    _J.WAITING: {_JT.READY: _J.QUEUED, _JT.CANCEL: _J.STOPPED, _JT.SKIP: _J.SKIPPED},
    _J.QUEUED: {_JT.DISPATCH: _J.DISPATCHED, _JT.CANCEL: _J.STOPPED},
    _J.DISPATCHED: {
        _JT.START: _J.RUNNING,
        _JT.STOP: _J.STOPPING,
        _JT.FAIL: _J.FAILED,
        _JT.REQUEUE: _J.QUEUED,
    },
    _J.RUNNING: {
        _JT.FINISH: _J.FINISHED,
        _JT.STOP: _J.STOPPING,
        _JT.FAIL: _J.FAILED,
        _JT.REQUEUE: _J.QUEUED,
    },
    _J.STOPPING: {
        _JT.FINISH: _J.FINISHED,
        _JT.CONFIRM_STOP: _J.STOPPED,
        _JT.STOP_FAILS: _J.STOP_FAILED,
        _JT.FAIL: _J.FAILED,
    },
    _J.STOP_FAILED: {
        _JT.FINISH: _J.FINISHED,
        _JT.STOP: _J.STOPPING,
        _JT.CONFIRM_STOP: _J.STOPPED,
        _JT.FAIL: _J.FAILED,
    },
    _J.FINISHED: {},
    _J.STOPPED: {},
    _J.FAILED: {},
    _J.SKIPPED: {},
}

_R, _RT = RequestState, RequestTrigger

REQUESTS: Table[RequestState, RequestTrigger] = {
    _R.HELD: {_RT.ADMIT: _R.ACTIVE, _RT.ABORT: _R.ABORTING, _RT.CANCEL: _R.ABORTED, _RT.FAIL: _R.FAILED},
    _R.ACTIVE: {_RT.COMPLETE: _R.COMPLETED, _RT.ABORT: _R.ABORTING, _RT.CANCEL: _R.ABORTED, _RT.FAIL: _R.FAILED},
    _R.ABORTING: {_RT.COMPLETE: _R.COMPLETED, _RT.SETTLE: _R.ABORTED, _RT.FAIL: _R.FAILED},
    _R.COMPLETED: {},
    _R.ABORTED: {},
    _R.FAILED: {},
}

_P, _PT = ReplicaState, ReplicaTrigger

REPLICAS: Table[ReplicaState, ReplicaTrigger] = {
    _P.LIVE: {_PT.DRAIN: _P.DRAINING, _PT.LOSE: _P.GONE},
    _P.DRAINING: {_PT.LEAVE: _P.GONE, _PT.LOSE: _P.GONE},
    _P.GONE: {},
}

_G, _GA = GateState, GateAction

GATE: Table[GateState, GateAction] = {
    _G.OPEN: {_GA.OPEN: _G.OPEN, _GA.HOLD: _G.HOLDING, _GA.REFUSE: _G.REFUSING, _GA.CLOSE: _G.CLOSED},
    _G.HOLDING: {_GA.OPEN: _G.OPEN, _GA.HOLD: _G.HOLDING, _GA.REFUSE: _G.REFUSING, _GA.CLOSE: _G.CLOSED},
    _G.REFUSING: {_GA.OPEN: _G.OPEN, _GA.HOLD: _G.HOLDING, _GA.REFUSE: _G.REFUSING, _GA.CLOSE: _G.CLOSED},
    _G.CLOSED: {_GA.OPEN: _G.CLOSED, _GA.HOLD: _G.CLOSED, _GA.REFUSE: _G.CLOSED, _GA.CLOSE: _G.CLOSED},
}

FORWARDING: Mapping[FinishReason, Forwarding] = {
    FinishReason.STOP: Forwarding.FORWARD,
    FinishReason.LENGTH: Forwarding.FORWARD,
    FinishReason.ABORT: Forwarding.ABORT,
    FinishReason.ERROR: Forwarding.FAIL,
}

AT_REPLICA = frozenset({JobState.DISPATCHED, JobState.RUNNING, JobState.STOPPING, JobState.STOP_FAILED})
"""The states in which a replica has the job, and a credit is taken for it."""

BEFORE_REPLICA = frozenset({JobState.WAITING, JobState.QUEUED})
"""The states in which no replica knows of the job."""


def move(table: Table[State, Trigger], state: State, trigger: Trigger) -> State:
    """The state that `trigger` leads to; raises InternalError where the table has none."""
    try:
        return table[state][trigger]
    except KeyError:
        raise InternalError(f"{type(state).__name__} {state!s} has no move for '{trigger!s}'") from None
