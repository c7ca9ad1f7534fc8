"""What to do: the closed union of everything the core can ask of the shell.

Effects are imperatives and plain data. The shell performs them in order; none of them returns anything, what comes of
them arrives as an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from podium.core.events import Finish, FinishReason
from podium.core.identity import MAIN, JobKey, Payload, ReplicaKey
from podium.errors import ErrorRecord


class SourceInput(msgspec.Struct, frozen=True):
    """What a consumer gets of one source. `sequence` numbers the first of `payloads`; `finish` is set once it ended.

    `role` tells whose output it is: that of the consumer's own sibling, or of one of its companions.
    """

    source: str
    sequence: int
    payloads: tuple[Payload, ...]
    finish: FinishReason | None = None
    role: str = MAIN


class StartJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Start a job on a replica with the input that is there. With `input_open` more comes by FeedJob and EndInput."""

    replica: ReplicaKey
    job: JobKey
    prompt: Payload
    params: Payload
    inputs: tuple[SourceInput, ...]
    input_open: bool
    priority: int
    deadline: float | None


class FeedJob(msgspec.Struct, frozen=True, tag=True):
    """Give a started job more of one source, exactly once and in order."""

    replica: ReplicaKey
    job: JobKey
    source: str
    sequence: int
    payloads: tuple[Payload, ...]


class EndInput(msgspec.Struct, frozen=True, tag=True):
    """Tell a started job that one source has ended."""

    replica: ReplicaKey
    job: JobKey
    source: str
    reason: FinishReason


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """Stop a job and confirm it, with what it made so far. Repeating it is harmless."""

    replica: ReplicaKey
    job: JobKey


class CallReplica(msgspec.Struct, frozen=True, tag=True):
    """Call a method of a replica's backend; the answer comes as CallReturned. Calls to one replica are numbered, once
    each, by `call`; a later one does not wait for an earlier one.
    """

    replica: ReplicaKey
    call: int
    method: str
    arguments: Mapping[str, Payload] = {}


class CloseReplica(msgspec.Struct, frozen=True, tag=True):
    """Close a replica that is lost, stuck or drained; elsewhere, and with a limit."""

    replica: ReplicaKey
    error: ErrorRecord | None = None


class StageTimings(msgspec.Struct, frozen=True):
    """When one job passed its stations, on the core's clock in seconds; None for those that it never reached."""

    submitted_at: float
    queued_at: float | None = None
    started_at: float | None = None
    first_output_at: float | None = None
    finished_at: float | None = None


class EmitOutput(msgspec.Struct, frozen=True, tag=True):
    """Deliver output of a final stage. `sequence` numbers the first of `payloads`; a `finish` is an item of its own
    that takes the next number. `partial` is everything an aborted job made; it comes with the finish only. `index` is
    the sample's; the numbers run through all samples of the request. `weights_version` names the weights that made the
    output; 0 are those that a replica starts with.
    """

    ticket: int
    stage: str
    sequence: int
    payloads: tuple[Payload, ...]
    at: float
    index: int = 0
    weights_version: int = 0
    finish: Finish | None = None
    partial: Payload = None
    timings: StageTimings | None = None
    request_finished: bool = False


class Outcome(StrEnum):
    """The three terminals of a request."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    FAILED = "failed"


class EndRequest(msgspec.Struct, frozen=True, tag=True):
    """The one terminal of an accepted request. `timings` has a row for each stage that the request planned; of several
    samples they are those of the first.
    """

    ticket: int
    request_id: str
    outcome: Outcome
    at: float
    error: ErrorRecord | None = None
    timings: dict[str, StageTimings] = {}


class RefuseRequest(msgspec.Struct, frozen=True, tag=True):
    """A request was not accepted; nothing of it is kept."""

    ticket: int
    request_id: str
    error: ErrorRecord


class AbortStatus(StrEnum):
    """What happened to one id of an abort."""

    ABORTED = "aborted"
    ACCEPTED = "accepted"
    ALREADY_ENDED = "already_ended"
    UNKNOWN = "unknown"
    UNCONFIRMED = "unconfirmed"
    FAILED = "failed"


class AbortRecord(msgspec.Struct, frozen=True):
    """The answer for one id.

    `partials` has what each final stage made, where a stop handed it over; a request with several samples has them in
    `samples`, by index. `stages` are those that did not confirm.
    """

    request_id: str
    status: AbortStatus
    partials: dict[str, Payload] = {}
    stages: tuple[str, ...] = ()
    error: ErrorRecord | None = None
    samples: dict[int, dict[str, Payload]] = {}


class ReplyAbort(msgspec.Struct, frozen=True, tag=True):
    """Answer one abort call, once."""

    call: int
    records: tuple[AbortRecord, ...]


class ControlRecord(msgspec.Struct, frozen=True):
    """The answer of one replica (its slot) to a control call; `replica` is None where the stage has none."""

    stage: str
    replica: int | None
    ok: bool
    value: Payload = None
    error: ErrorRecord | None = None


class ReplyControl(msgspec.Struct, frozen=True, tag=True):
    """Answer one control call, once. `error` is set unless everything succeeded; the records are there either way."""

    call: int
    records: tuple[ControlRecord, ...]
    error: ErrorRecord | None = None


class ReleasePayloads(msgspec.Struct, frozen=True, tag=True):
    """Free payloads that nobody will get."""

    payloads: tuple[Payload, ...]


Effect: TypeAlias = (
    EmitOutput
    | StartJob
    | FeedJob
    | EndInput
    | StopJob
    | EndRequest
    | RefuseRequest
    | ReplyAbort
    | CallReplica
    | ReplyControl
    | CloseReplica
    | ReleasePayloads
)
