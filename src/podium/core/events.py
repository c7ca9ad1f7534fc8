"""What happened: the closed union of everything the core can be told.

Events are past participles and plain data, so that a journal of them is a test. What the outside world does wrong
arrives here as data too; it is never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from podium.core.identity import JobKey, Payload, ReplicaKey
from podium.core.operations import Operation
from podium.errors import ErrorRecord


class FinishReason(StrEnum):
    """Why a stage finished a job; what it means downstream is the table `FORWARDING` in `lifecycle.py`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class AckLevel(StrEnum):
    """When an abort is answered: once the core took it, or once each stage confirmed the stop."""

    ACCEPTED = "accepted"
    STOPPED = "stopped"


class Finish(msgspec.Struct, frozen=True):
    """The end of one job's output; `usage` counts what it took, for instance tokens.

    `label` is one of the stage's labels; it says which conditional edges are taken.
    """

    reason: FinishReason
    usage: Mapping[str, int] = {}
    label: str | None = None


class JobOutput(msgspec.Struct, frozen=True):
    """A run of chunks of one job. `sequence` numbers the first of `payloads` from 0; `finish` stands after the last."""

    job: JobKey
    sequence: int
    payloads: tuple[Payload, ...] = ()
    finish: Finish | None = None


class RequestSubmitted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A caller submitted a request. `ticket` names this use of the id; `deadline` is on the core's clock.

    `outputs` None asks for every output. `params` has the parsed parameters of each stage that has any. With
    `input_open` the prompt is the beginning of a stream that `InputAppended` continues. Every one of `samples` runs
    through all stages. `companions` has the prompt of each CFG companion by its role, in the order in which they are
    joined; each sample has its own. `group` names requests that can be aborted together. Requests with the same
    `affinity` go to the same replica where a stage balances by it; it is the request's id when there is none.
    """

    ticket: int
    request_id: str
    prompt: Payload = None
    params: Mapping[str, Payload] = {}
    outputs: tuple[str, ...] | None = None
    priority: int = 0
    deadline: float | None = None
    input_open: bool = False
    samples: int = 1
    companions: Mapping[str, Payload] = {}
    group: str | None = None
    affinity: str | None = None


class InputAppended(msgspec.Struct, frozen=True, tag=True):
    """More of the prompt of a request submitted with `input_open`; `last` ends it."""

    ticket: int
    request_id: str
    payloads: tuple[Payload, ...] = ()
    last: bool = False


class AbortRequested(msgspec.Struct, frozen=True, tag=True):
    """A caller wants requests stopped, with what they made so far; `call` correlates the answer, due at `deadline`.

    It means `request_ids` (None: every live request) and every live request of `groups`. With `samples` only these
    samples of them are stopped, and the others go on.
    """

    call: int
    request_ids: tuple[str, ...] | None
    level: AckLevel
    deadline: float
    samples: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()


class RequestCancelled(msgspec.Struct, frozen=True, tag=True):
    """The client of a request went away; nobody waits for its outputs."""

    ticket: int
    request_id: str


class StageStarted(msgspec.Struct, frozen=True, tag=True):
    """A replica took up a job: it runs, and is no longer on its way."""

    replica: ReplicaKey
    job: JobKey


class StageProduced(msgspec.Struct, frozen=True, tag=True):
    """A replica delivered output of one or more jobs."""

    replica: ReplicaKey
    outputs: tuple[JobOutput, ...]


class StageStopped(msgspec.Struct, frozen=True, tag=True):
    """A replica confirmed a stop; `partial` is everything the job had generated, cumulatively, or None."""

    replica: ReplicaKey
    job: JobKey
    partial: Payload = None


class StopFailed(msgspec.Struct, frozen=True, tag=True):
    """A replica could not stop a job; nothing was forgotten there, and the stop can be repeated."""

    replica: ReplicaKey
    job: JobKey
    error: ErrorRecord


class StageFailed(msgspec.Struct, frozen=True, tag=True):
    """A job failed at its replica, which is otherwise well."""

    replica: ReplicaKey
    job: JobKey
    error: ErrorRecord


class InputRejected(msgspec.Struct, frozen=True, tag=True):
    """Something meant for a job could not be given to it (its processor raised, its outbox was full).

    The job itself may still be running, but it is of no use any more.
    """

    replica: ReplicaKey
    job: JobKey
    error: ErrorRecord


class ReplicaJoined(msgspec.Struct, frozen=True, tag=True):
    """A replica is up and takes work."""

    replica: ReplicaKey


class ReplicaDrained(msgspec.Struct, frozen=True, tag=True):
    """A replica shall take no new work; it leaves when its last job ends.

    `successor` is the life that will take its slot: until that joins, or is lost before it does, work for the stage
    waits for it.
    """

    replica: ReplicaKey
    successor: ReplicaKey | None = None


class ReplicaLost(msgspec.Struct, frozen=True, tag=True):
    """A replica is gone, with everything it had; or it was awaited as a successor, and will not come."""

    replica: ReplicaKey
    error: ErrorRecord


class ReplicaReported(msgspec.Struct, frozen=True, tag=True):
    """A replica says how loaded it is, in jobs. The loads of its `member`s are summed, the last one of each counts."""

    replica: ReplicaKey
    load: int
    member: int = 0


class ControlRequested(msgspec.Struct, frozen=True, tag=True):
    """A caller wants something of the engine itself, at `stages`; `call` correlates the answer, due at `deadline`."""

    call: int
    operation: Operation
    stages: tuple[str, ...]
    deadline: float


class CallReturned(msgspec.Struct, frozen=True, tag=True):
    """A replica answered a call, with a value or with an error."""

    replica: ReplicaKey
    call: int
    value: Payload = None
    error: ErrorRecord | None = None


class ShutdownRequested(msgspec.Struct, frozen=True, tag=True):
    """The engine goes down: admission is closed for good, and every request ends with `error`."""

    error: ErrorRecord


Event: TypeAlias = (
    StageProduced
    | StageStarted
    | RequestSubmitted
    | InputAppended
    | AbortRequested
    | RequestCancelled
    | StageStopped
    | StopFailed
    | StageFailed
    | InputRejected
    | ReplicaJoined
    | ReplicaDrained
    | ReplicaLost
    | ReplicaReported
    | ControlRequested
    | CallReturned
    | ShutdownRequested
)
