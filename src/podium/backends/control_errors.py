"""The errors of control calls, as backends raise them: each names its stage.

What an engine itself raises is translated here; nothing is decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from podium.errors import (
    CleanupPendingError,
    ControlError,
    ControlRejectedError,
    ErrorKind,
    ErrorRecord,
    RequestError,
    Scope,
)
from podium.ports.stage_backend import BackendDead


def failed(stage: str, message: str) -> ControlError:
    """The engine could not do it."""
    return ControlError(_record(ErrorKind.CONTROL_FAILED, stage, message))


def rejected(stage: str, message: str) -> ControlRejectedError:
    """It does not fit the state that the engine is in."""
    return ControlRejectedError(_record(ErrorKind.CONTROL_REJECTED, stage, message))


def pending(stage: str, message: str) -> CleanupPendingError:
    """It will be possible later."""
    return CleanupPendingError(_record(ErrorKind.CLEANUP_PENDING, stage, message))


@contextmanager
def translated(stage: str, what: str) -> Iterator[None]:
    """Let what an engine raises be a ControlError that says what failed, and the engine's own reason."""
    try:
        yield
    except (BackendDead, RequestError, TimeoutError):
        raise
    except Exception as error:  # foreign code raises what it likes; it fails this call only
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise failed(stage, f"stage '{stage}' could not {what}: {reason}") from error


def _record(kind: ErrorKind, stage: str, message: str) -> ErrorRecord:
    return ErrorRecord(kind=kind, scope=Scope.REPLICA, stage=stage, message=message)
