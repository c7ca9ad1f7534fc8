"""The core's front: told what happened, it answers with what to do.

It decides admission, matches events to jobs by key and generation, and hands on to `forwarding.py` and `ending.py`. It
never waits, never reads a clock, and never raises for what the outside world does; InternalError is a bug of podium.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

import msgspec

from podium.core.admission import EngineLimits
from podium.core.control import AbortCall, ControlCall
from podium.core.controlling import attend, end_control, expire_control, request_control, take_return
from podium.core.deadlines import Timer
from podium.core.effects import AbortRecord, AbortStatus, Effect, RefuseRequest
from podium.core.ending import (
    cancel_request,
    expire_abort_call,
    fail_job,
    fail_request,
    fail_stranded,
    give_up_stop,
    leave_replica,
    leave_when_empty,
    lose_replica,
    note_abort_failure,
    repeat_or_begin_abort,
    settle,
    status_of_ended,
    stuck,
    timed_out,
    unavailable,
)
from podium.core.events import (
    AbortRequested,
    AckLevel,
    CallReturned,
    ControlRequested,
    Event,
    InputAppended,
    InputRejected,
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
from podium.core.forwarding import activate, append_input, note_start, serve_pool, take_output
from podium.core.graph import Graph, Stage
from podium.core.identity import Payload, ReplicaKey
from podium.core.lifecycle import GateAction, GateState, JobState, JobTrigger, ReplicaState
from podium.core.plan import Plan
from podium.core.records import Job, Request, Wait
from podium.core.snapshot import Snapshot
from podium.core.state import CoreState
from podium.core.statistics import Statistics
from podium.errors import ErrorKind, ErrorRecord, InternalError, InvalidRequestError, Scope

JobEvent: TypeAlias = StageStarted | StageStopped | StopFailed | StageFailed | InputRejected


class Orchestrator:
    """Owns every request of one engine, from its admission to its terminal.

    Not thread-safe: one caller tells it everything, in order. `now` is any monotonic time in seconds.
    """

    def __init__(self, graph: Graph, limits: EngineLimits | None = None, snapshot: Snapshot | None = None) -> None:
        """Begin with nothing, or go on from where another core was idle."""
        self._state = CoreState(graph, limits or EngineLimits())
        if snapshot is not None:
            self._state.restore(snapshot)

    def __repr__(self) -> str:
        return f"<Orchestrator {self._state!r}>"

    def step(self, events: Sequence[Event], now: float) -> list[Effect]:
        """Handle events in the order of their arrival, then expire what is due. Returns the effects, in order."""
        state = self._state
        state.now = now
        for event in events:
            self._handle(event)
            if state.pools_to_serve or state.control_calls:
                self._follow_up()
        self._expire(now)
        effects, state.effects = state.effects, []
        return effects

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event; deadlines are left alone."""
        state = self._state
        state.now = now
        self._handle(event)
        self._follow_up()
        effects, state.effects = state.effects, []
        return effects

    def expire(self, now: float) -> list[Effect]:
        """End every wait that is over at `now`."""
        return self.step((), now)

    def next_deadline(self) -> float | None:
        """When `expire` is to be called at the latest; None while nothing is awaited."""
        return self._state.deadlines.next_due()

    @property
    def graph(self) -> Graph:
        """The pipeline that it runs."""
        return self._state.graph

    @property
    def limits(self) -> EngineLimits:
        """The limits that it keeps."""
        return self._state.limits

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: no request, no job, no timer."""
        return self._state.is_idle

    def snapshot(self) -> Snapshot:
        """What another core needs to go on from here. Raises InternalError unless this one is idle."""
        return self._state.snapshot()

    def statistics(self) -> Statistics:
        """The core as it is now."""
        return self._state.statistics()

    def _handle(self, event: Event) -> None:  # noqa: C901, PLR0912 - one row for each event
        match event:
            case StageProduced():
                self._stage_produced(event)
            case StageStarted() | StageStopped() | StopFailed() | StageFailed() | InputRejected():
                self._job_event(event)
            case RequestSubmitted():
                self._request_submitted(event)
            case InputAppended():
                self._input_appended(event)
            case AbortRequested():
                self._abort_requested(event)
            case RequestCancelled():
                request = self._find_request(event.request_id, event.ticket)
                if request is not None:
                    cancel_request(self._state, request)
            case ReplicaJoined():
                self._replica_joined(event.replica)
            case ReplicaDrained():
                self._replica_drained(event)
            case ReplicaLost():
                self._replica_lost(event)
            case ReplicaReported():
                replica = self._state.find_replica(event.replica)
                if replica is not None:
                    replica.note_load(event.member, event.load)
            case CallReturned():
                take_return(self._state, event)
            case ControlRequested():
                request_control(self._state, event)
            case ShutdownRequested():
                self._shut_down(event.error)
            case _:
                assert_never(event)

    def _follow_up(self) -> None:
        """What an event leads to beyond its own request: jobs start, and control calls see what is over."""
        state = self._state
        while True:
            while state.pools_to_serve:
                serve_pool(state, state.pools_to_serve.popitem()[1])
            if state.control_calls:
                attend(state)
            if not state.pools_to_serve:
                return

    # Requests

    def _request_submitted(self, event: RequestSubmitted) -> None:
        state = self._state
        state.counters.submitted += 1
        plan = self._plan_or_refuse(event)
        if plan is None:
            return
        if event.companions and not plan.roles:
            state.release(tuple(event.companions.values()))  # no output that is asked for needs them
        request = Request(event, plan, state.next_serial(), state.now)
        state.requests[request.id] = request
        if state.gate.is_open or state.gate.judge(plan.stages) is GateState.OPEN:
            if request.deadline is not None:
                state.deadlines.set(request, request.deadline)
            activate(state, request)
            return
        state.held[request.id] = request
        until = state.now + state.limits.hold_timeout_s
        state.deadlines.set(request, until if request.deadline is None else min(until, request.deadline))

    def _plan_or_refuse(self, event: RequestSubmitted) -> Plan | None:
        try:
            plan = self._plan(event)
        except InvalidRequestError as error:
            self._refuse(event, error.record)
            return None
        error_record = self._reason_to_refuse(event, plan)
        if error_record is not None:
            self._refuse(event, error_record)
            return None
        return plan

    def _plan(self, event: RequestSubmitted) -> Plan:
        state = self._state
        if event.samples == 1 and not event.companions:
            return state.planner.plan(event.outputs)
        roles = tuple(event.companions)
        return state.planner.expand(event.outputs, event.samples, roles, state.limits.max_siblings)

    def _reason_to_refuse(self, event: RequestSubmitted, plan: Plan) -> ErrorRecord | None:
        state = self._state
        if not state.gate.is_open:
            verdict = state.gate.judge(plan.stages)
            if verdict is GateState.CLOSED:
                return _refusal(ErrorKind.ENGINE_STOPPED, Scope.ENGINE, "the engine is shut down")
            if verdict is GateState.REFUSING:
                names = [name for name in plan.stages if state.gate.judge((name,)) is GateState.REFUSING]
                message = f"stage '{names[0]}' is paused and takes no requests; retry when it is resumed"
                return ErrorRecord(kind=ErrorKind.STAGE_UNAVAILABLE, scope=Scope.STAGE, stage=names[0], message=message)
        if event.request_id in state.requests:
            return _refusal(
                ErrorKind.DUPLICATE_REQUEST_ID,
                Scope.REQUEST,
                f"request_id: '{event.request_id}' belongs to a request that has not ended; use another one",
            )
        if len(state.requests) >= state.limits.max_requests:
            return self._overload(None, f"{state.limits.max_requests} requests are open (limits.max_requests)")
        for stage, jobs in plan.demand:
            pool = state.pools[stage.name]
            if not pool.is_available and stage.name not in plan.uncertain:
                return unavailable(stage.name)
            if not pool.has_room(jobs):
                return self._overload(stage.name, _no_room(stage, jobs))
        return None

    def _overload(self, stage: str | None, what: str) -> ErrorRecord:
        retry_after_s = self._state.limits.retry_after_s
        return ErrorRecord(
            kind=ErrorKind.OVERLOADED,
            scope=Scope.ENGINE if stage is None else Scope.STAGE,
            stage=stage,
            retry_after_s=retry_after_s,
            message=f"overloaded: {what}; retry in {retry_after_s:g} s",
        )

    def _refuse(self, event: RequestSubmitted, error: ErrorRecord) -> None:
        state = self._state
        state.counters.refused += 1
        prompts = () if event.prompt is None else (event.prompt,)
        state.release((*prompts, *event.companions.values()))
        error = msgspec.structs.replace(error, request_id=event.request_id)
        state.effects.append(RefuseRequest(event.ticket, event.request_id, error))

    def _input_appended(self, event: InputAppended) -> None:
        request = self._find_request(event.request_id, event.ticket)
        if request is None or request.is_aborting or not request.input_open:
            self._state.drop(event.payloads)
            return
        request.input_open = not event.last
        append_input(self._state, request, event.payloads, last=event.last)

    def _find_request(self, request_id: str, ticket: int) -> Request | None:
        request = self._state.requests.get(request_id)
        return request if request is not None and request.ticket == ticket else None

    # Aborts

    def _abort_requested(self, event: AbortRequested) -> None:
        state = self._state
        call = AbortCall(event.call, self._ids_meant_by(event), event.samples)
        for request_id in call.open_ids():
            request = state.requests.get(request_id)
            if request is None:
                ended = request_id in state.remembered
                status = AbortStatus.ALREADY_ENDED if ended else AbortStatus.UNKNOWN
                call.note(AbortRecord(request_id, status))
                continue
            if call.samples and (status_of := status_of_ended(request, call)) is not None:
                call.note(AbortRecord(request_id, status_of))
                continue
            if event.level is AckLevel.ACCEPTED:
                call.note(AbortRecord(request_id, AbortStatus.ACCEPTED))
            else:
                request.abort_calls.append(call)
            repeat_or_begin_abort(state, request, event.samples)
        if call.is_answered:
            state.effects.append(call.reply())
            return
        state.abort_calls[call.call] = call
        state.deadlines.set(call, event.deadline)

    def _ids_meant_by(self, event: AbortRequested) -> tuple[str, ...]:
        requests = self._state.requests
        if event.request_ids is None:
            return tuple(requests)
        if not event.groups:
            return event.request_ids
        return (*event.request_ids, *(one.id for one in requests.values() if one.group in event.groups))

    # Jobs

    def _job_event(self, event: JobEvent) -> None:
        state = self._state
        replica = state.find_replica(event.replica)
        job = replica.jobs.get(event.job) if replica is not None else None
        if job is None:
            state.drop(_payloads_of(event))
            return
        match event:
            case StageStarted():
                note_start(state, job)
            case StageStopped():
                self._stage_stopped(job, event)
            case StopFailed():
                self._stop_failed(job, event.error)
            case StageFailed():
                fail_job(state, job, event.error)
            case InputRejected():
                if not job.is_detached and not job.sample.is_aborting:
                    fail_request(state, job.request, event.error)
            case _:
                assert_never(event)

    def _stage_produced(self, event: StageProduced) -> None:
        state = self._state
        replica = state.find_replica(event.replica)
        for output in event.outputs:
            job = replica.jobs.get(output.job) if replica is not None else None
            if job is None:
                state.drop(output.payloads)
            else:
                take_output(state, job, output)

    def _stage_stopped(self, job: Job, event: StageStopped) -> None:
        state = self._state
        if not job.is_stopping:
            state.drop(_payloads_of(event))
            return
        leave_replica(state, job, JobTrigger.CONFIRM_STOP)
        if job.is_detached:
            state.release(_payloads_of(event))
            return
        if job.plan.is_final:
            job.partial = event.partial
        else:
            state.release(_payloads_of(event))
        job.finished_at = state.now
        settle(state, job.sample)

    def _stop_failed(self, job: Job, error: ErrorRecord) -> None:
        if job.state is JobState.STOPPING:
            job.advance(JobTrigger.STOP_FAILS)
            if not job.is_detached:
                note_abort_failure(self._state, job, error)

    # Replicas, the gate, the end

    def _replica_joined(self, key: ReplicaKey) -> None:
        pool = self._state.pools.get(key.stage)
        if pool is not None and pool.try_join(key) is not None:
            self._state.serve(pool)
            fail_stranded(self._state, pool)  # what waited for it, should its weights not let it work
        else:
            self._state.drop(())

    def _replica_drained(self, event: ReplicaDrained) -> None:
        state = self._state
        replica = state.find_replica(event.replica)
        if replica is not None and replica.state is ReplicaState.LIVE:
            pool = state.pools[event.replica.stage]
            pool.drain(replica, event.successor)
            leave_when_empty(state, replica)
            fail_stranded(state, pool)
            state.serve(pool)

    def _replica_lost(self, event: ReplicaLost) -> None:
        state = self._state
        key = event.replica
        replica = state.find_replica(key)
        if replica is not None:
            lose_replica(state, replica, event.error)
            return
        pool = state.pools.get(key.stage)
        if pool is not None and pool.returning.get(key.slot) == key:
            del pool.returning[key.slot]
            fail_stranded(state, pool)

    def _shut_down(self, error: ErrorRecord) -> None:
        state = self._state
        state.gate.act(GateAction.CLOSE)
        for request in list(state.requests.values()):
            fail_request(state, request, error)
        end_control(state, error)

    # Time

    def _expire(self, now: float) -> None:
        while (timer := self._state.deadlines.pop_due(now)) is not None:
            self._expire_timer(timer)
            self._follow_up()

    def _expire_timer(self, timer: Timer) -> None:
        match timer:
            case Job():
                self._expire_job(timer)
            case Request():
                fail_request(self._state, timer, self._request_timeout(timer))
            case AbortCall():
                expire_abort_call(self._state, timer)
            case ControlCall():
                expire_control(self._state, timer)
            case _:
                raise InternalError(f"nobody owns {timer!r}")

    def _expire_job(self, job: Job) -> None:
        state = self._state
        wait, job.wait = job.wait, Wait.NOTHING
        if wait is Wait.CHUNK and (due := job.last_output_at + job.stage.limits.chunk_timeout_s) > state.now:
            state.wait(job, Wait.CHUNK, due - state.now)  # outputs came since; they only noted their time
            return
        match wait:
            case Wait.STOP:
                give_up_stop(state, job)
            case Wait.STUCK:
                assert job.replica is not None
                lose_replica(state, job.replica, stuck(job.replica.key, job.stage.limits.stuck_timeout_s))
            case _:
                self._expire_work(job, wait)

    def _expire_work(self, job: Job, wait: Wait) -> None:
        """A job has waited too long; where a stage stands still, that is not its fault until the hold is too long."""
        state = self._state
        job.wait = wait
        if wait is Wait.QUEUE and state.pool_of(job).is_between_lives:
            state.wait(job, wait, job.wait_limit_s())  # whoever replaces the replica says when that is over
            return
        pool = state.standing_still(job)
        if pool is None:
            fail_request(state, job.request, timed_out(job))
            return
        left_s = pool.barrier.closed_at + state.limits.hold_timeout_s - state.now
        if left_s > 0:
            state.wait(job, wait, min(left_s, job.wait_limit_s()))
        else:
            fail_request(state, job.request, self._hold_timeout(f"the resume of stage '{pool.stage.name}'"))

    def _request_timeout(self, request: Request) -> ErrorRecord:
        if request.deadline is not None and request.deadline <= self._state.now:
            return ErrorRecord(
                kind=ErrorKind.DEADLINE_EXCEEDED,
                scope=Scope.REQUEST,
                awaited=request.awaited(),
                message=f"the request's deadline passed while it waited for {request.awaited()}",
            )
        return self._hold_timeout("admission")

    def _hold_timeout(self, awaited: str) -> ErrorRecord:
        limit_s = self._state.limits.hold_timeout_s
        return ErrorRecord(
            kind=ErrorKind.WAIT_TIMEOUT,
            scope=Scope.REQUEST,
            awaited=awaited,
            message=f"timed out after {limit_s:g} s waiting for {awaited} (limits.hold_timeout_s)",
        )


def _payloads_of(event: JobEvent) -> tuple[Payload, ...]:
    return (event.partial,) if isinstance(event, StageStopped) and event.partial is not None else ()


def _no_room(stage: Stage, jobs: int) -> str:
    limit = stage.limits.max_queued
    if jobs == 1:
        return f"{limit} jobs wait for stage '{stage.name}' (limits.max_queued)"
    return f"{jobs} jobs are too many for stage '{stage.name}', where {limit} may wait (limits.max_queued)"


def _refusal(kind: ErrorKind, scope: Scope, message: str) -> ErrorRecord:
    return ErrorRecord(kind=kind, scope=scope, message=message)
