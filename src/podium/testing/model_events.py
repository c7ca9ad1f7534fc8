"""What the model of the core knows, and what each event means for it. It is told events and effects, nothing else.

Nothing is judged here: that is `model.py`. What is over is forgotten, so that models that expect the same are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from podium.core.admission import EngineLimits
from podium.core.effects import (
    AbortStatus,
    Outcome,
)
from podium.core.events import (
    AbortRequested,
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
    ReplicaReported,
    RequestCancelled,
    RequestSubmitted,
    ShutdownRequested,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.graph import Stage
from podium.core.identity import MAIN, JobKey, Payload, ReplicaKey
from podium.core.lifecycle import ReplicaState
from podium.core.operations import Pause, PauseMode, Sleep
from podium.core.statistics import Statistics
from podium.errors import Category, ErrorRecord
from podium.testing.model_control import ControlWatch
from podium.testing.model_records import CallModel, JobModel, Spot, TicketModel
from podium.testing.model_ways import WaysModel


class EventModel(WaysModel):
    """The outside of one core: requests, jobs at replicas, replicas, abort calls, the gate, and every payload."""

    def __init__(self, stages: Mapping[str, Stage], limits: EngineLimits) -> None:
        super().__init__(stages)
        self.limits = limits
        self.outputs = {stage.output: name for name, stage in stages.items() if stage.output is not None}
        self.tickets: dict[int, TicketModel] = {}
        self.jobs: dict[JobKey, JobModel] = {}
        self.replicas: dict[ReplicaKey, ReplicaState] = {}
        self.returning: dict[tuple[str, int], ReplicaKey] = {}
        self.calls: dict[int, CallModel] = {}
        self.control = ControlWatch(stages)
        self.newest_attempt = 0
        self.payloads: dict[Payload, int] = {}
        """Everything that was made for a request that is not over, with its ticket; 0 for what belongs to none."""
        self.used: set[Payload] = set()
        self.released: set[Payload] = set()
        self.shared: set[Payload] = set()
        self.statistics: Statistics | None = None
        self._must_release: list[Payload] = []
        self._may_end: set[int] | None = None
        self._gave_up_now: set[tuple[int, int]] = set()

    # Questions

    def live(self, request_id: str) -> TicketModel | None:
        """The ticket that has the id now."""
        open_ones = [one for one in self.tickets.values() if one.is_open and one.event.request_id == request_id]
        assert len(open_ones) <= 1, f"{request_id} is live twice"
        return open_ones[0] if open_ones else None

    def open_tickets(self) -> list[TicketModel]:
        """The requests that have not ended."""
        return [ticket for ticket in self.tickets.values() if ticket.is_open]

    def jobs_at(self, replica: ReplicaKey) -> list[JobModel]:
        """The jobs for which the replica holds a credit."""
        return [job for job in self.jobs.values() if job.replica == replica and not job.is_over]

    def live_replicas(self, stage: str) -> list[ReplicaKey]:
        """The replicas that take new work."""
        live = [key for key, state in self.replicas.items() if key.stage == stage and state is ReplicaState.LIVE]
        return [key for key in live if self.control.takes_work(key)]

    def is_served(self, stage: str) -> bool:
        """Whether a replica takes new work, or one is to come that takes the place of another."""
        return bool(self.live_replicas(stage)) or any(key.stage == stage for key in self.returning.values())

    # What events mean

    def _tickets_touched_by(self, event: Event) -> set[int]:
        """Whose end the event can be a reason for."""
        match event:
            case RequestSubmitted() | StageStarted() | CallReturned() | ReplicaReported():
                return set()
            case StageProduced():
                found = [self.jobs[output.job] for output in event.outputs if output.job in self.jobs]
                return {job.ticket.event.ticket for job in found}
            case StageStopped() | StopFailed() | StageFailed() | InputRejected():
                return {self.jobs[event.job].ticket.event.ticket} if event.job in self.jobs else set()
            case InputAppended() | RequestCancelled():
                return {event.ticket}
            case AbortRequested():
                return {one.event.ticket for name in self._ids(event) if (one := self.live(name)) is not None}
            case ReplicaJoined() | ReplicaDrained() | ReplicaLost():
                return {one.event.ticket for one in self.open_tickets() if event.replica.stage in one.needed}
            case ControlRequested():
                return {one.event.ticket for one in self._aborted_by(event)}
            case ShutdownRequested():
                return {one.event.ticket for one in self.open_tickets()}
            case _:
                assert_never(event)

    def _take(self, event: Event) -> str | None:  # noqa: C901, PLR0912 - one row for each kind of event
        """Note what happened; returns why a submission has to be refused, if it has."""
        match event:
            case RequestSubmitted():
                return self._take_submission(event)
            case InputAppended():
                self._take_input(event)
            case AbortRequested():
                self._take_abort(event)
            case RequestCancelled():
                ticket = self.tickets.get(event.ticket)
                if ticket is not None and ticket.is_open and not ticket.is_aborting:
                    ticket.must_end = Outcome.ABORTED
            case StageProduced():
                for output in event.outputs:
                    self._take_output(event.replica, output)
            case StageStopped():
                self._take_stop(event)
            case StageFailed():
                job = self._job_at(event.replica, event.job)
                if job is not None:
                    self._take_failure(job, event.error)
            case ReplicaJoined():
                self._take_join(event.replica)
            case ReplicaDrained():
                if self.replicas.get(event.replica) is ReplicaState.LIVE:
                    self.replicas[event.replica] = ReplicaState.DRAINING
                    if event.successor is not None:
                        self.returning[event.replica[:2]] = event.successor
            case ControlRequested():
                for ticket in self._aborted_by(event):
                    ticket.abort()
                self.control.take_request(event)
            case CallReturned():
                call = self.control.take_return(event)
                if call is not None:
                    self._know(event.value, -call)
                else:
                    self._know_and_expect_back(() if event.value is None else (event.value,))
            case ShutdownRequested():
                self.control.is_shut = True
                for ticket in self.open_tickets():
                    ticket.must_end = Outcome.FAILED
            case ReplicaLost():
                if self.returning.get(event.replica[:2]) == event.replica:
                    del self.returning[event.replica[:2]]
            case StageStarted() | StopFailed() | InputRejected() | ReplicaReported():
                pass
            case _:
                assert_never(event)
        return None

    def _take_submission(self, event: RequestSubmitted) -> str | None:
        refusal = self._reason_to_refuse(event)
        self._know(event.prompt, event.ticket if refusal is None else 0)
        ticket = TicketModel(event, frozenset(), (), is_open=False)
        joined: frozenset[str] = frozenset()
        if refusal is None:
            wanted = self.outputs if event.outputs is None else event.outputs
            needed = self._needed(event.outputs)
            joined = self._joined(needed)
            ticket = TicketModel(
                event,
                frozenset(self.outputs[name] for name in wanted),
                needed,
                joined,
                tuple(event.companions) if joined else (),
            )
            ticket.is_input_open = event.input_open
            ticket.is_admitted = all(self.control.is_open(name) for name in ticket.needed)
        if joined:
            for prompt in event.companions.values():
                self._know(prompt, event.ticket)
        else:
            self._know_and_expect_back(tuple(event.companions.values()))
        self.tickets[event.ticket] = ticket
        return refusal

    def _joined(self, needed: tuple[str, ...]) -> frozenset[str]:
        """The stages that run for companions too: whatever is upstream of a stage that joins."""
        joined: set[str] = set()
        for name in reversed(needed):
            if self.stages[name].joins or name in joined:
                joined.update(source.stage for source in self.stages[name].sources)
        return frozenset(joined)

    def _needed(self, outputs: tuple[str, ...] | None) -> tuple[str, ...]:
        needed = {self.outputs[name] for name in (self.outputs if outputs is None else outputs)}
        for name in reversed(list(self.stages)):
            if name in needed:
                needed.update(source.stage for source in self.stages[name].sources)
        return tuple(name for name in self.stages if name in needed)

    def _reason_to_refuse(self, event: RequestSubmitted) -> str | None:
        if event.outputs is not None and (not event.outputs or set(event.outputs) - set(self.outputs)):
            return "bad outputs"
        if event.samples < 1 or event.samples * (1 + len(event.companions)) > self.limits.max_siblings:
            return "bad samples"
        if event.companions and not any(stage.joins for stage in self.stages.values()):
            return "bad companions"
        if self.live(event.request_id) is not None:
            return "the id is live"
        if len(self.open_tickets()) >= self.limits.max_requests:
            return "max_requests"
        for name in self._needed(event.outputs):
            if self.control.is_shut or self.control.refuses(name):
                return f"the gate of {name}"
            if self.is_certain(name) and not self.is_served(name):
                return f"no replica of {name}"
            if self.statistics and not self._has_room(event, name, self.statistics.stages[name].queued):
                return f"max_queued of {name}"
        return None

    def _has_room(self, event: RequestSubmitted, name: str, queued: int) -> bool:
        """Whether all that a request needs of a stage finds a credit, or may wait."""
        limits = self.stages[name].limits
        is_joined = name in self._joined(self._needed(event.outputs))
        jobs = event.samples * (1 + (len(event.companions) if is_joined else 0))
        if jobs == 1:
            return queued < limits.max_queued
        free = sum(limits.max_inflight - len(self.jobs_at(replica)) for replica in self.live_replicas(name))
        return queued + max(0, jobs - free) <= limits.max_queued

    def _take_input(self, event: InputAppended) -> None:
        ticket = self.tickets.get(event.ticket)
        if ticket is None or not ticket.is_open or ticket.is_aborting or not ticket.is_input_open:
            self._know_and_expect_back(event.payloads)
            return
        for payload in event.payloads:
            self._know(payload, event.ticket)
        ticket.appended += event.payloads
        if sum(not self.stages[name].sources for name in ticket.needed) * ticket.event.samples > 1:
            self.shared.update(event.payloads)
        if event.last:
            ticket.is_input_open = False

    def _ids(self, event: AbortRequested) -> list[str]:
        """Which requests an abort is about."""
        live = [ticket.event for ticket in self.open_tickets()]
        if event.request_ids is None:
            return [one.request_id for one in live]
        groups = [one.request_id for one in live if one.group in event.groups]
        return list(dict.fromkeys((*event.request_ids, *groups)))

    def _take_abort(self, event: AbortRequested) -> None:
        ids = self._ids(event)
        tickets = {name: ticket for name in ids if (ticket := self.live(name)) is not None}
        call = self.calls[event.call] = CallModel(event, ids, tickets, {})
        for name, ticket in list(tickets.items()):
            if not event.samples:
                ticket.abort()
            elif any(index not in ticket.samples for index in event.samples):
                call.expected[name] = AbortStatus.UNKNOWN
                del tickets[name]
            elif all(ticket.has_ended(index) for index in event.samples):
                call.expected[name] = AbortStatus.ALREADY_ENDED
                del tickets[name]
            else:
                ticket.abort_samples(event.samples)

    def _take_output(self, replica: ReplicaKey, output: JobOutput) -> None:
        job = self._job_at(replica, output.job)
        if job is None or job.is_detached:
            self._know_and_expect_back(output.payloads)
            if job is not None and output.finish is not None and output.finish.reason is not FinishReason.ABORT:
                job.is_over = True
            return
        for number, payload in enumerate(output.payloads, output.sequence):
            is_past = job.early_finish is not None and number >= job.early_finish[0]
            if number < job.in_order or number in job.chunks or is_past:
                self._know_and_expect_back([payload])
                continue
            self._know(payload, job.ticket.event.ticket)
            job.chunks[number] = payload
            if self._readers(job) > 1:
                self.shared.add(payload)
        while job.in_order in job.chunks:
            job.in_order += 1
        if output.finish is not None and job.early_finish is None:
            job.early_finish = (output.sequence + len(output.payloads), output.finish)
        if job.early_finish is not None and job.early_finish[0] <= job.in_order:
            self._take_finish(job, job.early_finish[1])

    def _readers(self, job: JobModel) -> int:
        ticket, name = job.ticket, job.key.stage
        consumers = [other for other in ticket.needed if name in {edge.stage for edge in self.stages[other].sources}]
        if job.role == MAIN:
            return len(consumers) + (name in ticket.finals)
        return sum(other in ticket.joined or self.stages[other].joins for other in consumers)

    def _take_finish(self, job: JobModel, finish: Finish) -> None:
        if finish.reason is FinishReason.ABORT and job.is_asked_to_stop:
            return
        job.is_over = True
        match finish.reason:
            case FinishReason.STOP | FinishReason.LENGTH:
                labels = self.stages[job.key.stage].labels
                is_bound = labels and job.role == MAIN and job.sample not in job.ticket.aborting
                if is_bound and finish.label not in labels:
                    self._leave_without_end(job)
                else:
                    job.finish = finish
            case FinishReason.ABORT:
                job.ticket.abort_samples([job.sample])
                self._gave_up_now.add((job.ticket.event.ticket, job.sample))
            case FinishReason.ERROR:
                self._leave_without_end(job)
            case _:
                assert_never(finish.reason)

    def _take_stop(self, event: StageStopped) -> None:
        job = self._job_at(event.replica, event.job)
        partials = () if event.partial is None else (event.partial,)
        if job is None or not job.is_asked_to_stop:
            self._know_and_expect_back(partials)
            return
        job.is_over = True
        if job.is_detached or job.key.stage not in job.ticket.finals or job.role != MAIN:
            self._know_and_expect_back(partials)
        else:
            self._know(event.partial, job.ticket.event.ticket)
            job.partial = event.partial

    def _take_failure(self, job: JobModel, error: ErrorRecord) -> None:
        """A job that failed runs once more where its stage may, as long as nobody saw anything of it."""
        may_repeat = self.stages[job.key.stage].rerun and not job.is_repeated and job.in_order == 0
        is_wanted = not (job.is_detached or job.is_asked_to_stop or job.ticket.is_aborting)
        if may_repeat and is_wanted and error.category is Category.SERVER:
            job.is_over = job.is_lost = True
        else:
            self._leave_without_end(job)

    def _leave_without_end(self, job: JobModel) -> None:
        job.is_over = True
        if not job.is_detached and job.sample not in job.ticket.aborting:
            job.ticket.must_end = Outcome.FAILED

    def _take_join(self, replica: ReplicaKey) -> None:
        known = [key for key in self.replicas if key[:2] == replica[:2]]
        is_slot_free = all(self.replicas[key] is ReplicaState.GONE for key in known)
        if is_slot_free and all(key.generation < replica.generation for key in known):
            self.replicas[replica] = ReplicaState.LIVE
            self.returning.pop(replica[:2], None)
            self.control.take_join(replica)

    def _aborted_by(self, event: ControlRequested) -> list[TicketModel]:
        """The admitted requests that still need a stage that is paused with `abort`."""
        operation = event.operation
        if not (isinstance(operation, Pause | Sleep) and operation.mode is PauseMode.ABORT):
            return []
        if not self.control.is_accepted(event):
            return []
        return [
            ticket
            for ticket in self.open_tickets()
            if ticket.is_admitted and any(self._needs_still(ticket, name) for name in event.stages)
        ]

    def _needs_still(self, ticket: TicketModel, name: str) -> bool:
        return any(
            self._is_still_needed(ticket, spot)
            for index in ticket.samples
            for spot in ticket.spots(index)
            if spot[0] == name and not ticket.has_ended(index)
        )

    def _is_still_needed(self, ticket: TicketModel, spot: Spot) -> bool:
        job = ticket.jobs.get(spot)
        if job is not None and not job.is_over:
            return not job.is_detached
        return ticket.siblings[spot[1]][0] not in ticket.aborting and self._is_ahead(ticket, spot)

    # Small things

    def _job_at(self, replica: ReplicaKey, key: JobKey) -> JobModel | None:
        job = self.jobs.get(key)
        return job if job is not None and job.replica == replica and not job.is_over else None

    def _working(self, key: JobKey, replica: ReplicaKey) -> JobModel:
        job = self.jobs.get(key)
        assert job is not None, f"{key} was fed after its end"
        assert job.replica == replica, "fed at another replica than it started on"
        assert job.ticket.is_open, f"{key} was fed after the end of its request"
        # chunks may have come with the finish `abort`
        is_before_abort = (job.ticket.event.ticket, job.sample) in self._gave_up_now
        assert is_before_abort or job.sample not in job.ticket.aborting, f"{key} was fed during an abort"
        assert not job.is_over, f"{key} was fed after its end"
        return job

    def _know(self, payload: Payload, ticket: int) -> None:
        if payload is not None:
            assert payload not in self.payloads, f"a payload was made twice: {payload}"
            self.payloads[payload] = ticket

    def _know_and_expect_back(self, payloads: Sequence[Payload]) -> None:
        """Payloads that are for nobody: they are to be released in this very step."""
        for payload in payloads:
            self._know(payload, 0)
        self._must_release += payloads

    def _forget(self) -> None:
        """Forget what can play no part any more. What is over must have been used or released by now."""
        self.jobs = {key: job for key, job in self.jobs.items() if not job.is_over}
        self.calls = {number: call for number, call in self.calls.items() if not call.is_answered}
        awaited = {ticket.event.ticket for call in self.calls.values() for ticket in call.tickets.values()}
        ended = [number for number, ticket in self.tickets.items() if not ticket.is_open]
        for number in ended:
            if number not in awaited:
                del self.tickets[number]
        for job in self.jobs.values():
            if not job.ticket.is_open and job.ticket.event.ticket not in awaited:
                job.let_go()
                job.ticket.jobs.clear()
        answered = {-call for call in self.control.answered}
        self.control.answered.clear()
        if ended or answered or self._must_release:
            self._forget_payloads({0, *ended, *answered})

    def _forget_payloads(self, owners: set[int]) -> None:
        over = [payload for payload, ticket in self.payloads.items() if ticket in owners]
        lost = [one for one in over if not (one in self.used or one in self.released or one in self.shared)]
        assert lost == [], f"payloads that nobody got and nobody released: {lost}"
        for payload in over:
            del self.payloads[payload]
        for table in (self.used, self.released, self.shared):
            table.difference_update(over)

    def _use(self, payload: Payload) -> None:
        if payload is not None:
            assert payload in self.payloads, f"used though nobody made it, or after the end of its request: {payload}"
            assert payload not in self.released, f"used after its release: {payload}"
            self.used.add(payload)


def same(some: Sequence[Payload], others: Sequence[Payload]) -> bool:
    """Whether both have the very same payloads in the same order."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
