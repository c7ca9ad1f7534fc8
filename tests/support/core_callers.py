"""Random callers and operators around the core, as rules of a state machine that tells two cores the same.

The second core gets the events in batches, by `step` instead of `handle`, and must give the same effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

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
    InputAppended,
    ReplicaJoined,
    RequestCancelled,
    RequestSubmitted,
    ShutdownRequested,
)
from podium.core.graph import Graph, Stage
from podium.core.identity import ReplicaKey
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
from podium.testing.model_records import TicketModel
from podium.testing.model_waits import TimedModel
from tests.support.core_pipelines import LABELS, pipelines
from tests.support.core_producers import Handle, Producer
from tests.support.core_world import an_error

T = TypeVar("T")

IDS = ("r0", "r1", "r2")
index = st.integers(0, 11)
few = st.integers(0, 2)


class Callers(RuleBasedStateMachine):
    """Tells two cores and the model what callers and operators want. Replicas and time are for who derives from it."""

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

    def bring_up(self, replica: ReplicaKey) -> None:
        if replica not in self.replicas:
            self.replicas.append(replica)
        self.tell(ReplicaJoined(replica))

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
        """The requests under way that have siblings."""
        return [one for one in self.model.open_tickets() if one.is_admitted and len(one.siblings) > 1]

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


def pick(things: Sequence[T], which: int) -> T:
    """One of `things`, the newest for 0."""
    return things[-1 - which % len(things)]
