"""The whole core under random events: `podium.testing.model_waits.TimedModel` judges each step from outside.

A second core gets the same events in batches, by `step` instead of `handle`, and must give the same effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from podium.core.admission import EngineLimits
from podium.core.effects import CallReplica, Effect, StartJob
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
from podium.core.graph import Balance, EdgeMode, EmptyPolicy, Graph, Limits, Source, Stage, upstream_of
from podium.core.identity import MAIN, ReplicaKey
from podium.core.lifecycle import ReplicaState
from podium.core.operations import (
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    HoldPolicy,
    Operation,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind
from podium.testing.model_records import JobModel, TicketModel
from podium.testing.model_waits import TimedModel
from tests.support.core_world import a_loss, an_error, make_stage

T = TypeVar("T")

IDS = ("r0", "r1", "r2")
LABELS = ("x", "y")
STEPS_UNTIL_QUIET = 400
"""Far more deadlines than any run can leave behind."""

index = st.integers(0, 11)
few = st.integers(0, 2)


class Handle:
    """A payload: equal to nothing but itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@dataclass
class Producer:
    """What one replica has to tell of one job: numbered chunks, and where they end once that is decided."""

    start: StartJob
    end: int | None = None
    reason: FinishReason = FinishReason.STOP
    told: set[int] = field(default_factory=set)
    label: str | None = None

    @property
    def gap(self) -> set[int]:
        """The chunks that are missing before the last that was told."""
        return set(range(max(self.told, default=0))) - self.told

    @property
    def finish(self) -> Finish:
        """How it ends."""
        return Finish(self.reason, label=self.label)

    def output(self, offset: int, count: int, finish: FinishReason | None) -> JobOutput:
        """A run of chunks from `offset` beyond what was told so far on; a finish only where it fits."""
        first = max(0, len(self.told) + offset)
        if self.end is not None:
            first = min(first, self.end)
            count = min(count, self.end - first)
        chunks = tuple(Handle(f"{self.start.job}:{number}") for number in range(first, first + count))
        self.told.update(range(first, first + count))
        stop = first + count
        if finish is not None and self.end is None and stop > max(self.told, default=-1):
            self.end, self.reason = stop, finish
        return JobOutput(self.start.job, first, chunks, self.finish if stop == self.end else None)


@st.composite
def stage_limits(draw: st.DrawFn) -> Limits:
    return Limits(
        max_inflight=draw(st.integers(1, 2)),
        max_queued=draw(st.sampled_from([1, 2, 3, 8])),
        max_buffered_chunks=draw(st.integers(2, 4)),
        queue_timeout_s=8.0,
        dispatch_timeout_s=3.0,
        first_output_timeout_s=5.0,
        chunk_timeout_s=4.0,
        bundle_timeout_s=draw(st.sampled_from([1.5, 9.0])),
        stop_timeout_s=2.0,
        stuck_timeout_s=6.0,
    )


@st.composite
def edges(draw: st.DrawFn, source: str) -> Source:
    mode = draw(st.sampled_from(EdgeMode))
    return Source(source, mode, draw(st.sampled_from([None, None, *LABELS])) if mode is EdgeMode.COMPLETE else None)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Stage, ...]:
    """Up to four stages: chains, fan-out, fan-in, with both kinds of edges, and stages that join companions; whatever
    has no consumer is final.
    """
    names = "abcd"[: draw(st.sampled_from([1, 2, 2, 3, 3, 4]))]
    sources: dict[str, list[Source]] = {}
    for position, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:position]), max_size=2, unique=True)) if position else []
        sources[name] = [draw(edges(one)) for one in before]
    joining: set[str] = set()
    for name in names:
        if sources[name] and not upstream_of({name}, edges_of(sources)) & joining and draw(st.booleans()):
            joining.add(name)
            sources[name] = [Source(one.stage, when=one.when) for one in sources[name]]
    conditions = {source.stage for several in sources.values() for source in several if source.when is not None}
    consumed = {source.stage for several in sources.values() for source in several}
    return tuple(
        make_stage(
            name,
            *sources[name],
            output=f"out-{name}" if name not in consumed or name in conditions or draw(st.booleans()) else None,
            on_empty=draw(st.sampled_from(EmptyPolicy)),
            prewarm=name not in joining and not conditions and draw(st.booleans()),
            rerun=draw(st.booleans()),
            joins=name in joining,
            labels=LABELS if name in conditions else (),
            balance=draw(st.sampled_from(Balance)),
            limits=draw(stage_limits()),
        )
        for name in names
    )


def edges_of(sources: dict[str, list[Source]]) -> dict[str, list[str]]:
    return {name: [source.stage for source in several] for name, several in sources.items()}


class CoreMachine(RuleBasedStateMachine):
    """Callers, replicas and time, all of them unreasonable."""

    is_broken = True

    @initialize(pipeline=pipelines(), replicas=st.integers(1, 3), max_requests=st.integers(2, 3))
    def build(self, pipeline: tuple[Stage, ...], replicas: int, max_requests: int) -> None:
        limits = EngineLimits(max_requests=max_requests, hold_timeout_s=7.0, max_remembered=2, max_siblings=6)
        graph = Graph(pipeline)
        self.core, self.twin = Orchestrator(graph, limits), Orchestrator(graph, limits)
        self.model = TimedModel(graph.stages, limits)
        self.stages = list(graph.stages)
        self.outputs = list(graph.outputs)
        self.now = 0.0
        self.tickets: list[RequestSubmitted] = []
        self.producers: list[Producer] = []
        self.replicas: list[ReplicaKey] = []
        self.history: list[Event] = []
        self.calls = 0
        self.batch: list[Event] | None = None
        for name in self.stages:
            for slot in range(replicas):
                self.bring_up(ReplicaKey(name, slot, 0))

    # How events reach the cores

    def tell(self, *events: Event) -> None:
        if self.batch is None:
            self.flush(events)
            return
        self.batch += events
        if len(self.batch) > 3:
            self.end_batch()

    def flush(self, events: Sequence[Event]) -> None:
        told: list[Effect] = []
        self.is_broken = True
        for event in events:
            effects = self.core.handle(event, self.now)
            self.look(event, effects)
            told += effects
        effects = self.core.expire(self.now)
        self.look(None, effects)
        told += effects
        assert self.twin.step(events, self.now) == told, "a batch has other effects than its events one by one"
        deadline = self.core.next_deadline()
        assert deadline == self.twin.next_deadline()
        assert deadline is None or deadline > self.now, "something is overdue after a step"
        self.history += events
        self.is_broken = False

    def look(self, event: Event | None, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartJob):
                said = pick((None, *LABELS, *LABELS, *LABELS), effect.job.attempt)
                self.producers.append(Producer(effect, label=said))
        self.model.observe(event, effects, self.now, self.core.statistics())

    @precondition(lambda self: self.batch is None)
    @rule()
    def begin_batch(self) -> None:
        self.batch = []

    def end_batch(self) -> None:
        events, self.batch = self.batch or [], None
        self.flush(events)

    # Callers

    def joining(self) -> list[str]:
        """The stages that join companions."""
        return [stage.name for stage in self.core.graph.stages.values() if stage.joins]

    @rule(name=st.sampled_from(IDS), priority=few, input_open=st.booleans())
    def submit(self, name: str, priority: int, input_open: bool) -> None:
        self.submit_anything(name, None, priority, None, input_open)

    @rule(
        name=st.sampled_from(IDS),
        priority=few,
        input_open=st.booleans(),
        samples=st.integers(1, 3),
        roles=st.lists(st.sampled_from(["negative", "style"]), max_size=2, unique=True),
    )
    def submit_siblings(self, name: str, priority: int, input_open: bool, samples: int, roles: list[str]) -> None:
        self.submit_anything(name, None, priority, None, input_open, samples, roles if self.joining() else [])

    @precondition(lambda self: self.joining())
    @rule(
        name=st.sampled_from(IDS),
        samples=st.integers(1, 2),
        roles=st.sampled_from([["negative"], ["style"], ["negative", "style"]]),
    )
    def submit_companions(self, name: str, samples: int, roles: list[str]) -> None:
        self.submit_anything(name, None, 0, None, False, samples, roles)

    @rule(
        name=st.sampled_from(IDS),
        outputs=st.none() | st.lists(index, max_size=2),
        priority=few,
        deadline=st.none() | st.integers(1, 10),
        input_open=st.booleans(),
        samples=st.sampled_from([1, 1, 2, 0]),
        roles=st.lists(st.sampled_from(["negative", "style"]), max_size=2, unique=True),
    )
    def submit_anything(  # noqa: PLR0917 - Hypothesis draws them all
        self,
        name: str,
        outputs: list[int] | None,
        priority: int,
        deadline: int | None,
        input_open: bool,
        samples: int = 1,
        roles: Sequence[str] = (),
    ) -> None:
        event = RequestSubmitted(
            ticket=len(self.tickets) + 1,
            request_id=name,
            prompt=Handle(f"prompt-{len(self.tickets) + 1}"),
            params={"a": "a's"},
            outputs=None if outputs is None else tuple(pick([*self.outputs, "none"], one) for one in outputs),
            priority=priority,
            deadline=None if deadline is None else self.now + deadline,
            input_open=input_open,
            samples=samples,
            companions={role: Handle(f"{role}-{len(self.tickets) + 1}") for role in roles},
            group=f"group-{priority}" if priority else None,
        )
        self.tickets.append(event)
        self.tell(event)

    @precondition(lambda self: self.tickets)
    @rule(which=index, count=few, last=st.booleans())
    def append_input(self, which: int, count: int, last: bool) -> None:
        reading = [ticket.event for ticket in self.model.open_tickets() if ticket.event.input_open]
        ticket = pick(reading or self.tickets, which)
        chunks = tuple(Handle(f"input-{ticket.ticket}") for _ in range(count))
        self.tell(InputAppended(ticket.ticket, ticket.request_id, chunks, last))

    @precondition(lambda self: self.tickets)
    @rule(which=index)
    def cancel(self, which: int) -> None:
        ticket = pick(self.tickets, which)
        self.tell(RequestCancelled(ticket.ticket, ticket.request_id))

    @rule(
        ids=st.lists(st.sampled_from((*IDS, "unknown")), max_size=3),
        level=st.sampled_from(AckLevel),
        timeout_s=st.sampled_from([1, 1, 4]),
    )
    def abort(self, ids: list[str], level: AckLevel, timeout_s: int) -> None:
        self.calls += 1
        self.tell(AbortRequested(self.calls, tuple(ids), level, self.now + timeout_s))

    @precondition(lambda self: any(one.event.samples > 1 for one in self.model.open_tickets()))
    @rule(
        which=index,
        samples=st.lists(st.integers(0, 2), min_size=1, max_size=2),
        level=st.sampled_from(AckLevel),
        timeout_s=st.sampled_from([1, 4]),
    )
    def abort_samples(self, which: int, samples: list[int], level: AckLevel, timeout_s: int) -> None:
        request_id = pick([one for one in self.model.open_tickets() if one.event.samples > 1], which).event.request_id
        self.calls += 1
        self.tell(AbortRequested(self.calls, (request_id,), level, self.now + timeout_s, tuple(samples)))

    @rule(really=st.integers(0, 9), group=few)
    def abort_many(self, really: int, group: int) -> None:
        if really > 6:
            self.calls += 1
            ids = None if really == 9 else ()
            groups = () if really == 9 else (f"group-{group}",)
            self.tell(AbortRequested(self.calls, ids, AckLevel.STOPPED, self.now + 2, groups=groups))

    # Control of the engine

    @rule(
        mode=st.sampled_from(PauseMode),
        held=st.sampled_from([HoldPolicy.HOLD, HoldPolicy.HOLD, HoldPolicy.REFUSE]),
        which=st.lists(index, max_size=2),
    )
    def pause(self, mode: PauseMode, held: HoldPolicy, which: list[int]) -> None:
        self.control(Pause(mode, held), which)

    @precondition(lambda self: self.families())
    @rule(mode=st.sampled_from(PauseMode), which=index, where=index)
    def pause_in_their_way(self, mode: PauseMode, which: int, where: int) -> None:
        """Samples and companions meet a stage that is closed."""
        self.pause_one(mode, pick(pick(self.families(), which).needed, where))

    @precondition(lambda self: self.model.bundles)
    @rule(mode=st.sampled_from([PauseMode.KEEP, PauseMode.KEEP, PauseMode.ABORT]), which=index, where=index)
    def pause_before_a_bundle(self, mode: PauseMode, which: int, where: int) -> None:
        """A bundle waits for companions that stand still, or for others than those."""
        waits = list(self.model.bundles.values())
        self.pause_one(mode, pick([*sorted(pick(waits, which).stages), *self.stages], where))

    def pause_one(self, mode: PauseMode, stage: str) -> None:
        self.calls += 1
        self.tell(ControlRequested(self.calls, Pause(mode), (stage,), self.now + 3))

    def families(self) -> list[TicketModel]:
        """The requests that have siblings."""
        return [one for one in self.model.open_tickets() if len(one.siblings) > 1]

    @precondition(lambda self: self.closed())
    @rule(which=st.lists(index, max_size=1))
    def resume(self, which: list[int]) -> None:
        self.control(Resume(), which)

    @precondition(lambda self: self.closed())
    @rule(mode=st.sampled_from(PauseMode), which=st.lists(index, max_size=2), tags=st.sampled_from(["kv", "kv w"]))
    def put_to_sleep(self, mode: PauseMode, which: list[int], tags: str) -> None:
        self.control(Sleep(1, {stage: tuple(tags.split()) for stage in self.stages[:2]}, mode), which)

    @precondition(lambda self: self.closed())
    @rule(which=st.lists(index, max_size=2), tags=st.sampled_from(["kv", "kv w"]))
    def wake_up(self, which: list[int], tags: str) -> None:
        self.control(WakeUp(dict.fromkeys(self.stages, tuple(tags.split()))), which)

    @precondition(lambda self: self.closed())
    @rule(
        operation=st.sampled_from(
            [BeginUpdate(1), BeginUpdate(2), UpdateWeights(), CommitUpdate(), RollBackUpdate(), RollBackUpdate({})]
        ),
        which=st.lists(index, max_size=2),
    )
    def change_weights(self, operation: Operation, which: list[int]) -> None:
        self.control(operation, which)

    @rule(which=st.lists(index, max_size=2))
    def call_method(self, which: list[int]) -> None:
        self.control(CallMethod("reset", {"x": 1}), which)

    def control(self, operation: Operation, which: list[int]) -> None:
        self.calls += 1
        known = [*self.stages, "unknown"] if which == [0, 0] else self.stages
        stages = tuple(dict.fromkeys(pick(known, one) for one in which)) or tuple(self.stages)
        self.tell(ControlRequested(self.calls, operation, stages, self.now + 3))

    def closed(self) -> list[str]:
        """The stages that do not work."""
        return [stage for stage in self.stages if not self.model.control.is_open(stage)]

    def unanswered(self) -> list[CallReplica]:
        """The calls that replicas have still to answer."""
        return [sent for call in self.model.control.calls.values() for sent in call.pending.values()]

    @precondition(lambda self: self.unanswered())
    @rule(which=index, is_well=st.sampled_from([True, True, True, False]), has_value=st.booleans())
    def answer_call(self, which: int, is_well: bool, has_value: bool) -> None:
        call = pick(self.unanswered(), which)
        value = Handle(f"value of {call.call}") if has_value and is_well else None
        self.tell(CallReturned(call.replica, call.call, value, None if is_well else an_error("the call failed")))

    @precondition(lambda self: self.unanswered())
    @rule()
    def answer_every_call(self) -> None:
        for call in self.unanswered():
            self.tell(CallReturned(call.replica, call.call))

    @rule(really=st.integers(0, 19))
    def shut_down(self, really: int) -> None:
        if really == 19:
            self.tell(ShutdownRequested(an_error("going down", ErrorKind.ENGINE_STOPPED)))

    # Replicas

    def working(self) -> list[Producer]:
        """The jobs that a replica works on, as far as it knows."""
        return [one for one in self.producers if is_working(self.model.jobs.get(one.start.job))]

    def before_joining(self) -> list[Producer]:
        """Those of them whose output is joined with that of others."""
        tickets = {ticket.event.request_id: ticket for ticket in self.model.open_tickets() if ticket.roles}
        return [
            one for one in self.working() if one.start.job.stage in joined_stages(tickets.get(one.start.job.request))
        ]

    def stopping(self) -> list[Producer]:
        """The jobs that a replica was asked to stop, and has not."""
        return [one for one in self.producers if is_stopping(self.model.jobs.get(one.start.job))]

    @precondition(lambda self: self.working())
    @rule(which=index)
    def start(self, which: int) -> None:
        start = pick(self.working(), which).start
        self.tell(StageStarted(start.replica, start.job))

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def produce(self, which: int, count: int) -> None:
        self.deliver(pick(self.working(), which), 0, count)

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def produce_for_some(self, which: int, count: int) -> None:
        """One delivery for several jobs of a replica."""
        replica = pick(self.working(), which).start.replica
        jobs = [producer for producer in self.working() if producer.start.replica == replica]
        self.tell(StageProduced(replica, tuple(job.output(0, count, None) for job in jobs)))

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def finish(self, which: int, count: int) -> None:
        self.deliver(pick(self.working(), which), 0, count, FinishReason.STOP)

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def finish_oldest(self, which: int, count: int) -> None:
        self.deliver(pick(self.working(), -1 - which), 0, count, FinishReason.LENGTH)

    @precondition(lambda self: self.before_joining())
    @rule(which=index, is_own=st.sampled_from([True, True, False]))
    def finish_before_joining(self, which: int, is_own: bool) -> None:
        """A sample, or a companion of it, comes to where they are joined; the one does not wait for the other."""
        jobs = self.before_joining()
        self.deliver(
            pick([one for one in jobs if is_own == (one.start.job.role == MAIN)] or jobs, which),
            0,
            1,
            FinishReason.STOP,
        )

    @precondition(lambda self: self.producers)
    @rule(
        which=index,
        offset=st.sampled_from([1, 1, -1, -2, 0]),
        count=few,
        finish=st.sampled_from([None, None, None, FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR]),
    )
    def deliver_oddly(self, which: int, offset: int, count: int, finish: FinishReason | None) -> None:
        """Early or repeated chunks, and any finish; of any job there ever was, or of one that works."""
        self.deliver(pick(self.working() or self.producers, which), offset, count, finish)

    @precondition(lambda self: self.producers)
    @rule(which=index, count=few, finish=st.sampled_from([None, FinishReason.STOP, FinishReason.ABORT]))
    def deliver_late(self, which: int, count: int, finish: FinishReason | None) -> None:
        """Output of a job that is being stopped, or is over."""
        self.deliver(pick(self.stopping() or self.producers, which), 0, count, finish)

    @precondition(lambda self: any(one.gap for one in self.working()))
    @rule(which=index)
    def fill_gap(self, which: int) -> None:
        producer = pick([one for one in self.working() if one.gap], which)
        self.deliver(producer, min(producer.gap) - len(producer.told), 2)

    def deliver(self, producer: Producer, offset: int, count: int, finish: FinishReason | None = None) -> None:
        self.tell(StageProduced(producer.start.replica, (producer.output(offset, count, finish),)))

    @precondition(lambda self: self.stopping())
    @rule(which=index, partial=st.booleans())
    def confirm_stop(self, which: int, partial: bool) -> None:
        start = pick(self.stopping(), which).start
        self.tell(StageStopped(start.replica, start.job, Handle(f"partial of {start.job}") if partial else None))

    @precondition(lambda self: self.producers)
    @rule(which=index, what=st.sampled_from(["fail", "reject", "stop", "fail to stop", "fail to stop"]))
    def let_job_go_wrong(self, which: int, what: str) -> None:
        start = pick(self.stopping() or self.producers if "stop" in what else self.producers, which).start
        match what:
            case "fail":
                self.tell(StageFailed(start.replica, start.job, an_error()))
            case "reject":
                self.tell(InputRejected(start.replica, start.job, an_error("bad input", ErrorKind.PROCESSOR_FAILED)))
            case "stop":
                self.tell(StageStopped(start.replica, start.job, Handle("a partial that nobody asked for")))
            case _:
                self.tell(StopFailed(start.replica, start.job, an_error("the stop failed")))

    @rule(which=index, load=few, member=st.integers(0, 1))
    def report(self, which: int, load: int, member: int) -> None:
        self.tell(ReplicaReported(pick(self.replicas, which), load, member))

    @rule(
        which=index, what=st.sampled_from(["lose", "drain", "replace", "give up", "join", "join again", "join again"])
    )
    def change_replicas(self, which: int, what: str) -> None:
        replica = pick(self.replicas, which)
        match what:
            case "lose":
                self.tell(ReplicaLost(replica, a_loss()))
            case "drain":
                self.tell(ReplicaDrained(replica))
            case "replace":
                self.tell(ReplicaDrained(replica, replica._replace(generation=replica.generation + 1)))
            case "give up":
                for successor in list(self.model.returning.values()):
                    self.tell(ReplicaLost(successor, a_loss()))
            case "join":
                self.bring_up(replica)
            case _:
                gone = [key for key, state in self.model.replicas.items() if state is ReplicaState.GONE]
                for key in gone[-3:]:
                    self.bring_up(key._replace(generation=key.generation + 1))

    def bring_up(self, replica: ReplicaKey) -> None:
        if replica not in self.replicas:
            self.replicas.append(replica)
        self.tell(ReplicaJoined(replica))

    @precondition(lambda self: self.history)
    @rule(which=st.integers(0, 30))
    def repeat_what_came(self, which: int) -> None:
        """Anything that replicas said comes again, late; with payloads of its own."""
        event = pick(self.history, which)
        if isinstance(event, StageStarted | StageFailed | StopFailed | InputRejected | ReplicaLost | ReplicaDrained):
            self.tell(event)
        elif isinstance(event, CallReturned):
            self.tell(msgspec.structs.replace(event, value=Handle("late value")))
        elif isinstance(event, StageStopped):
            self.tell(msgspec.structs.replace(event, partial=Handle("late partial")))
        elif isinstance(event, StageProduced):
            outputs = (
                msgspec.structs.replace(output, payloads=tuple(Handle(f"late {one}") for one in output.payloads))
                for output in event.outputs
            )
            self.tell(msgspec.structs.replace(event, outputs=tuple(outputs)))

    @precondition(lambda self: self.core.is_idle and not self.batch)
    @rule()
    def replace_the_second_core(self) -> None:
        """A core that goes on from a snapshot of an idle one does as that one does."""
        self.twin = Orchestrator(self.core.graph, self.core.limits, self.core.snapshot())

    # Time

    @rule(seconds=st.sampled_from([0.1, 0.1, 0.5, 1.0, 5.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.end_batch()
        self.now += seconds
        self.tell()

    @precondition(lambda self: self.core.next_deadline() is not None)
    @rule()
    def reach_the_next_deadline(self) -> None:
        self.end_batch()
        self.now = self.core.next_deadline() or self.now
        self.tell()

    def teardown(self) -> None:
        """Nobody answers any more: everything ends within its limits, and nothing is left."""
        if self.is_broken:  # a complaint about what is left would hide the one about how it came to that
            return
        self.end_batch()
        for _ in range(STEPS_UNTIL_QUIET):
            deadline = self.core.next_deadline()
            if deadline is None:
                break
            self.now = deadline
            self.tell()
        self.model.check_is_over(self.core.statistics())


def joined_stages(ticket: TicketModel | None) -> frozenset[str]:
    """The stages that run for companions too."""
    return frozenset() if ticket is None else ticket.joined


def is_working(job: JobModel | None) -> bool:
    """Whether a replica has the job, and was not asked to stop it."""
    return job is not None and not job.is_over and not job.is_asked_to_stop


def is_stopping(job: JobModel | None) -> bool:
    """Whether a replica was asked to stop the job, and has not confirmed."""
    return job is not None and not job.is_over and job.is_asked_to_stop


def pick(things: Sequence[T], which: int) -> T:
    """One of `things`, the newest for 0."""
    return things[-1 - which % len(things)]


TestCore = pytest.mark.rule(
    "ORCH-INV-003", "ORCH-INV-100", "ORCH-INV-101", "ORCH-INV-102", "ORCH-INV-103", "ORCH-INV-104", "ORCH-INV-107",
    "ORCH-INV-109", "ORCH-INV-110", "ORCH-INV-112", "ORCH-INV-113", "ORCH-INV-114", "ORCH-INV-115", "ORCH-INV-118",
    "ORCH-INV-201", "ORCH-INV-207", "ORCH-INV-209", "ORCH-INV-213",
)(CoreMachine.TestCase)  # fmt: skip
TestCore = pytest.mark.timeout(600)(TestCore)  # a failure is shrunk for up to five minutes
TestCore.settings = settings(
    max_examples=max(200, settings.default.max_examples if settings.default else 0), stateful_step_count=60
)
