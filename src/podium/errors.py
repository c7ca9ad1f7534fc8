"""Every error of podium: the records that travel, and the exceptions that callers catch.

An error is data first (`ErrorRecord`): the core, the journal and the wire carry records. `KINDS` is the one table that
renders a record to an exception class, an HTTP status and an exit code. This module imports nothing of podium.

    PodiumError
    ├── ConfigurationError          a pipeline or an option that cannot work; names every fault
    ├── StartError                  a stage did not come up; names the stage
    ├── InternalError               a broken invariant of podium itself; the only error that is fatal to an engine
    └── RequestError                one request (or one call) failed; carries its record
        ├── InvalidRequestError     400  what the caller asked for cannot be done
        ├── DuplicateRequestIdError 409  the id belongs to a live request
        ├── OverloadedError         429  a limit was reached; retry after a while
        ├── StageFailedError        500  a stage, or its input processor, raised
        ├── StageUnavailableError   503  a stage has no live replica, or lost the one that had the work
        ├── EngineStoppedError      503  the engine is shut down, or died
        ├── WaitTimeoutError        504  a wait exceeded its limit; names what was awaited
        │   ├── DeadlineExceededError    the request's own deadline
        │   ├── StopUnconfirmedError     a stage did not confirm a stop in time
        │   └── ControlTimeoutError      (a ControlError, too) a replica did not answer a control call in time
        └── ControlError            500  a control call failed somewhere; `results` has the answer of each replica
            ├── ControlRejectedError 409 it does not fit the state that a stage is in
            │   └── StaleVersionError    a weight update with a version that is not newer
            ├── SupersededError     409  a later control call took over
            ├── CleanupPendingError 503  a replica is still cleaning up; retry
            └── UnsupportedError    501  a stage's engine cannot do that
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Scope(StrEnum):
    """How far an error reaches. It is never implied by anything else."""

    REQUEST = "request"
    REPLICA = "replica"
    STAGE = "stage"
    ENGINE = "engine"


class Category(StrEnum):
    """Whose fault it is: the caller's (4xx) or the service's (5xx)."""

    CLIENT = "client"
    SERVER = "server"


class ErrorKind(StrEnum):
    """What went wrong, as a closed set; `KINDS` has a row for each."""

    INVALID_REQUEST = "invalid_request"
    DUPLICATE_REQUEST_ID = "duplicate_request_id"
    OVERLOADED = "overloaded"
    STAGE_FAILED = "stage_failed"
    PROCESSOR_FAILED = "processor_failed"
    BUFFER_OVERFLOW = "buffer_overflow"
    STAGE_UNAVAILABLE = "stage_unavailable"
    REPLICA_LOST = "replica_lost"
    ENGINE_STOPPED = "engine_stopped"
    ENGINE_DEAD = "engine_dead"
    WAIT_TIMEOUT = "wait_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    STOP_UNCONFIRMED = "stop_unconfirmed"
    CONTROL_FAILED = "control_failed"
    CONTROL_TIMEOUT = "control_timeout"
    CONTROL_REJECTED = "control_rejected"
    SUPERSEDED = "superseded"
    STALE_VERSION = "stale_version"
    CLEANUP_PENDING = "cleanup_pending"
    UNSUPPORTED = "unsupported"


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One error as data. `message` is fit for a client; causes stay in the log.

    `awaited` names what a timeout waited for; `retry_after_s` (seconds) is a hint for refused requests.
    """

    kind: ErrorKind
    scope: Scope
    message: str
    request_id: str | None = None
    stage: str | None = None
    replica: int | None = None
    awaited: str | None = None
    retry_after_s: float | None = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return KINDS[self.kind].status

    @property
    def category(self) -> Category:
        """Client or server, as the status says."""
        return Category.CLIENT if self.status < 500 else Category.SERVER

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return KINDS[self.kind].retryable

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        return KINDS[self.kind].exit_code

    def to_exception(self) -> RequestError:
        """The exception a caller gets for this record."""
        return KINDS[self.kind].exception(self)


class PodiumError(Exception):
    """The root of the tree."""


class Fault(NamedTuple):
    """One thing that is wrong with a pipeline: where, what, and the remedy. `line` is 1-based, 0 when unknown."""

    where: str
    problem: str
    remedy: str
    line: int = 0

    def __str__(self) -> str:
        at = f"line {self.line}: " if self.line else ""
        return f"{at}{self.where}: {self.problem}; {self.remedy}"


class ConfigurationError(PodiumError):
    """A pipeline, or an option, that cannot work. `faults` lists everything that is wrong, not only the first thing."""

    def __init__(self, subject: str, faults: Sequence[Fault]) -> None:
        self.subject = subject
        self.faults = tuple(faults)
        count = f"{len(self.faults)} fault{'s' if len(self.faults) != 1 else ''}"
        super().__init__("\n  ".join([f"{subject}: {count}", *(str(fault) for fault in self.faults)]))


class StartError(PodiumError):
    """The engine did not start. `stage` is the one at fault; the other stages were torn down."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        super().__init__(f"stage '{stage}' did not start: {reason}")


class InternalError(PodiumError):
    """An invariant of podium is broken: a bug. Fatal to the engine that met it."""


class RequestError(PodiumError):
    """One request, or one call, failed. Everything about it is in `record`."""

    def __init__(self, record: ErrorRecord) -> None:
        self.record = record
        super().__init__(record.message)

    @property
    def status(self) -> int:
        """The HTTP status of the record."""
        return self.record.status

    @property
    def request_id(self) -> str | None:
        """The request that failed."""
        return self.record.request_id

    @property
    def stage(self) -> str | None:
        """The stage at fault, when one is."""
        return self.record.stage


class InvalidRequestError(RequestError):
    """What the caller asked for cannot be done (400)."""

    @classmethod
    def because(cls, message: str, *, stage: str | None = None) -> InvalidRequestError:
        """The error for `message`, which names the field and the remedy."""
        return cls(
            ErrorRecord(kind=ErrorKind.INVALID_REQUEST, scope=Scope.REQUEST, message=message, stage=stage),
        )


class DuplicateRequestIdError(RequestError):
    """The id belongs to a live request (409)."""


class OverloadedError(RequestError):
    """A limit was reached; `record.retry_after_s` hints when to come again (429)."""


class StageFailedError(RequestError):
    """A stage, or its input processor, raised (500)."""


class StageUnavailableError(RequestError):
    """A stage that the request needs has no live replica, or lost the one that had the work (503)."""


class EngineStoppedError(RequestError):
    """The engine is shut down, or died (503)."""


class WaitTimeoutError(RequestError, TimeoutError):
    """A wait exceeded its limit; `record.awaited` names what was awaited (504)."""


class DeadlineExceededError(WaitTimeoutError):
    """The request's own deadline passed (504)."""


class StopUnconfirmedError(WaitTimeoutError):
    """A stage did not confirm a stop, in time or at all (504). A retry repeats only what `unconfirmed` lists."""

    def __init__(self, record: ErrorRecord, unconfirmed: Sequence[str] = ()) -> None:
        self.unconfirmed = tuple(unconfirmed)
        super().__init__(record)


class ControlError(RequestError):
    """A control call failed at one replica or more (500). `results` has one record for each that was called.

    Each record has `stage`, `replica`, `ok`, `value` and `error` (see `podium.core.effects.ControlRecord`).
    """

    def __init__(self, record: ErrorRecord, results: Sequence[object] = ()) -> None:
        self.results = tuple(results)
        super().__init__(record)


class ControlRejectedError(ControlError):
    """A control call does not fit the state that a stage is in, for instance a resume while it sleeps (409)."""


class StaleVersionError(ControlRejectedError):
    """A weight update with a version that is not newer than that of a stage (409)."""


class SupersededError(ControlError):
    """A later control call of the same stage took over before this one was done (409)."""


class CleanupPendingError(ControlError):
    """A replica still cleans up what was before; the same call may succeed later (503)."""


class UnsupportedError(ControlError):
    """A stage's engine cannot do what was asked for (501); it is never answered with success."""

    @classmethod
    def because(cls, message: str, *, stage: str | None = None) -> UnsupportedError:
        """The error for `message`, which says what is possible instead."""
        return cls(ErrorRecord(kind=ErrorKind.UNSUPPORTED, scope=Scope.STAGE, message=message, stage=stage))


class ControlTimeoutError(ControlError, WaitTimeoutError):
    """A replica did not answer a control call in time (504); `record` names it, `results` has the other answers."""


class Traits(NamedTuple):
    """How one kind of error is rendered."""

    status: int
    retryable: bool
    exit_code: int
    exception: type[RequestError]


KINDS: dict[ErrorKind, Traits] = {
    ErrorKind.INVALID_REQUEST: Traits(400, False, 2, InvalidRequestError),
    ErrorKind.DUPLICATE_REQUEST_ID: Traits(409, False, 2, DuplicateRequestIdError),
    ErrorKind.OVERLOADED: Traits(429, True, 75, OverloadedError),
    ErrorKind.STAGE_FAILED: Traits(500, False, 1, StageFailedError),
    ErrorKind.PROCESSOR_FAILED: Traits(500, False, 1, StageFailedError),
    ErrorKind.BUFFER_OVERFLOW: Traits(500, False, 1, StageFailedError),
    ErrorKind.STAGE_UNAVAILABLE: Traits(503, True, 69, StageUnavailableError),
    ErrorKind.REPLICA_LOST: Traits(503, True, 69, StageUnavailableError),
    ErrorKind.ENGINE_STOPPED: Traits(503, True, 69, EngineStoppedError),
    ErrorKind.ENGINE_DEAD: Traits(503, False, 70, EngineStoppedError),
    ErrorKind.WAIT_TIMEOUT: Traits(504, True, 124, WaitTimeoutError),
    ErrorKind.DEADLINE_EXCEEDED: Traits(504, False, 124, DeadlineExceededError),
    ErrorKind.STOP_UNCONFIRMED: Traits(504, True, 124, StopUnconfirmedError),
    ErrorKind.CONTROL_FAILED: Traits(500, True, 1, ControlError),
    ErrorKind.CONTROL_TIMEOUT: Traits(504, True, 124, ControlTimeoutError),
    ErrorKind.CONTROL_REJECTED: Traits(409, False, 2, ControlRejectedError),
    ErrorKind.SUPERSEDED: Traits(409, True, 1, SupersededError),
    ErrorKind.STALE_VERSION: Traits(409, False, 2, StaleVersionError),
    ErrorKind.CLEANUP_PENDING: Traits(503, True, 69, CleanupPendingError),
    ErrorKind.UNSUPPORTED: Traits(501, False, 2, UnsupportedError),
}
