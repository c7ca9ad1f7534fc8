"""What the core may do, judged from outside: a model that is fed with events and effects only.

`Model.observe` takes one event (or the passing of time) with the effects that it had, and raises AssertionError where
they break the contract. It knows the graph, the events, the effects and the statistics; of the core's insides, nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from podium.core.effects import (
    AbortRecord,
    AbortStatus,
    CallReplica,
    CloseReplica,
    Effect,
    EmitOutput,
    EndInput,
    EndRequest,
    FeedJob,
    Outcome,
    RefuseRequest,
    ReleasePayloads,
    ReplyAbort,
    ReplyControl,
    StartJob,
    StopJob,
)
from podium.core.events import (
    AckLevel,
    Event,
    Finish,
    FinishReason,
    ReplicaLost,
    RequestSubmitted,
)
from podium.core.graph import EdgeMode
from podium.core.identity import MAIN, PROMPT, Payload, ReplicaKey
from podium.core.lifecycle import ReplicaState
from podium.core.statistics import Statistics
from podium.testing.model_events import EventModel, same
from podium.testing.model_records import CallModel, Input, JobModel, Spot, TicketModel


class Model(EventModel):
    """Follows one core from its first event on, and judges everything that it does."""

    # One step

    def observe(self, event: Event | None, effects: Sequence[Effect], now: float, statistics: Statistics) -> None:
        """Check what the core answered to `event`, or to the passing of time until `now`."""
        self._must_release = []
        self._may_end = None
        self._gave_up_now = set()
        refusal = None
        if event is not None:
            self._may_end = self._tickets_touched_by(event)
            refusal = self._take(event)
        if self.control.look(statistics):
            for ticket in self.open_tickets():
                is_open = all(self.control.is_open(name) for name in ticket.needed)
                ticket.is_admitted = ticket.is_admitted or (is_open and not ticket.is_aborting)
        for effect in effects:
            self._check(effect, event)
        assert (refusal is None) or any(isinstance(effect, RefuseRequest) for effect in effects), refusal
        self._check_promises(event, now)
        self._check_statistics(statistics)
        self.control.check(statistics, now, is_expired=event is None)
        self.statistics = statistics
        self._forget()

    def check_is_over(self, statistics: Statistics) -> None:
        """Nothing is open and nothing is left, of any table and of any payload."""
        assert self.open_tickets() == []
        assert self.calls == {}, f"aborts that were never answered: {list(self.calls)}"
        assert self.control.calls == {}, f"control calls that were never answered: {list(self.control.calls)}"
        assert statistics.is_idle, statistics
        assert self.jobs == {}, f"jobs that replicas still have: {list(self.jobs)}"
        assert self.payloads == {}, f"payloads of nobody: {list(self.payloads)}"

    # What effects may be

    def _check(self, effect: Effect, event: Event | None) -> None:  # noqa: C901 - one row for each effect
        match effect:
            case StartJob():
                self._check_start(effect)
            case FeedJob():
                self._check_feed(effect)
            case EndInput():
                self._check_end_input(effect)
            case StopJob():
                self._check_stop(effect, event)
            case EmitOutput():
                self._check_emit(effect)
            case EndRequest():
                self._check_end(effect)
            case RefuseRequest():
                assert isinstance(event, RequestSubmitted)
                assert (effect.ticket, effect.error.request_id) == (event.ticket, event.request_id)
                assert self.tickets[effect.ticket].is_open is False, "an accepted request was refused"
                self._must_release += () if event.prompt is None else (event.prompt,)
            case ReplyAbort():
                self._check_reply(effect)
            case CallReplica():
                self.control.check_call(effect)
            case ReplyControl():
                self.control.check_reply(effect)
                for record in effect.records:
                    self._use(record.value)
            case CloseReplica():
                self._check_close(effect, event)
            case ReleasePayloads():
                self._check_release(effect)
            case _:
                assert_never(effect)

    def _check_start(self, effect: StartJob) -> None:
        ticket = self.live(effect.job.request)
        assert ticket is not None, "a job started for a request that is over"
        stage = self.stages[effect.job.stage]
        assert stage.name in ticket.needed, "a stage was started that no requested output needs"
        assert ticket.is_admitted, "a job started in spite of the gate"
        assert self.control.may_start(stage.name), f"a job started while its stage is {self.control.barriers}"
        sample, role = ticket.siblings[effect.job.sibling]
        spot = effect.job.stage, effect.job.sibling
        assert spot in ticket.spots(sample), "a companion has no work there"
        assert sample not in ticket.aborting, "a job started for what is being aborted"
        assert not ticket.has_ended(sample), "a job started for a sample that has ended"
        assert effect.job.attempt > self.newest_attempt, "an attempt was used twice"
        self.newest_attempt = effect.job.attempt
        assert effect.replica in self.live_replicas(stage.name), "a job started on a replica that takes none"
        assert effect.replica.stage == stage.name
        assert len(self.jobs_at(effect.replica)) < stage.limits.max_inflight, "a credit was taken that was not there"
        assert not self._is_skipped(ticket, spot), "a job started for which nothing comes"
        if role != MAIN:
            self._check_leader(effect, ticket, ticket.name_of(sample))
        former = ticket.jobs.get(spot)
        if former is not None:
            assert stage.rerun, "a job ran again that may not"
            assert former.is_lost
            assert former.in_order == 0
        prompt = ticket.event.prompt if role == MAIN else ticket.event.companions[role]
        assert (effect.prompt, effect.params) == (prompt, ticket.event.params.get(stage.name))
        assert (effect.priority, effect.deadline) == (ticket.event.priority, ticket.event.deadline)
        self._use(effect.prompt)
        job = JobModel(effect.job, effect.replica, ticket, is_repeated=former is not None)
        self.jobs[effect.job] = ticket.jobs[spot] = job
        self._check_first_inputs(effect, job)

    def _check_first_inputs(self, effect: StartJob, job: JobModel) -> None:
        stage, ticket = self.stages[effect.job.stage], job.ticket
        names = list(self._inputs(ticket, job.spot))
        is_fed = ticket.event.input_open and job.role == MAIN
        assert [(one.source, one.role) for one in effect.inputs] == (names or ([(PROMPT, MAIN)] if is_fed else []))
        for one in effect.inputs:
            self._check_input(job, (one.source, one.role), one.sequence, one.payloads)
            if one.finish is not None:
                self._check_source_end(job, (one.source, one.role), one.finish)
        assert effect.input_open == any(one.finish is None for one in effect.inputs)
        if stage.joins:
            assert not effect.input_open, "a bundle was joined before all of it was there"
        if not stage.prewarm:
            for source in stage.sources:
                key = source.stage, MAIN
                has_begun = job.inputs.get(key) or self._is_left_out(ticket, job.spot, key)
                is_ready = has_begun if source.mode is EdgeMode.STREAMING else key in job.ended
                assert is_ready, f"{effect.job} started before its source '{source.stage}' was ready"

    def _check_leader(self, effect: StartJob, ticket: TicketModel, sibling: str) -> None:
        """A companion runs where its sample does, unless that replica takes no work."""
        leader = ticket.jobs.get((effect.job.stage, sibling))
        if leader is None:
            assert self._is_skipped(ticket, (effect.job.stage, sibling)), "a companion started before its sample"
        elif not leader.is_repeated and leader.replica in self.live_replicas(effect.job.stage):
            assert effect.replica == leader.replica, "a companion did not follow its sample"

    def _check_feed(self, effect: FeedJob) -> None:
        job = self._working(effect.job, effect.replica)
        assert effect.payloads, "an empty feed"
        self._check_input(job, (effect.source, MAIN), effect.sequence, effect.payloads)

    def _check_input(self, job: JobModel, source: Input, sequence: int, payloads: tuple[Payload, ...]) -> None:
        assert source not in job.ended, "fed after the end of the source"
        assert sequence == job.inputs.get(source, 0), "a consumer missed a chunk, or got one twice"
        there = self._there(job, source)[sequence : sequence + len(payloads)]
        assert same(payloads, there), f"{job.key} got {payloads} of {source} instead of {there}"
        edges = {edge.stage: edge.mode for edge in self.stages[job.key.stage].sources}
        if payloads and edges.get(source[0]) is EdgeMode.COMPLETE:
            assert self._end_for(job, source) is not None, "a complete edge passed something on before the end"
        job.inputs[source] = sequence + len(payloads)
        for payload in payloads:
            self._use(payload)

    def _check_end_input(self, effect: EndInput) -> None:
        self._check_source_end(self._working(effect.job, effect.replica), (effect.source, MAIN), effect.reason)

    def _check_source_end(self, job: JobModel, source: Input, reason: FinishReason) -> None:
        assert source not in job.ended, "a source ended twice"
        assert reason is self._end_for(job, source), "a source ended that has not"
        assert job.inputs.setdefault(source, 0) == len(self._there(job, source)), "a source ended too early"
        job.ended[source] = reason

    def _there(self, job: JobModel, source: Input) -> list[Payload]:
        """What there is for a job of one of its inputs."""
        if source[0] == PROMPT:
            return job.ticket.appended
        if self._is_left_out(job.ticket, job.spot, source):
            return []
        return self._produced(job.ticket, self._inputs(job.ticket, job.spot)[source])

    def _end_for(self, job: JobModel, source: Input) -> FinishReason | None:
        if source[0] == PROMPT:
            return None if job.ticket.is_input_open else FinishReason.STOP
        if self._is_left_out(job.ticket, job.spot, source):
            return FinishReason.STOP
        return self._end_of(job.ticket, self._inputs(job.ticket, job.spot)[source])

    def _produced(self, ticket: TicketModel, spot: Spot) -> list[Payload]:
        job = ticket.jobs.get(spot)
        return [] if job is None else job.in_sequence()

    def _end_of(self, ticket: TicketModel, spot: Spot) -> FinishReason | None:
        if self._is_skipped(ticket, spot):
            return FinishReason.STOP
        job = ticket.jobs.get(spot)
        return job.finish.reason if job is not None and job.finish is not None else None

    def _check_stop(self, effect: StopJob, event: Event | None) -> None:
        job = self.jobs.get(effect.job)
        assert job is not None, "a job was stopped that its replica no longer has"
        assert job.replica == effect.replica
        if event is None and job.is_asked_to_stop:
            job.is_given_up = True
        elif job.role != MAIN and not job.is_detached and job.sample not in job.ticket.aborting:
            job.is_dismissed = job.ticket.must_end is None and self._is_useless(job.ticket, job.spot)
        job.is_asked_to_stop = True

    def _check_emit(self, effect: EmitOutput) -> None:
        ticket = self.tickets.get(effect.ticket)
        assert ticket is not None, "an output for a request that there is not, or not any more"
        assert ticket.is_open, "an output after the end"
        assert effect.stage in ticket.finals, "an output that nobody asked for"
        assert effect.sequence == ticket.sequence, "a gap in the outputs"
        assert effect.weights_version == self.control.versions[effect.stage], "an output of other weights than it says"
        spot = effect.stage, ticket.name_of(effect.index)
        assert spot not in ticket.finishes, "an output after its stage's finish"
        ticket.sequence += len(effect.payloads) + (effect.finish is not None)
        first = ticket.emitted.get(spot, 0)
        there = self._produced(ticket, spot)[first : first + len(effect.payloads)]
        assert same(effect.payloads, there), f"{effect.payloads} was delivered instead of {there}"
        ticket.emitted[spot] = first + len(effect.payloads)
        for payload in effect.payloads:
            self._use(payload)
        if effect.finish is None:
            assert effect.payloads
            assert effect.partial is None
            assert not effect.request_finished
        else:
            self._check_finish(ticket, spot, effect, effect.finish)

    def _check_finish(self, ticket: TicketModel, spot: Spot, effect: EmitOutput, finish: Finish) -> None:
        job = ticket.jobs.get(spot)
        if finish.reason is FinishReason.ABORT:
            assert effect.index in ticket.aborting
            finals = ticket.final_spots(effect.index)
            aborted = [one for one in finals if ticket.finishes.get(one) is FinishReason.ABORT]
            assert all(finals.index(one) < finals.index(spot) for one in aborted), "not in the order of stages"
            assert effect.partial is (None if job is None or job.is_given_up else job.partial)
            self._use(effect.partial)
            ticket.partials[spot] = effect.partial
        elif job is None:
            assert self._is_skipped(ticket, spot), "a stage finished that never ran"
            assert finish.reason is FinishReason.STOP
        else:
            assert finish is job.finish
            assert ticket.emitted[spot] == job.in_order, "a stage finished before its last output was delivered"
        ticket.finishes[spot] = finish.reason
        is_last = len(ticket.finishes) == len(ticket.finals) * ticket.event.samples
        assert effect.request_finished == is_last, "request_finished is for the last finish"
        if is_last:
            is_abort = ticket.is_aborting and FinishReason.ABORT in ticket.finishes.values()
            ticket.must_end = Outcome.ABORTED if is_abort else Outcome.COMPLETED

    def _check_end(self, effect: EndRequest) -> None:
        ticket = self.tickets.get(effect.ticket)
        assert ticket is not None, "a terminal for a request that there is not, or a second one"
        assert ticket.is_open, "a second terminal"
        assert ticket.event.request_id == effect.request_id
        assert self._may_end is None or effect.ticket in self._may_end, f"{effect} has nothing to do with the event"
        assert ticket.must_end in {None, effect.outcome}, f"{ticket.must_end} was due, not {effect.outcome}"
        assert (effect.error is None) == (effect.outcome is not Outcome.FAILED)
        assert effect.error is None or effect.error.request_id == effect.request_id
        if effect.outcome is Outcome.COMPLETED:
            assert all(ticket.has_ended(index) for index in ticket.samples)
        assert tuple(effect.timings) == ticket.needed
        ticket.is_open = False
        ticket.outcome = effect.outcome

    def _check_reply(self, effect: ReplyAbort) -> None:
        call = self.calls.get(effect.call)
        assert call is not None, "an abort was answered that nobody asked for, or twice"
        assert not call.is_answered, "an abort was answered twice"
        call.is_answered = True
        assert [record.request_id for record in effect.records] == list(dict.fromkeys(call.ids))
        for record in effect.records:
            ticket = call.tickets.get(record.request_id)
            if record.request_id in call.expected:
                assert record.status is call.expected[record.request_id]
            elif ticket is None:
                assert record.status in {AbortStatus.UNKNOWN, AbortStatus.ALREADY_ENDED}
            elif call.event.level is AckLevel.ACCEPTED:
                assert record.status is AbortStatus.ACCEPTED
            elif record.status in {AbortStatus.ABORTED, AbortStatus.ALREADY_ENDED}:
                self._check_record(call, ticket, record)
            else:
                assert record.status in {AbortStatus.UNCONFIRMED, AbortStatus.FAILED}

    def _check_record(self, call: CallModel, ticket: TicketModel, record: AbortRecord) -> None:
        samples = call.samples_of(ticket)
        is_aborted = record.status is AbortStatus.ABORTED
        if call.event.samples:
            finishes = [ticket.finishes.get(spot) for index in samples for spot in ticket.final_spots(index)]
            assert is_aborted == any(finish in {None, FinishReason.ABORT} for finish in finishes)
            assert ticket.outcome is not None or None not in finishes, "a sample was aborted that has not ended"
        else:
            assert ticket.outcome is (Outcome.ABORTED if is_aborted else Outcome.COMPLETED)
        jobs = [job for job in ticket.jobs.values() if job.sample in samples]
        assert not any(job.is_given_up for job in jobs) or not is_aborted
        kept = {
            index: {
                spot[0]: partial
                for spot in ticket.final_spots(index)
                if (partial := ticket.partials.get(spot)) is not None
            }
            for index in samples
        }
        assert record.partials == (kept[0] if is_aborted and ticket.event.samples == 1 else {})
        assert record.samples == (kept if is_aborted and ticket.event.samples > 1 else {})

    def _check_close(self, effect: CloseReplica, event: Event | None) -> None:
        state = self.replicas[effect.replica]
        assert state is not ReplicaState.GONE, "a replica was closed twice"
        jobs = self.jobs_at(effect.replica)
        if event is None:
            assert any(job.is_asked_to_stop for job in jobs), "a replica was closed that is not stuck"
        elif not (isinstance(event, ReplicaLost) and event.replica == effect.replica):
            assert state is ReplicaState.DRAINING
            assert jobs == [], "a draining replica was closed too early"
        for job in jobs:
            job.is_over = job.is_lost = True
        self.replicas[effect.replica] = ReplicaState.GONE
        self.control.take_loss(effect.replica)

    def _check_release(self, effect: ReleasePayloads) -> None:
        for payload in effect.payloads:
            assert payload in self.payloads, f"released what nobody made, or a second time: {payload}"
            assert payload not in self.released, f"released twice: {payload}"
            assert payload not in self.used, f"released what was delivered or fed: {payload}"
            self.released.add(payload)

    # What has to have happened by the end of a step

    def _check_promises(self, event: Event | None, now: float) -> None:
        missing = [payload for payload in self._must_release if payload not in self.released]
        assert missing == [], f"not released: {missing}"
        if isinstance(event, ReplicaLost) and event.replica in self.replicas:
            assert self.replicas[event.replica] is ReplicaState.GONE
        for key, state in self.replicas.items():
            assert state is not ReplicaState.DRAINING or self.jobs_at(key), f"{key} has drained and was not closed"
        for call in self.calls.values():
            if not call.is_answered:
                assert call.event.level is AckLevel.STOPPED
                assert event is not None or call.event.deadline > now, "an abort was not answered in time"
                assert any(
                    ticket.is_open and not ticket.has_ended(index)
                    for ticket in call.tickets.values()
                    for index in call.samples_of(ticket)
                )
        for ticket in self.tickets.values():
            assert not ticket.is_open or ticket.must_end is None, f"{ticket.event.request_id}: {ticket.must_end} is due"
            for index in ticket.samples if ticket.is_open else ():
                if ticket.is_stopping(index):
                    jobs = [job for job in ticket.jobs.values() if job.sample == index]
                    assert any(not job.is_over and not job.is_detached for job in jobs), "nothing to wait for"
                elif not ticket.has_ended(index):
                    self._check_progress(ticket, index)
            for job in ticket.jobs.values():
                self._check_job(job)

    def _check_progress(self, ticket: TicketModel, sample: int) -> None:
        """Something is under way for each sample, and nothing is awaited that cannot come."""
        running = [job for job in ticket.jobs.values() if job.sample == sample and not job.is_over]
        assert running or self._ready(ticket, sample) or not ticket.is_admitted, (
            f"nothing is under way for {ticket.event.request_id}[{sample}]"
        )
        for spot in self._ahead(ticket, sample):
            name = spot[0]
            is_undecided = not self.is_certain(name) and not self._is_ready(ticket, spot)
            assert is_undecided or self.is_served(name), (
                f"{ticket.event.request_id} waits for {name}, which has no replica"
            )
        for spot in ticket.final_spots(sample):
            assert spot in ticket.finishes or not self._is_skipped(ticket, spot), (
                f"{spot[0]} will not run, and did not end"
            )

    def _ahead(self, ticket: TicketModel, sample: int) -> list[Spot]:
        """What is still to run: for the first time, or again after the loss of a replica."""
        return [spot for spot in ticket.spots(sample) if self._is_ahead(ticket, spot)]

    def _ready(self, ticket: TicketModel, sample: int) -> list[Spot]:
        """What is still to run and waits for nothing but a credit."""
        return [spot for spot in self._ahead(ticket, sample) if self._is_ready(ticket, spot)]

    def _is_ready(self, ticket: TicketModel, spot: Spot) -> bool:
        stage = self.stages[spot[0]]
        modes = {source.stage: source.mode for source in stage.sources}
        return stage.prewarm or all(
            self._end_of(ticket, source) is not None
            or (modes[name] is EdgeMode.STREAMING and bool(self._produced(ticket, source)))
            for (name, _), source in self._inputs(ticket, spot).items()
        )

    def _check_job(self, job: JobModel) -> None:
        if job.is_over:
            return
        if job.is_detached or job.sample in job.ticket.aborting:
            assert job.is_asked_to_stop, f"{job.key} was not stopped"
            return
        assert not job.is_asked_to_stop, f"{job.key} was stopped for no reason"
        assert job.role == MAIN or not self._is_given_up(job.ticket, job.spot), f"{job.key} works for nobody"
        for source in self.stages[job.key.stage].sources:
            key = source.stage, MAIN
            if source.mode is EdgeMode.STREAMING:
                assert job.inputs[key] == len(self._there(job, key)), f"{job.key} was not fed what is there"
            if self._end_for(job, key) is not None:
                assert key in job.ended, f"the end of '{source.stage}' did not reach {job.key}"

    def _check_statistics(self, statistics: Statistics) -> None:
        assert statistics.requests == len(self.open_tickets())
        assert statistics.aborting == sum(ticket.is_aborting for ticket in self.open_tickets())
        assert statistics.abort_calls == sum(not call.is_answered for call in self.calls.values())
        assert statistics.remembered <= self.limits.max_remembered
        assert statistics.control_calls == len(self.control.calls)
        is_quiet = not (statistics.requests or statistics.abort_calls or statistics.control_calls)
        if is_quiet and all(job.is_over for job in self.jobs.values()):
            assert statistics.is_idle, f"something is left: {statistics}"
        waiting = self._waiting()
        for name, stage in statistics.stages.items():
            limit = self.stages[name].limits.max_inflight
            assert {(name, slot) for slot in stage.returning} == {place for place in self.returning if place[0] == name}
            present = {key: state for key, state in self.replicas.items() if key.stage == name}
            for key, state in present.items():
                seen = [one for one in stage.replicas if (one.slot, one.generation) == key[1:]]
                assert [one.state for one in seen] == ([] if state is ReplicaState.GONE else [state])
                assert [one.inflight for one in seen] == (
                    [] if state is ReplicaState.GONE else [len(self.jobs_at(key))]
                )
                is_free = key in self.live_replicas(name) and len(self.jobs_at(key)) < limit
                if is_free and self.control.may_start(name):
                    assert not any(self._can_go_to(ticket, spot, key) for ticket, spot in waiting[name]), "idle credit"
            assert stage.queued == len(waiting[name]), f"{stage.queued} wait for {name} instead of {waiting[name]}"
            assert not stage.queued or self.is_served(name), "jobs wait for a stage without a replica"

    def _waiting(self) -> dict[str, list[tuple[TicketModel, Spot]]]:
        """By stage, what waits for a credit."""
        waiting: dict[str, list[tuple[TicketModel, Spot]]] = {name: [] for name in self.stages}
        for ticket in self.open_tickets():
            for index in ticket.samples if ticket.is_admitted else ():
                if index not in ticket.aborting and not ticket.has_ended(index):
                    for spot in self._ready(ticket, index):
                        waiting[spot[0]].append((ticket, spot))
        return waiting

    def _can_go_to(self, ticket: TicketModel, spot: Spot, replica: ReplicaKey) -> bool:
        """Whether a credit of that replica is of use to a job that waits."""
        sample, role = ticket.siblings[spot[1]]
        leader_spot = spot[0], ticket.name_of(sample)
        leader = ticket.jobs.get(leader_spot)
        if role == MAIN or (leader is None and self._is_skipped(ticket, leader_spot)):
            return True
        if leader is None or leader.is_lost or leader.is_repeated:
            return False  # it waits for its leader, or for a replica that only the core knows
        return leader.replica == replica or leader.replica not in self.live_replicas(spot[0])
