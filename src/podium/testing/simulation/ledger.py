"""Watches the core's boundary: what it was told and what it answered. What it may not answer is a violation.

It is an Observer and knows the contract, not the core. Observers must not raise, so it gathers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

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
    StartJob,
    StopJob,
)
from podium.core.events import AbortRequested, ControlRequested, Event, RequestSubmitted
from podium.core.graph import Graph
from podium.core.identity import JobKey, Payload, ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorRecord

EPSILON_S = 1e-6
"""What the rounding of times may come to."""


class Ledger:
    """Accounts of requests by ticket, of jobs by key, and of calls by number. No two requests may share a prompt.

    `lateness_s` is how late an answer may be, in seconds: on a virtual clock nothing is late.
    """

    def __init__(self, lateness_s: float = EPSILON_S) -> None:
        self._lateness_s = lateness_s
        self.violations: list[str] = []
        self.submitted: dict[int, RequestSubmitted] = {}
        self.submitted_at: dict[int, float] = {}
        self.ended_at: dict[int, float] = {}
        self.started: dict[JobKey, StartJob] = {}
        self.closed: dict[ReplicaKey, float] = {}
        self.given_up: dict[ReplicaKey, ErrorRecord] = {}
        self.aborts: dict[int, AbortRequested] = {}
        self.answered: set[int] = set()
        self.controls: dict[int, ControlRequested] = {}
        self.controls_answered: set[int] = set()
        self._sequences: Counter[int] = Counter()
        self._fed: Counter[tuple[JobKey, str]] = Counter()
        self._closed_inputs: set[tuple[JobKey, str]] = set()
        self._ticket_of_job: dict[JobKey, int] = {}
        self._tickets: dict[Payload, int] = {}
        self._now = 0.0

    def __repr__(self) -> str:
        return f"<Ledger {len(self.ended_at)} of {len(self.submitted)} ended, {len(self.violations)} violations>"

    def on_start(self, core: Orchestrator) -> None:
        """Nothing is to be done."""

    def on_cost(self, events: int, seconds: float) -> None:
        """Nothing is to be done."""

    def on_end(self) -> None:
        """Nothing is to be done."""

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        """Enter what happened, then what was answered."""
        self._now = now
        for event in events:
            match event:
                case RequestSubmitted():
                    self.submitted[event.ticket] = event
                    self.submitted_at[event.ticket] = now
                    self._tickets[event.prompt] = event.ticket
                case AbortRequested():
                    self.aborts[event.call] = event
                case ControlRequested():
                    self.controls[event.call] = event
                case _:
                    pass
        for effect in effects:
            self._enter(effect)

    def _enter(self, effect: Effect) -> None:  # noqa: C901 - one row for each effect
        match effect:
            case EmitOutput():
                self._emit(effect)
            case StartJob():
                self._start(effect)
            case FeedJob():
                self._feed(effect)
            case EndInput():
                self._end_input(effect)
            case StopJob():
                self._expect(effect.job in self.started, "a stop of what never started", effect)
            case EndRequest() | RefuseRequest():
                self._end(effect)
            case ReplyAbort():
                self._answer(effect)
            case ReplyControl():
                self._answer_control(effect)
            case CallReplica():
                self._expect(effect.replica not in self.closed, "a call of a closed replica", effect)
            case CloseReplica():
                self._expect(effect.replica not in self.closed, "a second close", effect)
                self.closed[effect.replica] = self._now
                if effect.error is not None:
                    self.given_up[effect.replica] = effect.error
            case ReleasePayloads():
                pass  # see payload_account

    def _emit(self, effect: EmitOutput) -> None:
        self._expect(effect.ticket in self.submitted, "output of what was not submitted", effect)
        self._expect(effect.ticket not in self.ended_at, "an output after the terminal", effect)
        self._expect(effect.sequence == self._sequences[effect.ticket], "a gap, or a repetition", effect)
        self._sequences[effect.ticket] += len(effect.payloads) + (effect.finish is not None)

    def _start(self, effect: StartJob) -> None:
        self._expect(effect.job not in self.started, "a second start", effect)
        self._expect(effect.replica not in self.closed, "a start at a closed replica", effect)
        self.started[effect.job] = effect
        ticket = self._tickets.get(effect.prompt, 0)
        self._expect(ticket in self.submitted and ticket not in self.ended_at, "work for nobody", effect)
        self._ticket_of_job[effect.job] = ticket
        for one in effect.inputs:
            self._fed[effect.job, one.source] = one.sequence + len(one.payloads)
            self._expect(one.sequence == 0, "input that does not begin at 0", effect)
            if one.finish is not None:
                self._closed_inputs.add((effect.job, one.source))

    def _feed(self, effect: FeedJob) -> None:
        at = (effect.job, effect.source)
        self._expect_live(effect)
        self._expect(effect.sequence == self._fed[at], "input with a gap, or twice", effect)
        self._expect(at not in self._closed_inputs, "input after its end", effect)
        self._fed[at] += len(effect.payloads)

    def _end_input(self, effect: EndInput) -> None:
        at = (effect.job, effect.source)
        self._expect_live(effect)
        self._expect(at not in self._closed_inputs, "a second end of input", effect)
        self._closed_inputs.add(at)

    def _expect_live(self, effect: FeedJob | EndInput) -> None:
        self._expect(effect.job in self.started, "input for what never started", effect)
        ticket = self._ticket_of_job.get(effect.job)
        self._expect(ticket is not None and ticket not in self.ended_at, "work for a request that is over", effect)

    def _end(self, effect: EndRequest | RefuseRequest) -> None:
        self._expect(effect.ticket in self.submitted, "an end of what was not submitted", effect)
        self._expect(effect.ticket not in self.ended_at, "a second terminal", effect)
        self.ended_at[effect.ticket] = self._now

    def _answer(self, effect: ReplyAbort) -> None:
        call = self.aborts.get(effect.call)
        self._expect(effect.call not in self.answered, "a second answer", effect)
        self.answered.add(effect.call)
        if call is None:
            self._expect(False, "an answer to nothing", effect)
            return
        self._expect(self._now <= call.deadline + self._lateness_s, "an answer that is late", effect)
        asked = tuple(dict.fromkeys(call.request_ids or ()))
        answered = tuple(record.request_id for record in effect.records)
        is_fitting = asked == answered[: len(asked)] and (asked == answered or call.request_ids is None or call.groups)
        self._expect(bool(is_fitting), f"an answer for other ids than {asked}", effect)

    def _answer_control(self, effect: ReplyControl) -> None:
        call = self.controls.get(effect.call)
        self._expect(effect.call not in self.controls_answered, "a second answer", effect)
        self._expect(call is not None, "an answer to nothing", effect)
        self.controls_answered.add(effect.call)
        if call is not None:
            self._expect(self._now <= call.deadline + self._lateness_s, "an answer that is late", effect)
            of = [(record.stage, record.replica) for record in effect.records]
            self._expect(len(set(of)) == len(of), "two records of one replica", effect)
            self._expect({stage for stage, _ in of} <= set(call.stages), "a record of another stage", effect)
            is_good = all(record.ok for record in effect.records)
            self._expect(is_good or effect.error is not None, "a failure that is told as success", effect)

    def _expect(self, is_so: bool, otherwise: str, effect: Effect) -> None:  # noqa: FBT001 - reads as a sentence
        if not is_so:
            self.violations.append(f"{otherwise}: {effect}")

    def check_end(self) -> None:
        """The core is idle: every request has ended, and every call was answered."""
        for ticket, event in self.submitted.items():
            if ticket not in self.ended_at:
                self.violations.append(f"no terminal for ticket {ticket}, '{event.request_id}'")
        for call in self.aborts.keys() - self.answered:
            self.violations.append(f"no answer to abort {call}")
        for call in self.controls.keys() - self.controls_answered:
            self.violations.append(f"no answer to control call {call}")


def planned(graph: Graph, finals: Iterable[str]) -> frozenset[str]:
    """The stages that the output of `finals` needs."""
    needed = set(finals)
    for stage in reversed(tuple(graph.stages.values())):
        if stage.name in needed:
            needed.update(source.stage for source in stage.sources)
    return frozenset(needed)
