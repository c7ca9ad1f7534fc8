"""The tree of errors: records become exceptions, statuses and exit codes by one table, and say what they are about."""

from __future__ import annotations

import pytest

from podium import errors
from podium.errors import (
    KINDS,
    Category,
    CleanupPendingError,
    ConfigurationError,
    ControlError,
    ControlRejectedError,
    ControlTimeoutError,
    DeadlineExceededError,
    DuplicateRequestIdError,
    EngineStoppedError,
    ErrorKind,
    ErrorRecord,
    Fault,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    PodiumError,
    RequestError,
    Scope,
    StageFailedError,
    StageUnavailableError,
    StaleVersionError,
    StartError,
    StopUnconfirmedError,
    SupersededError,
    UnsupportedError,
    WaitTimeoutError,
)

TABLE = [
    # kind, status, class, may succeed later, exit code
    (ErrorKind.INVALID_REQUEST, 400, InvalidRequestError, False, 2),
    (ErrorKind.DUPLICATE_REQUEST_ID, 409, DuplicateRequestIdError, False, 2),
    (ErrorKind.OVERLOADED, 429, OverloadedError, True, 75),
    (ErrorKind.STAGE_FAILED, 500, StageFailedError, False, 1),
    (ErrorKind.PROCESSOR_FAILED, 500, StageFailedError, False, 1),
    (ErrorKind.BUFFER_OVERFLOW, 500, StageFailedError, False, 1),
    (ErrorKind.STAGE_UNAVAILABLE, 503, StageUnavailableError, True, 69),
    (ErrorKind.REPLICA_LOST, 503, StageUnavailableError, True, 69),
    (ErrorKind.ENGINE_STOPPED, 503, EngineStoppedError, True, 69),
    (ErrorKind.ENGINE_DEAD, 503, EngineStoppedError, False, 70),
    (ErrorKind.WAIT_TIMEOUT, 504, WaitTimeoutError, True, 124),
    (ErrorKind.DEADLINE_EXCEEDED, 504, DeadlineExceededError, False, 124),
    (ErrorKind.STOP_UNCONFIRMED, 504, StopUnconfirmedError, True, 124),
    (ErrorKind.CONTROL_FAILED, 500, ControlError, True, 1),
    (ErrorKind.CONTROL_TIMEOUT, 504, ControlTimeoutError, True, 124),
    (ErrorKind.CONTROL_REJECTED, 409, ControlRejectedError, False, 2),
    (ErrorKind.SUPERSEDED, 409, SupersededError, True, 1),
    (ErrorKind.STALE_VERSION, 409, StaleVersionError, False, 2),
    (ErrorKind.CLEANUP_PENDING, 503, CleanupPendingError, True, 69),
    (ErrorKind.UNSUPPORTED, 501, UnsupportedError, False, 2),
]


def record(kind: ErrorKind = ErrorKind.STAGE_FAILED) -> ErrorRecord:
    return ErrorRecord(
        kind=kind, scope=Scope.REQUEST, message="it broke", request_id="r1", stage="talker", replica=1, awaited="x"
    )


def test_the_table_covers_every_kind() -> None:
    assert {kind for kind, *_ in TABLE} == set(ErrorKind) == set(KINDS)


@pytest.mark.rule("ORCH-INV-200")
@pytest.mark.case("B071")
@pytest.mark.parametrize(("kind", "status", "exception", "is_retryable", "exit_code"), TABLE)
def test_a_record_becomes_one_exception_of_the_same_content(
    kind: ErrorKind, status: int, exception: type[RequestError], is_retryable: bool, exit_code: int
) -> None:
    one = record(kind)
    assert (one.status, one.is_retryable, one.exit_code) == (status, is_retryable, exit_code)
    assert one.category is (Category.CLIENT if status < 500 else Category.SERVER)
    raised = one.to_exception()
    assert type(raised) is exception
    assert (raised.status, raised.stage, raised.request_id, raised.record) == (status, "talker", "r1", one)
    assert str(raised) == "it broke"


@pytest.mark.rule("ORCH-INV-200")
def test_scope_is_a_field_of_its_own() -> None:
    scopes = {
        ErrorRecord(kind=ErrorKind.STAGE_FAILED, scope=scope, message="m").to_exception().record.scope
        for scope in Scope
    }
    assert scopes == {Scope.REQUEST, Scope.REPLICA, Scope.STAGE, Scope.ENGINE}


def test_a_timeout_is_a_timeout_for_everybody() -> None:
    with pytest.raises(TimeoutError):
        raise record(ErrorKind.DEADLINE_EXCEEDED).to_exception()
    assert issubclass(StopUnconfirmedError, TimeoutError)
    assert issubclass(ControlTimeoutError, TimeoutError)


def test_an_unconfirmed_stop_lists_the_ids() -> None:
    error = StopUnconfirmedError(record(ErrorKind.STOP_UNCONFIRMED), ["a", "b"])
    assert error.unconfirmed == ("a", "b")


@pytest.mark.rule("ORCH-INV-231")
def test_an_error_of_control_has_the_answers_of_the_replicas() -> None:
    controls = [traits.exception for traits in KINDS.values() if issubclass(traits.exception, ControlError)]
    assert len(controls) == 7
    for exception in controls:
        error = exception(record(ErrorKind.CONTROL_FAILED), ["one", "other"])
        assert error.results == ("one", "other")
        assert exception(record()).results == ()
    assert issubclass(StaleVersionError, ControlRejectedError)
    assert str(UnsupportedError.because("stage 'a' cannot", stage="a")) == "stage 'a' cannot"


def test_every_exception_is_in_the_tree() -> None:
    mine = [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, Exception) and found.__module__ == errors.__name__
    ]
    assert all(issubclass(exception, PodiumError) for exception in mine)
    drawn = errors.__doc__ or ""
    assert [exception.__name__ for exception in mine if exception.__name__ not in drawn] == []


def test_an_invalid_request_says_why() -> None:
    error = InvalidRequestError.because("params.seed: is a text; pass a number", stage="talker")
    assert str(error) == "params.seed: is a text; pass a number"
    assert (error.status, error.stage, error.record.scope) == (400, "talker", Scope.REQUEST)


@pytest.mark.rule("ORCH-INV-300")
def test_a_configuration_error_lists_every_fault() -> None:
    one = Fault("stages.a", "is unknown", "remove it", line=3)
    other = Fault("limits", "is negative", "make it positive")
    error = ConfigurationError("voice.yaml", [one, other])
    assert error.faults == (one, other)
    assert str(error) == (
        "voice.yaml: 2 faults\n  line 3: stages.a: is unknown; remove it\n  limits: is negative; make it positive"
    )
    assert str(ConfigurationError("x", [other])).startswith("x: 1 fault\n")


@pytest.mark.rule("ORCH-INV-301")
def test_a_start_error_names_its_stage() -> None:
    error = StartError("talker", "out of memory")
    assert error.stage == "talker"
    assert str(error) == "stage 'talker' did not start: out of memory"


def test_only_a_bug_is_an_internal_error() -> None:
    assert not issubclass(InternalError, RequestError)
