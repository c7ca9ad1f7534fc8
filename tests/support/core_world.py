"""A small world around the core: stages in one line, a clock, replicas that do what a test says, effects as text.

`World` tells the core what happened and keeps what it answered. `Replicas` answers effects as replicas would, well or
badly, in an order drawn from a seed. Neither checks anything: that is for tests, and for `podium.testing.model`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from podium.core.admission import EngineLimits
from podium.core.effects import (
    CallReplica,
    CloseReplica,
    Effect,
    EmitOutput,
    EndInput,
    EndRequest,
    FeedJob,
    RefuseRequest,
    ReleasePayloads,
    ReplyAbort,
    ReplyControl,
    SourceInput,
    StartJob,
    StopJob,
)
from podium.core.events import (
    AbortRequested,
    AckLevel,
    CallReturned,
    ControlRequested,
    Event,
    Finish,
    FinishReason,
    InputAppended,
    JobOutput,
    ReplicaDrained,
    ReplicaJoined,
    ReplicaLost,
    RequestCancelled,
    RequestSubmitted,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.graph import Balance, EdgeMode, EmptyPolicy, Graph, Limits, Modality, Source, Stage, StageKind
from podium.core.identity import MAIN, JobKey, Payload, ReplicaKey
from podium.core.lifecycle import GateAction
from podium.core.operations import HoldPolicy, Operation, Pause, PauseMode, Resume
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind, ErrorRecord, Scope


def streaming(stage: str) -> Source:
    """An edge that passes chunks on as they come."""
    return Source(stage, EdgeMode.STREAMING)


def complete(stage: str) -> Source:
    """An edge that passes everything on at the end."""
    return Source(stage, EdgeMode.COMPLETE)


def on_label(stage: str, label: str) -> Source:
    """An edge that is taken only if its source finishes with that label."""
    return Source(stage, EdgeMode.COMPLETE, label)


def make_stage(
    name: str,
    *sources: Source,
    output: str | None = None,
    on_empty: EmptyPolicy = EmptyPolicy.COMPLETE,
    prewarm: bool = False,
    rerun: bool = False,
    joins: bool = False,
    labels: tuple[str, ...] = (),
    balance: Balance = Balance.LEAST_LOADED,
    limits: Limits | None = None,
) -> Stage:
    """A stage; with `output` it is final."""
    return Stage(
        name=name,
        kind=StageKind.FUNCTION,
        produces=Modality.TEXT,
        sources=sources,
        output=output,
        on_empty=on_empty,
        prewarm=prewarm,
        rerun=rerun,
        joins=joins,
        labels=labels,
        balance=balance,
        limits=limits or Limits(),
    )


def voice(*, limits: Limits | None = None) -> tuple[Stage, Stage]:
    """The pipeline of two final stages with a streaming edge: `a` makes text, `b` speech of it."""
    return make_stage("a", output="text", limits=limits), make_stage(
        "b", streaming("a"), output="speech", limits=limits
    )


def guided(*, limits: Limits | None = None, rerun: bool = False) -> tuple[Stage, Stage, Stage]:
    """The pipeline of guided diffusion: `a` and `t` make conditions of a prompt, `b` joins those of all companions."""
    return (
        make_stage("a", limits=limits, rerun=rerun),
        make_stage("t", streaming("a"), limits=limits),
        make_stage("b", complete("a"), complete("t"), output="image", joins=True, limits=limits),
    )


def chain(edge: EdgeMode, length: int = 3) -> tuple[Stage, ...]:
    """Stages `a`, `b`, `c` … one after the other; only the last is final."""
    names = [chr(ord("a") + index) for index in range(length)]
    return tuple(
        make_stage(
            name, *(Source(before, edge) for before in names[:index][-1:]), output="out" if name == names[-1] else None
        )
        for index, name in enumerate(names)
    )


def an_error(message: str = "it broke", kind: ErrorKind = ErrorKind.STAGE_FAILED) -> ErrorRecord:
    """An error of one request at a stage."""
    return ErrorRecord(kind=kind, scope=Scope.REQUEST, message=message)


def a_loss() -> ErrorRecord:
    """The error that comes with the loss of a replica."""
    return ErrorRecord(kind=ErrorKind.REPLICA_LOST, scope=Scope.REPLICA, message="the replica is gone")


class World:
    """One core with its clock and its replicas. `events` is all it was told, `effects` all it answered."""

    def __init__(self, *stages: Stage, limits: EngineLimits | None = None, replicas: int = 1) -> None:
        self.core = Orchestrator(Graph(stages), limits)
        self.now = 0.0
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        self.tickets: dict[str, int] = {}
        self.produced: dict[JobKey, int] = {}
        self._calls = 0
        self._controls = 0
        self._submitted = 0
        for stage in stages:
            for slot in range(replicas):
                self.join(stage.name, slot)

    def tell(self, *events: Event) -> list[Effect]:
        """Take one step with `events`, now."""
        self.events += events
        effects = self.core.step(events, self.now)
        self.effects += effects
        return effects

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, with nothing happening meanwhile but what is due."""
        self.now += seconds
        return self.tell()

    # Callers

    def submit(
        self,
        request_id: str = "r",
        *,
        prompt: Payload = None,
        params: Mapping[str, Payload] | None = None,
        outputs: tuple[str, ...] | None = None,
        priority: int = 0,
        deadline: float | None = None,
        input_open: bool = False,
        samples: int = 1,
        companions: Mapping[str, Payload] | None = None,
        group: str | None = None,
        affinity: str | None = None,
    ) -> list[Effect]:
        """Submit a request, with a ticket of its own."""
        self._submitted += 1
        self.tickets[request_id] = self._submitted
        return self.tell(
            RequestSubmitted(
                ticket=self._submitted,
                request_id=request_id,
                prompt=prompt,
                params=params or {},
                outputs=outputs,
                priority=priority,
                deadline=deadline,
                input_open=input_open,
                samples=samples,
                companions=companions or {},
                group=group,
                affinity=affinity,
            )
        )

    def append(self, *payloads: Payload, request_id: str = "r", last: bool = False) -> list[Effect]:
        """Continue the prompt of a request."""
        return self.tell(InputAppended(self.tickets[request_id], request_id, payloads, last))

    def cancel(self, request_id: str = "r") -> list[Effect]:
        """Let the client of a request go away."""
        return self.tell(RequestCancelled(self.tickets[request_id], request_id))

    def abort(
        self,
        *request_ids: str,
        level: AckLevel = AckLevel.STOPPED,
        timeout_s: float = 30.0,
        samples: tuple[int, ...] = (),
        groups: tuple[str, ...] = (),
    ) -> list[Effect]:
        """Abort requests, or samples of them; calls are numbered from 1."""
        self._calls += 1
        return self.tell(AbortRequested(self._calls, request_ids, level, self.now + timeout_s, samples, groups))

    def abort_all(self, timeout_s: float = 30.0) -> list[Effect]:
        """Abort every live request."""
        self._calls += 1
        return self.tell(AbortRequested(self._calls, None, AckLevel.STOPPED, self.now + timeout_s))

    def control(self, operation: Operation, *stages: str, timeout_s: float = 30.0) -> list[Effect]:
        """Want something of `stages`, or of all; calls are numbered from 1."""
        self._controls += 1
        names = stages or tuple(self.core.graph.stages)
        return self.tell(ControlRequested(self._controls, operation, names, self.now + timeout_s))

    def calls(self, stage: str | None = None) -> list[CallReplica]:
        """The calls that no replica has answered yet, of one stage or of all."""
        calls = [effect for effect in self.effects if isinstance(effect, CallReplica)]
        answered = {event.call for event in self.events if isinstance(event, CallReturned)}
        return [call for call in calls if call.call not in answered and stage in (None, call.replica.stage)]

    def answer(self, call: CallReplica, value: Payload = None, error: ErrorRecord | None = None) -> list[Effect]:
        """Let a replica answer a call."""
        return self.tell(CallReturned(call.replica, call.call, value, error))

    def answer_all(self, stage: str | None = None) -> list[Effect]:
        """Let replicas answer every call with success, and those that follow from that."""
        effects: list[Effect] = []
        while calls := self.calls(stage):
            effects += self.answer(calls[0])
        return effects

    def gate(self, action: GateAction, *stages: str) -> list[Effect]:
        """Pause or resume stages whose replicas confirm at once; returns what came of it besides."""
        held = HoldPolicy.REFUSE if action is GateAction.REFUSE else HoldPolicy.HOLD
        operation = Resume() if action is GateAction.OPEN else Pause(PauseMode.KEEP, held)
        effects = self.control(operation, *stages) + self.answer_all()
        return [effect for effect in effects if not isinstance(effect, CallReplica | ReplyControl)]

    # Jobs. `sibling` None is the newest of the request at that stage.

    def at(self, stage: str, request_id: str = "r", sibling: str | None = None) -> StartJob:
        """The newest start of the job of `request_id` at `stage`."""
        for effect in reversed(self.effects):
            if (
                isinstance(effect, StartJob)
                and effect.job[:2] == (request_id, stage)
                and sibling in {None, effect.job.sibling}
            ):
                return effect
        raise AssertionError(f"{request_id} never started at {stage} for {sibling or 'anybody'}")

    def start(self, stage: str, request_id: str = "r", sibling: str | None = None) -> list[Effect]:
        """Let the replica confirm the start."""
        job = self.at(stage, request_id, sibling)
        return self.tell(StageStarted(job.replica, job.job))

    def produce(
        self,
        stage: str,
        *payloads: Payload,
        request_id: str = "r",
        sibling: str | None = None,
        sequence: int | None = None,
        finish: FinishReason | None = None,
        label: str | None = None,
    ) -> list[Effect]:
        """Let a job deliver chunks, the next ones unless `sequence` says otherwise, and perhaps its finish."""
        start = self.at(stage, request_id, sibling)
        first = self.produced.get(start.job, 0) if sequence is None else sequence
        self.produced[start.job] = max(self.produced.get(start.job, 0), first + len(payloads))
        output = JobOutput(start.job, first, payloads, None if finish is None else Finish(finish, label=label))
        return self.tell(StageProduced(start.replica, (output,)))

    def finish(
        self,
        stage: str,
        *payloads: Payload,
        request_id: str = "r",
        sibling: str | None = None,
        reason: FinishReason = FinishReason.STOP,
        label: str | None = None,
    ) -> list[Effect]:
        """Let a job deliver its last chunks and its finish."""
        return self.produce(stage, *payloads, request_id=request_id, sibling=sibling, finish=reason, label=label)

    def stopped(
        self, stage: str, partial: Payload = None, request_id: str = "r", sibling: str | None = None
    ) -> list[Effect]:
        """Let the replica confirm a stop."""
        job = self.at(stage, request_id, sibling)
        return self.tell(StageStopped(job.replica, job.job, partial))

    def stop_failed(self, stage: str, request_id: str = "r", sibling: str | None = None) -> list[Effect]:
        """Let the replica report that it could not stop a job."""
        job = self.at(stage, request_id, sibling)
        return self.tell(StopFailed(job.replica, job.job, an_error("the stop failed")))

    def fail(self, stage: str, request_id: str = "r", sibling: str | None = None) -> list[Effect]:
        """Let a job fail."""
        job = self.at(stage, request_id, sibling)
        return self.tell(StageFailed(job.replica, job.job, an_error()))

    # Replicas

    def join(self, stage: str, slot: int = 0, generation: int = 0) -> list[Effect]:
        """Let a replica join."""
        return self.tell(ReplicaJoined(ReplicaKey(stage, slot, generation)))

    def drain(self, stage: str, slot: int = 0, generation: int = 0, *, succeeded: bool = False) -> list[Effect]:
        """Let a replica take no new work; with `succeeded` the next generation is to take its slot."""
        successor = ReplicaKey(stage, slot, generation + 1) if succeeded else None
        return self.tell(ReplicaDrained(ReplicaKey(stage, slot, generation), successor))

    def lose(self, stage: str, slot: int = 0, generation: int = 0) -> list[Effect]:
        """Let a replica die."""
        return self.tell(ReplicaLost(ReplicaKey(stage, slot, generation), a_loss()))

    # What came of it

    def emitted(self, request_id: str = "r", stage: str | None = None) -> list[Payload]:
        """Every payload that the newest request of that id delivered, of one stage or of all."""
        return [
            payload
            for effect in self.effects
            if isinstance(effect, EmitOutput) and effect.ticket == self.tickets[request_id]
            if stage is None or effect.stage == stage
            for payload in effect.payloads
        ]

    def terminals(self, request_id: str = "r") -> list[EndRequest]:
        """Every terminal of the newest request of that id."""
        return [
            effect
            for effect in self.effects
            if isinstance(effect, EndRequest) and effect.ticket == self.tickets[request_id]
        ]

    def released(self) -> list[Payload]:
        """Every payload that was released, in order."""
        return [
            payload for effect in self.effects if isinstance(effect, ReleasePayloads) for payload in effect.payloads
        ]


class Replicas:
    """Answers every effect of a world as replicas would: they start jobs, make chunks once the input is there, finish.

    A chunk reads `request.stage.number`. With `faults` deliveries are repeated, merged and reordered. Replicas in
    `silent` never answer. `seed` draws the order of the answers.
    """

    def __init__(
        self, world: World, *, chunks: int = 2, seed: int = 0, faults: bool = False, silent: Iterable[ReplicaKey] = ()
    ) -> None:
        self.world = world
        self.silent = set(silent)
        self._chunks = chunks
        self._faults = faults
        self._random = random.Random(seed)
        self._seen = 0
        self._answers: list[list[Event]] = []
        self._open_inputs: dict[JobKey, set[str]] = {}

    def run(self, events: int | None = None) -> int:
        """Tell the core up to so many events, or all there are until nothing is left to say; returns how many."""
        told = 0
        self._read()
        while self._answers and told != events:
            answers = self._answers[self._random.randrange(len(self._answers))]
            self.world.tell(answers.pop(0))
            told += 1
            if not answers:
                self._answers = [one for one in self._answers if one]
            self._read()
        return told

    def _read(self) -> None:
        fresh, self._seen = self.world.effects[self._seen :], len(self.world.effects)
        for effect in fresh:
            match effect:
                case StartJob(replica=replica, job=job, inputs=inputs):
                    self._open_inputs[job] = {one.source for one in inputs if one.finish is None}
                    self._say(replica, [StageStarted(replica, job)])
                    self._work(replica, job)
                case EndInput(replica=replica, job=job, source=source):
                    self._open_inputs[job].discard(source)
                    self._work(replica, job)
                case StopJob(replica=replica, job=job):
                    self._say(replica, [StageStopped(replica, job, f"{job.request}.{job.stage}.partial")])
                case CallReplica(replica=replica, call=call):
                    self._say(replica, [CallReturned(replica, call)])
                case _:
                    pass

    def _say(self, replica: ReplicaKey, answers: list[Event]) -> None:
        if replica not in self.silent and answers:
            self._answers.append(answers)

    def _work(self, replica: ReplicaKey, job: JobKey) -> None:
        if self._open_inputs[job]:
            return
        outputs = [JobOutput(job, number, (chunk_of(job, number),)) for number in range(self._chunks)]
        outputs.append(JobOutput(job, self._chunks, (), Finish(FinishReason.STOP)))
        if self._faults:
            outputs.insert(0, JobOutput(job, 0, tuple(chunk_of(job, number) for number in range(self._chunks - 1))))
            last = outputs.pop()
            self._random.shuffle(outputs)
            outputs.append(last)
        self._say(replica, [StageProduced(replica, (output,)) for output in outputs])


def chunk_of(job: JobKey, number: int) -> str:
    """What `Replicas` make: each chunk is like no other."""
    return (
        f"{job.request}.{job.stage}.{number}"
        if job.sibling == MAIN
        else f"{job.request}.{job.stage}.{job.sibling}.{number}"
    )


def lines(effects: Sequence[Effect]) -> list[str]:
    """Each effect as one line of text, for tests to compare and for people to read."""
    return [line(effect) for effect in effects]


def line(effect: Effect) -> str:  # noqa: C901, PLR0911 - one row for each effect
    """One effect as text."""
    match effect:
        case StartJob():
            given = "".join(f" {_source(one)}={_join(one.payloads)}{_ended(one.finish)}" for one in effect.inputs)
            return f"start {_name(effect.job)} on {effect.replica}{given}{' open' if effect.input_open else ''}"
        case FeedJob():
            return f"feed {_name(effect.job)} {effect.source}@{effect.sequence}={_join(effect.payloads)}"
        case EndInput():
            return f"end input {_name(effect.job)} {effect.source} {effect.reason}"
        case StopJob():
            return f"stop {_name(effect.job)}"
        case EmitOutput():
            finish = "" if effect.finish is None else f" {effect.finish.reason}"
            partial = "" if effect.partial is None else f" partial={effect.partial}"
            last = " last" if effect.request_finished else ""
            index = f"[{effect.index}]" if effect.index else ""
            return f"emit {effect.stage}{index}@{effect.sequence}={_join(effect.payloads)}{finish}{partial}{last}"
        case EndRequest():
            error = "" if effect.error is None else f" {effect.error.kind}"
            return f"end {effect.request_id} {effect.outcome}{error}"
        case RefuseRequest():
            return f"refuse {effect.request_id} {effect.error.kind}"
        case ReplyAbort():
            return f"reply {effect.call}: {', '.join(f'{one.request_id} {one.status}' for one in effect.records)}"
        case CallReplica():
            given = "".join(f" {name}={value}" for name, value in effect.arguments.items())
            return f"call {effect.replica} {effect.method}{given}"
        case ReplyControl():
            records = [f"{one.stage}[{one.replica}] {'ok' if one.ok else _kind(one.error)}" for one in effect.records]
            error = "" if effect.error is None else f" {effect.error.kind}"
            return f"answer {effect.call}{error}: {', '.join(records)}"
        case CloseReplica():
            return f"close {effect.replica}"
        case ReleasePayloads():
            return f"release {_join(effect.payloads)}"


def _name(job: JobKey) -> str:
    return f"{job.request}/{job.stage}" + ("" if job.sibling == MAIN else f"/{job.sibling}")


def _source(one: SourceInput) -> str:
    return one.source if one.role == MAIN else f"{one.source}.{one.role}"


def _kind(error: ErrorRecord | None) -> str:
    return "failed" if error is None else error.kind


def _join(payloads: tuple[Payload, ...]) -> str:
    return ",".join(str(payload) for payload in payloads)


def _ended(finish: FinishReason | None) -> str:
    return "" if finish is None else f" {finish}"
