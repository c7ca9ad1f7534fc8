"""How jobs and requests end: stops, aborts, failures, losses, and the one function that makes a request terminal.

A request that ends is forgotten at once. A job of it that a replica still has is detached: it keeps its credit until
the replica confirms its stop, and nothing of it is passed on any more.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import assert_never

import msgspec

from podium.core.control import AbortCall
from podium.core.effects import (
    AbortRecord,
    AbortStatus,
    CloseReplica,
    EmitOutput,
    EndRequest,
    Outcome,
    StopJob,
)
from podium.core.events import Finish, FinishReason
from podium.core.identity import Payload, ReplicaKey
from podium.core.lifecycle import JobState, JobTrigger, ReplicaState, ReplicaTrigger, RequestState, RequestTrigger
from podium.core.records import Job, Request, Sample, Wait
from podium.core.stage_pool import Replica, StagePool
from podium.core.state import CoreState
from podium.errors import Category, ErrorKind, ErrorRecord, Scope

# Bound once: on Python 3.11 reading a member off its enum class costs as much as three calls.
_DRAINING = ReplicaState.DRAINING
_COMPLETE, _BY_ABORT = RequestTrigger.COMPLETE, FinishReason.ABORT
_DISPATCHED, _RUNNING, _QUEUED = JobState.DISPATCHED, JobState.RUNNING, JobState.QUEUED

_OUTCOMES = {
    RequestState.COMPLETED: Outcome.COMPLETED,
    RequestState.ABORTED: Outcome.ABORTED,
    RequestState.FAILED: Outcome.FAILED,
}

_LIMITS = {
    Wait.QUEUE: "queue_timeout_s",
    Wait.DISPATCH: "dispatch_timeout_s",
    Wait.FIRST_OUTPUT: "first_output_timeout_s",
    Wait.CHUNK: "chunk_timeout_s",
    Wait.BUNDLE: "bundle_timeout_s",
    Wait.INPUT: "chunk_timeout_s",
}


def end_request(state: CoreState, request: Request, trigger: RequestTrigger, error: ErrorRecord | None = None) -> None:
    """Make a request terminal: the only place where that happens, and the only way out of the tables."""
    request.advance(trigger)
    state.deadlines.clear(request)
    if trigger is not _COMPLETE or request.plan.roles:
        state.release(request.unused_prompts())
    if error is not None or trigger is RequestTrigger.CANCEL:
        kept = [job.partial for job in request.jobs if job.partial is not None and job.finish_reason is None]
        state.release(kept)
    for job in request.jobs:
        leave_job(state, job)
    del state.requests[request.id]
    state.held.pop(request.id, None)
    state.remember(request.id)
    outcome = _OUTCOMES[request.state]
    match outcome:
        case Outcome.COMPLETED:
            state.counters.completed += 1
        case Outcome.FAILED:
            state.counters.failed += 1
        case Outcome.ABORTED:
            if trigger is RequestTrigger.CANCEL:
                state.counters.cancelled += 1
            else:
                state.counters.aborted += 1
        case _:
            assert_never(outcome)
    timings = {job.stage.name: job.timings() for job in request.samples[0].jobs if job.plan.leader < 0}
    state.effects.append(EndRequest(request.ticket, request.id, outcome, state.now, error, timings))
    for call in request.abort_calls:
        _note(state, call, _abort_record(request, call, error))
    request.abort_calls.clear()
    request.forget()


def fail_request(state: CoreState, request: Request, error: ErrorRecord) -> None:
    """End a request with an error."""
    end_request(state, request, RequestTrigger.FAIL, msgspec.structs.replace(error, request_id=request.id))


def cancel_request(state: CoreState, request: Request) -> None:
    """End a request that nobody waits for any more; what is being aborted already goes on being aborted."""
    if not request.is_aborting:
        end_request(state, request, RequestTrigger.CANCEL)


def begin_abort(state: CoreState, request: Request) -> None:
    """Stop everything of a request; it ends when each replica has confirmed, with what was made so far."""
    request.advance(RequestTrigger.ABORT)
    state.deadlines.clear(request)
    state.held.pop(request.id, None)
    _abort_each(state, request.samples)


def abort_samples(state: CoreState, request: Request, samples: Container[int]) -> None:
    """Stop some samples of a request and let the others go on; without any other the request is aborted."""
    open_samples = [sample for sample in request.samples if not (sample.is_over or sample.is_aborting)]
    chosen = [sample for sample in open_samples if sample.index in samples]
    if chosen and len(chosen) == len(open_samples):
        begin_abort(state, request)
    else:
        _abort_each(state, chosen)


def _abort_each(state: CoreState, samples: Sequence[Sample]) -> None:
    for sample in samples:
        if not (sample.is_over or sample.is_aborting):
            sample.is_aborting = True
            _stop_everything(state, sample)
    for sample in samples:
        settle(state, sample)


def _stop_everything(state: CoreState, sample: Sample) -> None:
    for job in sample.jobs:
        if job.is_at_replica and not job.is_stopping:
            stop_job(state, job)
        elif job.is_before_replica:
            _cancel_job(state, job)


def repeat_or_begin_abort(state: CoreState, request: Request, samples: tuple[int, ...] = ()) -> None:
    """Stop a request, or some samples of it, or what of that could not be stopped before."""
    for job in request.jobs:
        if job.state is JobState.STOP_FAILED and not job.is_detached and (not samples or job.sample.index in samples):
            stop_job(state, job)
    if request.is_aborting:
        return
    if samples:
        abort_samples(state, request, samples)
    else:
        begin_abort(state, request)


def settle(state: CoreState, sample: Sample) -> None:
    """End an aborted sample, and its request after the last, once no replica works for it.

    Each unfinished final stage gets its abort output, in the order of the stages.
    """
    if sample.is_over or not sample.is_settled:
        return
    for job in sample.jobs:
        if job.plan.is_final and job.finish_reason is None:
            emit_final(state, job, (), Finish(_BY_ABORT), job.partial)
    conclude(state, sample)


def conclude(state: CoreState, sample: Sample) -> None:
    """A sample has had its last finish: its request ends with it, or goes on with the others."""
    request = sample.request
    if request.open_finals == 0:
        is_aborted = request.is_aborting and any(job.finish_reason is _BY_ABORT for job in request.jobs)
        end_request(state, request, RequestTrigger.SETTLE if is_aborted else _COMPLETE)
        return
    for job in sample.jobs:
        leave_job(state, job)
    for call in list(request.abort_calls):
        if call.samples and all(one.is_over for one in request.samples if call.means(one.index)):
            request.abort_calls.remove(call)
            _note(state, call, _abort_record(request, call, None))


def end_without(state: CoreState, job: Job, error: ErrorRecord) -> None:
    """A job is over at its replica without a usable end: its request fails, or is one stop nearer to its abort."""
    request = job.request
    if job.is_detached or request.is_over:
        return
    if job.sample.is_aborting:
        settle(state, job.sample)
    else:
        fail_request(state, request, error)


def emit_final(
    state: CoreState, job: Job, payloads: tuple[Payload, ...], finish: Finish | None, partial: Payload = None
) -> None:
    """Deliver output of a final stage to the client, numbered; a finish is an item of its own."""
    request, sample = job.request, job.sample
    sequence = request.sequence
    request.sequence = sequence + len(payloads)
    state.counters.outputs += len(payloads)
    version = state.pool_of(job).weights_version
    if finish is None:
        if payloads:
            state.effects.append(
                EmitOutput(request.ticket, job.stage.name, sequence, payloads, state.now, sample.index, version)
            )
        return
    request.sequence += 1
    request.open_finals -= 1
    sample.open_finals -= 1
    job.finish_reason = finish.reason
    job.finished_at = state.now
    state.effects.append(
        EmitOutput(
            request.ticket,
            job.stage.name,
            sequence,
            payloads,
            state.now,
            sample.index,
            version,
            finish,
            partial,
            job.timings(),
            request.open_finals == 0,
        )
    )


def stop_job(state: CoreState, job: Job) -> None:
    """Ask the replica to stop a job, for the first time or after that failed."""
    job.advance(JobTrigger.STOP)
    state.wait(job, Wait.STOP, job.stage.limits.stop_timeout_s)
    _post_stop(state, job)


def leave_replica(state: CoreState, job: Job, trigger: JobTrigger) -> None:
    """Note that a replica has no longer anything of a job, and give its credit back."""
    job.advance(trigger)
    state.end_wait(job)
    state.release(job.drop_inputs())
    replica = job.replica
    if replica is not None and job.key is not None:
        del replica.jobs[job.key]
        if replica.state is _DRAINING:
            leave_when_empty(state, replica)
        state.serve(state.pool_of(job))


def give_up_stop(state: CoreState, job: Job) -> None:
    """A stop was not confirmed in time: the request goes on without it, the stop is repeated, the credit stays."""
    was_detached = job.is_detached
    job.is_detached = True
    state.release(job.drop_inputs())
    if job.state is JobState.STOP_FAILED:
        job.advance(JobTrigger.STOP)
    state.wait(job, Wait.STUCK, job.stage.limits.stuck_timeout_s)
    _post_stop(state, job)
    if not was_detached:
        job.sample.unconfirmed.append(job.stage.name)
        settle(state, job.sample)


def lose_replica(state: CoreState, replica: Replica, error: ErrorRecord) -> None:
    """A replica is gone: its jobs end, or run again elsewhere; what has no replica left fails fast."""
    pool = state.pools[replica.key.stage]
    jobs = list(replica.jobs.values())
    replica.jobs.clear()
    pool.remove(replica, ReplicaTrigger.LOSE)
    state.effects.append(CloseReplica(replica.key, error))
    state.note_gone(replica.key, error)
    again = {job for job in jobs if _can_run_again(job)}
    for job in jobs:
        if job not in again:
            job.replica = None
            leave_replica(state, job, JobTrigger.FAIL)
        else:
            _requeue(state, pool, job)
    for job in jobs:
        if job.state is JobState.FAILED:
            end_without(state, job, error)
    fail_stranded(state, pool)
    state.serve(pool)


def fail_job(state: CoreState, job: Job, error: ErrorRecord) -> None:
    """A job failed at a replica that is otherwise well: it runs again, where it may, or its request fails."""
    if error.category is not Category.SERVER or not _can_run_again(job):
        leave_replica(state, job, JobTrigger.FAIL)
        end_without(state, job, error)
        return
    pool, replica = state.pool_of(job), job.replica
    assert replica is not None
    assert job.key is not None
    del replica.jobs[job.key]
    _requeue(state, pool, job)
    if replica.state is _DRAINING:
        leave_when_empty(state, replica)
        fail_stranded(state, pool)
    state.serve(pool)


def fail_stranded(state: CoreState, pool: StagePool) -> None:
    """Fail every request that still needs a stage without a replica; those that do not need it go on."""
    if pool.is_available:
        return
    stage = pool.stage
    for request in list(state.requests.values()):
        if any(job.stage is stage and _is_stranded(job) for job in request.jobs):
            fail_request(state, request, unavailable(stage.name))


def _is_stranded(job: Job) -> bool:
    """Whether a job needs a replica; one that depends on a condition does so once it is decided."""
    return job.state is _QUEUED or (job.is_before_replica and job.plan.is_certain)


def leave_when_empty(state: CoreState, replica: Replica) -> None:
    """Let a draining replica go once its last job is over."""
    if not replica.jobs:
        state.pools[replica.key.stage].remove(replica, ReplicaTrigger.LEAVE)
        state.effects.append(CloseReplica(replica.key))
        state.note_gone(replica.key, None)


def unavailable(stage: str) -> ErrorRecord:
    """The error for a stage that has no replica."""
    return ErrorRecord(
        kind=ErrorKind.STAGE_UNAVAILABLE,
        scope=Scope.STAGE,
        stage=stage,
        message=f"stage '{stage}' has no live replica; retry when it is back",
    )


def stuck(replica: ReplicaKey, limit_s: float) -> ErrorRecord:
    """The error for a replica that does not confirm stops."""
    return ErrorRecord(
        kind=ErrorKind.REPLICA_LOST,
        scope=Scope.REPLICA,
        stage=replica.stage,
        replica=replica.slot,
        awaited="confirmation of the repeated stop",
        message=f"replica {replica.slot} of stage '{replica.stage}' is stuck: "
        f"it did not confirm a repeated stop within {limit_s:g} s",
    )


def timed_out(job: Job) -> ErrorRecord:
    """The error for a job that waited too long: it names what was awaited, and the limit."""
    awaited = f"{job.wait} at stage '{job.stage.name}'"
    if job.wait is Wait.BUNDLE:
        awaited = f"{job.wait} {', '.join(job.missing_roles)} at stage '{job.stage.name}'"
    return ErrorRecord(
        kind=ErrorKind.WAIT_TIMEOUT,
        scope=Scope.REQUEST,
        stage=job.stage.name,
        replica=job.replica.key.slot if job.replica is not None else None,
        awaited=awaited,
        message=f"timed out after {job.wait_limit_s():g} s waiting for {awaited} (limits.{_LIMITS[job.wait]})",
    )


def note_abort_failure(state: CoreState, job: Job, error: ErrorRecord) -> None:
    """Tell those who wait for an abort that a stop failed; nothing is forgotten, so they can repeat it."""
    request = job.request
    for call in list(request.abort_calls):
        if call.means(job.sample.index):
            request.abort_calls.remove(call)
            record = AbortRecord(request.id, AbortStatus.FAILED, stages=(job.stage.name,), error=error)
            _note(state, call, record)


def status_of_ended(request: Request, call: AbortCall) -> AbortStatus | None:
    """What an abort of samples hears at once: of samples that there are not, or that have all ended; None otherwise."""
    indices = range(len(request.samples))
    if any(index not in indices for index in call.samples):
        return AbortStatus.UNKNOWN
    if all(request.samples[index].is_over for index in call.samples):
        return AbortStatus.ALREADY_ENDED
    return None


def expire_abort_call(state: CoreState, call: AbortCall) -> None:
    """Answer an abort whose time is over: what did not confirm is listed."""
    for request_id in call.open_ids():
        request = state.requests[request_id]
        request.abort_calls.remove(call)
        stages = tuple(job.stage.name for job in request.jobs if job.is_at_replica and call.means(job.sample.index))
        _note(state, call, AbortRecord(request_id, AbortStatus.UNCONFIRMED, stages=stages))


def _abort_record(request: Request, call: AbortCall, error: ErrorRecord | None) -> AbortRecord:
    if error is not None:
        return AbortRecord(request.id, AbortStatus.FAILED, error=error)
    samples = [sample for sample in request.samples if call.means(sample.index)]
    if _has_completed(request, call, samples):
        return AbortRecord(request.id, AbortStatus.ALREADY_ENDED)
    partials = {sample.index: _partials_of(sample) for sample in samples}
    unconfirmed = tuple(stage for sample in samples for stage in sample.unconfirmed)
    status = AbortStatus.UNCONFIRMED if unconfirmed else AbortStatus.ABORTED
    if len(request.samples) == 1:
        return AbortRecord(request.id, status, partials[0], unconfirmed)
    return AbortRecord(request.id, status, stages=unconfirmed, samples=partials)


def _has_completed(request: Request, call: AbortCall, samples: Sequence[Sample]) -> bool:
    """Whether everything that an abort is about came to its own end first."""
    if not call.samples:
        return request.state is RequestState.COMPLETED
    finals = [job for sample in samples for job in sample.jobs if job.plan.is_final]
    return all(job.finish_reason is not None and job.finish_reason is not _BY_ABORT for job in finals)


def _partials_of(sample: Sample) -> dict[str, Payload]:
    return {job.stage.name: job.partial for job in sample.jobs if job.plan.is_final and job.partial is not None}


def _note(state: CoreState, call: AbortCall, record: AbortRecord) -> None:
    call.note(record)
    if call.is_answered and state.abort_calls.pop(call.call, None) is not None:
        state.deadlines.clear(call)
        state.effects.append(call.reply())


def leave_job(state: CoreState, job: Job) -> None:
    """Nothing of a job is of use any more: it is cancelled, or stopped behind its request's back."""
    if job.is_before_replica:
        _cancel_job(state, job)
    elif job.is_at_replica and not job.is_detached:
        job.is_detached = True
        state.release(job.drop_inputs())
        if job.state in (_DISPATCHED, _RUNNING):
            stop_job(state, job)


def _cancel_job(state: CoreState, job: Job) -> None:
    was_queued = job.state is _QUEUED
    job.advance(JobTrigger.CANCEL)
    state.end_wait(job)
    state.release(job.drop_inputs())
    if was_queued:
        state.pool_of(job).withdraw(job)


def _post_stop(state: CoreState, job: Job) -> None:
    state.effects.append(StopJob(*job.place()))


def _can_run_again(job: Job) -> bool:
    running = job.state in (_DISPATCHED, _RUNNING)
    return running and job.can_rerun and job.request.state is RequestState.ACTIVE


def _requeue(state: CoreState, pool: StagePool, job: Job) -> None:
    state.counters.reruns += 1
    job.advance(JobTrigger.REQUEUE)
    state.release(job.order.take_early())
    job.rewind()
    pool.enqueue(job)
