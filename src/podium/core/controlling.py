"""How the engine itself is controlled: calls fan out to replicas, and stages pause, sleep, wake and change weights.

A call is a row of steps; each ends when every replica has answered, or the call's time is over. What a stage is said to
be follows from what its replicas have confirmed, never from what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from podium.core.control import ControlCall, Step
from podium.core.control_errors import error_of, lost, nobody_to_call, reason_to_refuse, silent, superseded, undrained
from podium.core.effects import CallReplica, ControlRecord, ReplyControl
from podium.core.ending import repeat_or_begin_abort
from podium.core.events import CallReturned, ControlRequested
from podium.core.forwarding import activate
from podium.core.identity import Payload, ReplicaKey
from podium.core.lifecycle import SLEEPY, BarrierTrigger, GateAction, GateState
from podium.core.operations import (
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    HoldPolicy,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from podium.core.records import Job, Request, Wait
from podium.core.stage_pool import Replica, StagePool
from podium.core.state import CoreState
from podium.errors import ErrorRecord


def request_control(state: CoreState, event: ControlRequested) -> None:
    """Begin a control call, or answer it at once when it does not fit."""
    error = reason_to_refuse(state, event)
    if error is not None:
        state.effects.append(ReplyControl(event.call, (), error))
        return
    call = ControlCall(event, _steps_of(state, event))
    state.control_calls[call.call] = call
    state.deadlines.set(call, event.deadline)
    if not isinstance(event.operation, CallMethod):
        _take_charge(state, call)
    _prepare(state, call)
    _go_on(state, call)


def take_return(state: CoreState, event: CallReturned) -> None:
    """Take the answer of a replica; one that nobody waits for is dropped."""
    call = state.replica_calls.get(event.call)
    if call is None or call.pending.get(event.call) != event.replica:
        state.drop(() if event.value is None else (event.value,))
        return
    del state.replica_calls[event.call], call.pending[event.call]
    record = ControlRecord(event.replica.stage, event.replica.slot, event.error is None, event.value, error=event.error)
    _note(state, call, event.replica, record)
    replica = state.find_replica(event.replica)
    if event.error is None and replica is not None:
        _note_success(state, call, replica)
    _note_answer(state, call, event.replica.stage)


def attend(state: CoreState) -> None:
    """After an event: let calls hear of replicas that are gone, and of jobs that are over."""
    gone, state.gone = state.gone, []
    for replica, error in gone:
        for call in list(state.control_calls.values()):
            _forget_replica(state, call, replica, error)
    for call in [call for call in state.control_calls.values() if call.step is Step.DRAIN]:
        if not _undrained(state, call):
            _go_on(state, call)


def expire_control(state: CoreState, call: ControlCall) -> None:
    """Answer a call whose time is over: what has not confirmed is named."""
    for number, replica in list(call.pending.items()):
        del state.replica_calls[number]
        del call.pending[number]
        _note(state, call, replica, _failed(replica, silent(replica, _method_of(call))))
    if call.step is Step.DRAIN:
        for pool in _undrained(state, call):
            for key in pool.present() or [ReplicaKey(pool.stage.name, -1, 0)]:
                _note(state, call, key, _failed(key, undrained(pool, key)))
    _end_step(state, call)


def end_control(state: CoreState, error: ErrorRecord) -> None:
    """The engine goes down: every call is answered with `error`."""
    for call in list(state.control_calls.values()):
        _answer(state, call, error)


# Steps


def _steps_of(state: CoreState, event: ControlRequested) -> tuple[Step, ...]:
    operation = event.operation
    match operation:
        case CallMethod():
            return (Step.CALL,)
        case Pause():
            return _steps_to_quiet(state, event.stages, operation.mode)
        case Sleep():
            return (*_steps_to_quiet(state, event.stages, operation.mode), Step.SLEEP)
        case WakeUp():
            return (Step.WAKE,)
        case Resume():
            return (Step.RESUME,)
        case UpdateWeights():
            return (Step.UPDATE,)
        case RollBackUpdate():
            return () if operation.arguments is None else (Step.ROLL_BACK,)
        case BeginUpdate() | CommitUpdate():
            return ()
        case _:
            assert_never(operation)


def _steps_to_quiet(state: CoreState, stages: Iterable[str], mode: PauseMode) -> tuple[Step, ...]:
    if mode is PauseMode.KEEP:
        return (Step.QUIESCE,)
    if mode is PauseMode.WAIT and any(state.pools[stage].barrier.is_frozen for stage in stages):
        return (Step.THAW, Step.DRAIN, Step.QUIESCE)  # what stands still has to move to drain
    return (Step.DRAIN, Step.QUIESCE)


def _prepare(state: CoreState, call: ControlCall) -> None:
    """What an operation changes at once, before anybody has confirmed anything."""
    operation = call.operation
    match operation:
        case Pause() | Sleep():
            _close(state, call, operation.mode, operation.held)
        case BeginUpdate():
            for stage in call.stages:
                state.pools[stage].fence.begin(operation.version)
        case CommitUpdate():
            _commit(state, call.stages)
        case RollBackUpdate():
            if operation.arguments is None:
                for stage in call.stages:
                    state.pools[stage].fence.roll_back()
        case CallMethod() | WakeUp() | Resume() | UpdateWeights():
            pass
        case _:
            assert_never(operation)


def _go_on(state: CoreState, call: ControlCall) -> None:
    """Take the next steps, until one has to wait, or the call is done."""
    while call.steps:
        call.step = call.steps.pop(0)
        if call.step is Step.DRAIN:
            if _undrained(state, call):
                return
            continue
        for stage in call.stages:
            _begin_at(state, call, state.pools[stage])
        if call.pending:
            return
        _conclude_weights(state, call)
        if call.failures():
            break
    _answer(state, call, error_of(call))


def _begin_at(state: CoreState, call: ControlCall, pool: StagePool) -> None:
    """Begin the step at one stage: call its replicas, or note that there is nothing to do."""
    stage = pool.stage.name
    trigger = _TRIGGERS.get(call.step)
    if trigger is not None and not _concerns(call, pool):
        for replica in pool.replicas.values():
            if replica.key not in call.records:
                _note(state, call, replica.key, ControlRecord(stage, replica.key.slot, ok=True))
        return
    if trigger is not None:
        _advance(pool, trigger)
    arguments = _arguments_of(call, stage)
    method = _method_of(call)
    if not pool.replicas and call.step is Step.CALL:
        error = nobody_to_call(stage)
        _note(state, call, ReplicaKey(stage, -1, 0), ControlRecord(stage, None, ok=False, error=error))
    for replica in pool.replicas.values():
        number = state.next_call()
        call.pending[number] = replica.key
        state.replica_calls[number] = call
        if call.step in (Step.UPDATE, Step.ROLL_BACK):
            pool.fence.note_sent(replica.key)
        elif isinstance(call.operation, Sleep) and call.step is Step.SLEEP:
            replica.note_sleep_sent(call.operation.tags.get(stage, ()))
        state.effects.append(CallReplica(replica.key, number, method, arguments))
    if not pool.replicas:
        _conclude_stage(state, call, stage)


_TRIGGERS: Mapping[Step, BarrierTrigger] = {
    Step.THAW: BarrierTrigger.THAW,
    Step.QUIESCE: BarrierTrigger.PAUSE,
    Step.SLEEP: BarrierTrigger.SLEEP,
    Step.WAKE: BarrierTrigger.WAKE,
    Step.RESUME: BarrierTrigger.RESUME,
}


def _concerns(call: ControlCall, pool: StagePool) -> bool:
    """Whether the step changes anything at a stage: what sleeps is quiet, what works need not be resumed."""
    barrier = pool.barrier
    match call.step:
        case Step.SLEEP:
            return isinstance(call.operation, Sleep) and pool.stage.name in call.operation.tags
        case Step.THAW:
            return barrier.is_frozen and barrier.state not in SLEEPY
        case Step.QUIESCE:
            return barrier.state not in SLEEPY
        case Step.WAKE:
            return barrier.state in SLEEPY
        case _:
            return not barrier.is_open


def _method_of(call: ControlCall) -> str:
    operation = call.operation
    if isinstance(operation, CallMethod):
        return operation.method
    match call.step:
        case Step.THAW | Step.RESUME:
            return "resume"
        case Step.ROLL_BACK:
            return "update_weights"
        case _:
            return call.step.value


def _arguments_of(call: ControlCall, stage: str) -> Mapping[str, Payload]:
    operation = call.operation
    match operation:
        case CallMethod() | UpdateWeights():
            return operation.arguments
        case RollBackUpdate():
            return operation.arguments or {}
        case Sleep() if call.step is Step.SLEEP:
            return {"level": operation.level, "tags": operation.tags.get(stage, ())}
        case WakeUp():
            return {"tags": operation.tags.get(stage, ())}
        case Pause() | Sleep():
            return {"mode": operation.mode} if call.step is Step.QUIESCE else {}
        case _:
            return {}


# Answers


def _note_success(state: CoreState, call: ControlCall, replica: Replica) -> None:
    operation = call.operation
    stage = replica.key.stage
    if isinstance(operation, Sleep) and call.step is Step.SLEEP:
        replica.note_asleep(operation.tags.get(stage, ()))
    elif isinstance(operation, WakeUp):
        replica.note_awake(operation.tags.get(stage, ()))
    elif isinstance(operation, UpdateWeights):
        state.pools[stage].fence.note_updated(replica.key)


def _note_answer(state: CoreState, call: ControlCall, stage: str) -> None:
    """An answer came, or will not come any more: the stage may be done with the step, and so may be all of them."""
    if not call.waits_for(stage):
        _conclude_stage(state, call, stage)
    if not call.pending:
        _end_step(state, call)


def _end_step(state: CoreState, call: ControlCall) -> None:
    _conclude_weights(state, call)
    if call.failures():
        _answer(state, call, error_of(call))
    else:
        _go_on(state, call)


def _conclude_stage(state: CoreState, call: ControlCall, stage: str) -> None:
    """Move the barrier of a stage once each of its live replicas has confirmed; otherwise it stays where it is."""
    pool = state.pools[stage]
    if any(replica.key in call.records and not call.records[replica.key].ok for replica in pool.replicas.values()):
        return
    match call.step:
        case Step.THAW:
            _unfreeze(state, pool)
        case Step.QUIESCE:
            _advance(pool, BarrierTrigger.QUIESCE)
        case Step.SLEEP:
            _advance(pool, BarrierTrigger.FALL_ASLEEP)
        case Step.WAKE:
            is_partly = any(replica.may_sleep for replica in pool.replicas.values())
            _advance(pool, BarrierTrigger.WAKE_PARTLY if is_partly else BarrierTrigger.WAKE_UP)
        case Step.RESUME:
            _open(state, pool)
        case _:
            pass


def _note(state: CoreState, call: ControlCall, replica: ReplicaKey, record: ControlRecord) -> None:
    """Keep the answer of a replica; what it, or a former life in its slot, answered to a former step gives way."""
    for key in [key for key in call.records if key[:2] == replica[:2]]:
        former = call.records.pop(key)
        if former.value is not None:
            state.release((former.value,))
    call.records[replica] = record


def _forget_replica(state: CoreState, call: ControlCall, key: ReplicaKey, error: ErrorRecord | None) -> None:
    number = next((number for number, replica in call.pending.items() if replica == key), None)
    if number is not None:
        del state.replica_calls[number], call.pending[number]
        _note(state, call, key, _failed(key, lost(key, _method_of(call), error)))
        _note_answer(state, call, key.stage)


def _answer(state: CoreState, call: ControlCall, error: ErrorRecord | None) -> None:
    """Answer a call, once; whatever its replicas still say is dropped."""
    del state.control_calls[call.call]
    state.deadlines.clear(call)
    for number in call.pending:
        del state.replica_calls[number]
    call.pending.clear()
    for stage in call.stages:
        barrier = state.pools[stage].barrier
        if barrier.call is call:
            barrier.call = None
    records = sorted(call.records.items(), key=lambda item: (call.stages.index(item[0].stage), item[0].slot))
    state.effects.append(ReplyControl(call.call, tuple(record for _, record in records), error))


# Barriers


def _take_charge(state: CoreState, call: ControlCall) -> None:
    """One call at a time moves a stage: the later one takes over."""
    for stage in call.stages:
        barrier = state.pools[stage].barrier
        if barrier.call is not None:
            _answer(state, barrier.call, superseded(barrier.call, call, stage))
        barrier.call = call


def _advance(pool: StagePool, trigger: BarrierTrigger) -> None:
    """Move a stage's barrier, and with it whether jobs may start."""
    pool.barrier.advance(trigger)
    pool.is_frozen = not pool.barrier.lets_start


def _close(state: CoreState, call: ControlCall, mode: PauseMode, held: HoldPolicy) -> None:
    for stage in call.stages:
        pool = state.pools[stage]
        if pool.barrier.state in SLEEPY:
            continue
        state.gate.act(GateAction.HOLD if held is HoldPolicy.HOLD else GateAction.REFUSE, (stage,))
        was_frozen = pool.barrier.is_frozen
        pool.barrier.close(mode, state.now)
        pool.is_frozen = not pool.barrier.lets_start
        state.serve(pool)
        if pool.barrier.is_frozen and not was_frozen:
            for job in _own_waits(state, pool):
                state.wait(job, job.wait, state.limits.hold_timeout_s)
    if mode is PauseMode.ABORT:
        for request in _requests_at(state, call.stages):
            repeat_or_begin_abort(state, request)


def _open(state: CoreState, pool: StagePool) -> None:
    _advance(pool, BarrierTrigger.OPEN)
    _unfreeze(state, pool)
    state.gate.act(GateAction.OPEN, (pool.stage.name,))
    for request in list(state.held.values()):
        if state.gate.judge(request.plan.stages) is GateState.OPEN:
            _admit_held(state, request)


def _unfreeze(state: CoreState, pool: StagePool) -> None:
    """Let a stage's jobs go on: those that wait may start, and waits begin anew for those that stood still."""
    pool.barrier.is_frozen = pool.is_frozen = False
    state.serve(pool)
    for job in _own_waits(state, pool):
        job.last_output_at = state.now
        state.wait(job, job.wait, job.wait_limit_s())


def _own_waits(state: CoreState, pool: StagePool) -> list[Job]:
    """The jobs that wait for something that a stage which stands still does not bring."""
    return [
        job
        for request in state.requests.values()
        for job in request.jobs
        if (job.stage is pool.stage and job.wait in _OWN_WAITS)
        or (job.wait is Wait.BUNDLE and job.sample.needs(pool.stage))
    ]


_OWN_WAITS = frozenset({Wait.QUEUE, Wait.DISPATCH, Wait.FIRST_OUTPUT, Wait.CHUNK, Wait.INPUT})
"""The waits for which a stage that stands still is no fault."""


def _admit_held(state: CoreState, request: Request) -> None:
    del state.held[request.id]
    state.deadlines.clear(request)
    if request.deadline is not None:
        state.deadlines.set(request, request.deadline)
    activate(state, request)


def _requests_at(state: CoreState, stages: Iterable[str]) -> list[Request]:
    """The admitted requests that still need one of the stages."""
    names = frozenset(stages)
    return [
        request
        for request in state.requests.values()
        if request.id not in state.held and any(job.stage.name in names and job.is_of_use for job in request.jobs)
    ]


def _undrained(state: CoreState, call: ControlCall) -> list[StagePool]:
    """The stages that are not done with what was admitted; what sleeps with frozen jobs needs not be."""
    is_abort = isinstance(call.operation, Pause | Sleep) and call.operation.mode is PauseMode.ABORT
    pools = [state.pools[stage] for stage in call.stages]
    return [pool for pool in pools if (is_abort or pool.barrier.state not in SLEEPY) and _is_busy(state, pool)]


def _is_busy(state: CoreState, pool: StagePool) -> bool:
    """Whether a replica has a job of the stage, or will get one that was admitted."""
    if any(replica.jobs for replica in pool.replicas.values()):
        return True
    blocker = pool.barrier.blocker
    if blocker is not None and not blocker.is_over and not blocker.request.is_over:
        return True
    pool.barrier.blocker = _first_job_at(state, pool)
    return pool.barrier.blocker is not None


def _first_job_at(state: CoreState, pool: StagePool) -> Job | None:
    for request in state.requests.values():
        if request.id not in state.held:
            for job in request.jobs:
                if job.stage is pool.stage and not job.is_over:
                    return job
    return None


# Weights


def _commit(state: CoreState, stages: Iterable[str]) -> None:
    for stage in stages:
        pool = state.pools[stage]
        pool.fence.commit()
        pool.note_version()
        state.serve(pool)


def _conclude_weights(state: CoreState, call: ControlCall) -> None:
    """Weights changed everywhere, or nobody knows what they are: over all stages of the call at once."""
    if call.step not in (Step.UPDATE, Step.ROLL_BACK):
        return
    has_failed = bool(call.failures())
    for stage in call.stages:
        fence = state.pools[stage].fence
        if has_failed:
            fence.fail()
        elif call.step is Step.ROLL_BACK:
            fence.roll_back()


def _failed(replica: ReplicaKey, error: ErrorRecord) -> ControlRecord:
    return ControlRecord(replica.stage, None if replica.slot < 0 else replica.slot, ok=False, error=error)
