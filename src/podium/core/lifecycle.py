"""Every state and every move between states, as tables: jobs, requests, replicas, the gate, barriers, weights.

State changes nowhere else. A pair that is not in a table is a bug of podium and raises InternalError; whatever the
outside world does wrong is sorted out before a table is asked. The diagrams in the docs are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from podium.core.events import FinishReason
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


class GateAction(StrEnum):
    """What moves the admission gate of a stage: its barrier, and the shutdown, which closes it for good."""

    OPEN = "open"
    HOLD = "hold"
    REFUSE = "refuse"
    CLOSE = "close"


class BarrierState(StrEnum):
    """Where a stage stands between working and sleeping. Only confirmations of its replicas end a state in -ing."""

    OPEN = "open"
    CLOSING = "closing"
    QUIESCED = "quiesced"
    FALLING_ASLEEP = "falling_asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    OPENING = "opening"


class BarrierTrigger(StrEnum):
    """What moves a barrier: what a caller wants, and what every live replica of the stage has confirmed."""

    PAUSE = "pause"
    THAW = "thaw"
    QUIESCE = "confirm quiet"
    SLEEP = "sleep"
    FALL_ASLEEP = "confirm sleep"
    WAKE = "wake"
    WAKE_PARTLY = "confirm part of it"
    WAKE_UP = "confirm all memory"
    RESUME = "resume"
    OPEN = "confirm work"


class FenceState(StrEnum):
    """Where the weights of a stage stand: of one version, being changed, or of no known version."""

    SETTLED = "settled"
    UPDATING = "updating"
    BROKEN = "broken"


class FenceTrigger(StrEnum):
    """What moves a fence."""

    BEGIN = "begin"
    FAIL = "fail"
    COMMIT = "commit"
    ROLL_BACK = "roll back"


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

_B, _BT = BarrierState, BarrierTrigger

BARRIER: Table[BarrierState, BarrierTrigger] = {
    _B.OPEN: {_BT.PAUSE: _B.CLOSING},
    _B.CLOSING: {
        _BT.PAUSE: _B.CLOSING,
        _BT.THAW: _B.CLOSING,
        _BT.QUIESCE: _B.QUIESCED,
        _BT.RESUME: _B.OPENING,
    },
    _B.QUIESCED: {
        _BT.PAUSE: _B.QUIESCED,
        _BT.THAW: _B.CLOSING,
        _BT.QUIESCE: _B.QUIESCED,
        _BT.SLEEP: _B.FALLING_ASLEEP,
        _BT.RESUME: _B.OPENING,
    },
    _B.FALLING_ASLEEP: {_BT.SLEEP: _B.FALLING_ASLEEP, _BT.FALL_ASLEEP: _B.ASLEEP, _BT.WAKE: _B.WAKING},
    _B.ASLEEP: {_BT.SLEEP: _B.FALLING_ASLEEP, _BT.WAKE: _B.WAKING},
    _B.WAKING: {
        _BT.WAKE: _B.WAKING,
        _BT.WAKE_PARTLY: _B.ASLEEP,
        _BT.WAKE_UP: _B.QUIESCED,
        _BT.SLEEP: _B.FALLING_ASLEEP,
    },
    _B.OPENING: {_BT.RESUME: _B.OPENING, _BT.OPEN: _B.OPEN, _BT.PAUSE: _B.CLOSING},
}

_F, _FT = FenceState, FenceTrigger

FENCE: Table[FenceState, FenceTrigger] = {
    _F.SETTLED: {_FT.BEGIN: _F.UPDATING},
    _F.UPDATING: {
        _FT.BEGIN: _F.UPDATING,
        _FT.FAIL: _F.BROKEN,
        _FT.COMMIT: _F.SETTLED,
        _FT.ROLL_BACK: _F.SETTLED,
    },
    _F.BROKEN: {_FT.BEGIN: _F.UPDATING, _FT.FAIL: _F.BROKEN, _FT.ROLL_BACK: _F.SETTLED},
}

FORWARDING: Mapping[FinishReason, Forwarding] = {
    FinishReason.STOP: Forwarding.FORWARD,
    FinishReason.LENGTH: Forwarding.FORWARD,
    FinishReason.ABORT: Forwarding.ABORT,
    FinishReason.ERROR: Forwarding.FAIL,
}

AT_REPLICA = frozenset({JobState.DISPATCHED, JobState.RUNNING, JobState.STOPPING, JobState.STOP_FAILED})
"""The states in which a replica has the job, and a credit is taken for it."""

QUIET = frozenset({BarrierState.QUIESCED, BarrierState.FALLING_ASLEEP, BarrierState.ASLEEP, BarrierState.WAKING})
"""The states in which every replica of a stage has confirmed that no step runs or will start."""

SLEEPY = frozenset({BarrierState.FALLING_ASLEEP, BarrierState.ASLEEP, BarrierState.WAKING})
"""The states in which memory of a stage may be missing."""

BEFORE_REPLICA = frozenset({JobState.WAITING, JobState.QUEUED})
"""The states in which no replica knows of the job."""


def move(table: Table[State, Trigger], state: State, trigger: Trigger) -> State:
    """The state that `trigger` leads to; raises InternalError where the table has none."""
    try:
        return table[state][trigger]
    except KeyError:
        raise InternalError(f"{type(state).__name__} {state!s} has no move for '{trigger!s}'") from None
