"""Who is outside of the core in an explored world, and what each can do in a state: replicas, callers, operators, time.

Each is plain data with one method. A new kind of event gets an actor here, and what it means in `podium.testing.model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from podium.core.events import (
    AbortRequested,
    AckLevel,
    CallReturned,
    ControlRequested,
    Event,
    Finish,
    FinishReason,
    InputAppended,
    InputRejected,
    JobOutput,
    ReplicaDrained,
    ReplicaJoined,
    ReplicaLost,
    RequestCancelled,
    RequestSubmitted,
    ShutdownRequested,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.identity import MAIN, JobKey, ReplicaKey
from podium.core.lifecycle import ReplicaState
from podium.core.operations import Operation
from podium.errors import ErrorKind, ErrorRecord, Scope
from podium.testing.explorer.canonical import Chunk
from podium.testing.explorer.outside import State, Told
from podium.testing.model_records import JobModel

PARTIAL, LATE = -1, -2
"""Numbers of payloads that are no chunks: what a stop hands over, and what comes too late."""

_FAILED = ErrorRecord(kind=ErrorKind.STAGE_FAILED, scope=Scope.REQUEST, message="the stage failed")
_REJECTED = ErrorRecord(kind=ErrorKind.PROCESSOR_FAILED, scope=Scope.REQUEST, message="the processor raised")
_STOP_FAILED = ErrorRecord(kind=ErrorKind.STOP_UNCONFIRMED, scope=Scope.REQUEST, message="the stop failed")
_CALL_FAILED = ErrorRecord(kind=ErrorKind.STAGE_FAILED, scope=Scope.REPLICA, message="the call failed")
_LOST = ErrorRecord(kind=ErrorKind.REPLICA_LOST, scope=Scope.REPLICA, message="the replica died")
_STOPPED = ErrorRecord(kind=ErrorKind.ENGINE_STOPPED, scope=Scope.ENGINE, message="the engine is shut down")

_FINISHES = {reason: Finish(reason) for reason in FinishReason}


def _chunk(key: JobKey, number: int, delivery: int = 0) -> Chunk:
    return Chunk(f"{key.request}/{key.stage}/{key.sibling}", key.attempt, number, delivery)


def _output(job: JobModel, first: int, count: int, reason: FinishReason | None = None) -> StageProduced:
    payloads = tuple(_chunk(job.key, number) for number in range(first, first + count))
    finish = None if reason is None else _FINISHES[reason]
    return StageProduced(job.replica, (JobOutput(job.key, first, payloads, finish),))


def _jobs(state: State, stage: str | None) -> Iterator[JobModel]:
    for key, job in state.model.jobs.items():
        if stage is None or key.stage == stage:
            yield job


@dataclass(frozen=True, kw_only=True)
class Works:
    """The replicas of a stage make so many chunks of each job, and then finish.

    They may say that a job started, let `window` chunks overtake each other, bring the last chunk and the finish
    together, finish before all input came, or with nothing. What they made before they heard of a stop still comes,
    unless `obeys`.
    """

    stage: str
    chunks: int = 1
    tells_start: bool = False
    window: int = 1
    joins_last: bool = False
    finishes_early: bool = False
    finishes_empty: bool = False
    obeys: bool = False
    reasons: tuple[FinishReason, ...] = (FinishReason.STOP,)
    times: int | None = None

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """What any of its jobs can say next."""
        for job in _jobs(state, self.stage):
            told = state.told[job.key]
            if not (told.has_ended and told.chunks == (1 << self.chunks) - 1) and not (
                self.obeys and job.is_asked_to_stop
            ):
                if self.tells_start and not told.has_started:
                    yield StageStarted(job.replica, job.key)
                yield from self._outputs(state, job, told)

    def _outputs(self, state: State, job: JobModel, told: Told) -> Iterator[Event]:
        made = told.chunks
        following = (~made & (made + 1)).bit_length() - 1
        may_finish = not told.has_ended and (self.finishes_early or self._has_all_input(state, job))
        for number in range(following, min(following + self.window, self.chunks)):
            if not made >> number & 1:
                yield _output(job, number, 1)
                if self.joins_last and may_finish and number == following == self.chunks - 1:
                    yield from (_output(job, number, 1, reason) for reason in self.reasons)
        if may_finish and (following == self.chunks or self.window > 1):
            yield from (_output(job, self.chunks, 0, reason) for reason in self.reasons)
        if may_finish and self.finishes_empty and made == 0:
            yield _output(job, 0, 0, FinishReason.STOP)

    def _has_all_input(self, state: State, job: JobModel) -> bool:
        if job.is_detached:
            return True
        stage = state.model.stages[self.stage]
        if not stage.sources:
            return not job.ticket.is_input_open
        roles = (MAIN, *job.ticket.roles) if stage.joins else (MAIN,)
        return all((source.stage, role) in job.ended for source in stage.sources for role in roles)


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The replicas of a stage deliver the first chunk of a job a second time."""

    stage: str
    times: int | None = 1

    def options(self, state: State, used: int) -> Iterator[Event]:
        """A repetition for each job that has told it."""
        for job in _jobs(state, self.stage):
            if state.told[job.key].chunks & 1:
                yield StageProduced(job.replica, (JobOutput(job.key, 0, (_chunk(job.key, 0, used + 1),)),))


@dataclass(frozen=True, kw_only=True)
class SpeaksLate:
    """Replicas say something of jobs that are over, in a world that keeps former jobs."""

    times: int | None = 1

    def options(self, state: State, used: int) -> Iterator[Event]:
        """For each former job: a last chunk, that it stopped, and that it failed."""
        for key, replica in state.former.items():
            chunk = _chunk(key, LATE, used)
            yield StageProduced(replica, (JobOutput(key, 0, (chunk,), _FINISHES[FinishReason.STOP]),))
            yield StageStopped(replica, key, chunk)
            yield StageFailed(replica, key, _FAILED)


@dataclass(frozen=True, kw_only=True)
class Stops:
    """Replicas confirm stops, and hand over what was made, if the stage does that."""

    stage: str | None = None
    hands_over: bool = True
    times: int | None = None

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """A confirmation for each job that is asked to stop."""
        for job in _jobs(state, self.stage):
            if job.is_asked_to_stop:
                yield StageStopped(job.replica, job.key, _chunk(job.key, PARTIAL) if self.hands_over else None)


@dataclass(frozen=True, kw_only=True)
class FailsToStop:
    """Replicas say that they could not stop a job."""

    stage: str | None = None
    times: int | None = 1

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """A failure for each job that is asked to stop."""
        for job in _jobs(state, self.stage):
            if job.is_asked_to_stop:
                yield StopFailed(job.replica, job.key, _STOP_FAILED)


@dataclass(frozen=True, kw_only=True)
class Fails:
    """Jobs fail at their replicas; with `rejects` it is their input that could not be given to them."""

    stage: str | None = None
    rejects: bool = False
    times: int | None = 1

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """One failure for each job."""
        for job in _jobs(state, self.stage):
            if self.rejects:
                yield InputRejected(job.replica, job.key, _REJECTED)
            else:
                yield StageFailed(job.replica, job.key, _FAILED)


@dataclass(frozen=True, kw_only=True)
class LosesReplicas:
    """Replicas of a stage die; with `drains` they are drained instead."""

    stage: str
    drains: bool = False
    times: int | None = 1

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """One loss for each replica that is there."""
        for key, stands in state.model.replicas.items():
            if key.stage == self.stage and stands is not ReplicaState.GONE:
                if not self.drains:
                    yield ReplicaLost(key, _LOST)
                elif stands is ReplicaState.LIVE:
                    yield ReplicaDrained(key)


@dataclass(frozen=True, kw_only=True)
class ReplicasRejoin:
    """A replica that is gone comes back in its slot, under the next generation."""

    stage: str
    times: int | None = 1

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """A replacement for each slot whose newest replica is gone."""
        newest: dict[int, ReplicaKey] = {}
        for key in state.model.replicas:
            if key.stage == self.stage and key.generation >= newest.get(key.slot, key).generation:
                newest[key.slot] = key
        for key in newest.values():
            if state.model.replicas[key] is ReplicaState.GONE:
                yield ReplicaJoined(key._replace(generation=key.generation + 1))


@dataclass(frozen=True, kw_only=True)
class Submits:
    """A caller submits one request, once. `ticket` is the world's own number for it; `deadline_s` counts from then.

    It may want several samples, and have companions of some roles, for a stage that joins them.
    """

    ticket: int
    request_id: str
    outputs: tuple[str, ...] | None = None
    priority: int = 0
    deadline_s: float | None = None
    input_open: bool = False
    samples: int = 1
    companions: tuple[str, ...] = ()
    group: str | None = None
    times: int | None = 1

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """The submission."""
        yield RequestSubmitted(
            ticket=self.ticket,
            request_id=self.request_id,
            prompt=Chunk(f"prompt {self.ticket}", 0, 0),
            outputs=self.outputs,
            priority=self.priority,
            deadline=None if self.deadline_s is None else state.now + self.deadline_s,
            input_open=self.input_open,
            samples=self.samples,
            companions={role: Chunk(f"{role} {self.ticket}", 0, 0) for role in self.companions},
            group=self.group,
        )


@dataclass(frozen=True, kw_only=True)
class Appends:
    """A caller continues an open input with `times` chunks; any of them, or none after them, can be the last."""

    ticket: int
    times: int | None = 1

    def options(self, state: State, used: int) -> Iterator[Event]:
        """One more chunk, with and without the end, or the end alone."""
        ticket = state.model.tickets.get(self.ticket)
        if ticket is not None and ticket.is_input_open:
            chunks = (Chunk(f"input {self.ticket}", 0, used),)
            for payloads, last in ((chunks, False), (chunks, True), ((), True)):
                yield InputAppended(self.ticket, ticket.event.request_id, payloads, last)


@dataclass(frozen=True, kw_only=True)
class Aborts:
    """A caller aborts requests, or samples of them, by ids or groups, at any time; with None for ids, all of them.

    `call` is the number of its first abort.
    """

    request_ids: tuple[str, ...] | None
    samples: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    call: int = 1
    level: AckLevel = AckLevel.STOPPED
    timeout_s: float = 100.0
    times: int | None = 1

    def options(self, state: State, used: int) -> Iterator[Event]:
        """The abort."""
        due = state.now + self.timeout_s
        yield AbortRequested(self.call + used, self.request_ids, self.level, due, self.samples, self.groups)


@dataclass(frozen=True, kw_only=True)
class GoesAway:
    """The client of a request goes away, at any time."""

    ticket: int
    request_id: str
    times: int | None = 1

    def options(self, _state: State, _used: int) -> Iterator[Event]:
        """The cancellation."""
        yield RequestCancelled(self.ticket, self.request_id)


@dataclass(frozen=True, kw_only=True)
class Controls:
    """An operator wants something of the engine, at any time. `call` is the number of its first call."""

    operation: Operation
    stages: tuple[str, ...]
    call: int
    timeout_s: float = 100.0
    times: int | None = 1

    def options(self, state: State, used: int) -> Iterator[Event]:
        """The control call."""
        yield ControlRequested(self.call + used, self.operation, self.stages, state.now + self.timeout_s)


@dataclass(frozen=True, kw_only=True)
class AnswersCalls:
    """Replicas answer what they are called for; with `fails` they answer with an error, and so often."""

    fails: bool = False
    stage: str | None = None
    times: int | None = None

    def options(self, state: State, _used: int) -> Iterator[Event]:
        """An answer to each call that waits for one."""
        for call in state.model.control.calls.values():
            for number, sent in call.pending.items():
                if self.stage is None or sent.replica.stage == self.stage:
                    yield CallReturned(sent.replica, number, error=_CALL_FAILED if self.fails else None)


@dataclass(frozen=True, kw_only=True)
class ShutsDown:
    """The engine goes down, at any time."""

    times: int | None = 1

    def options(self, _state: State, _used: int) -> Iterator[Event]:
        """The shutdown."""
        yield ShutdownRequested(_STOPPED)


@dataclass(frozen=True, kw_only=True)
class TimePasses:
    """Nothing happens until the next deadline; with `seconds`, for so long, and no deadline comes meanwhile."""

    seconds: float | None = None
    times: int | None = None

    def options(self, state: State, _used: int) -> Iterator[float]:
        """The time at which it is over."""
        due = state.core.next_deadline()
        if due is not None:
            if self.seconds is None:
                yield due
            elif state.now + self.seconds < due:
                yield state.now + self.seconds
