"""What `podium.testing.model` knows of one job, one use of a request id, and one abort call.

Records only: what events mean for them is in `model_events.py`, what effects may do to them in `model.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from podium.core.effects import (
    Outcome,
)
from podium.core.events import (
    AbortRequested,
    Finish,
    FinishReason,
    RequestSubmitted,
)
from podium.core.identity import JobKey, Payload, ReplicaKey


@dataclass(slots=True)
class JobModel:
    """One attempt, as its replica sees it."""

    key: JobKey
    replica: ReplicaKey
    ticket: TicketModel
    inputs: dict[str, int] = field(default_factory=dict)
    """How many chunks it got of each source."""
    ended: dict[str, FinishReason] = field(default_factory=dict)
    chunks: dict[int, Payload] = field(default_factory=dict)
    in_order: int = 0
    early_finish: tuple[int, Finish] | None = None
    finish: Finish | None = None
    partial: Payload = None
    is_asked_to_stop: bool = False
    is_given_up: bool = False
    is_over: bool = False
    is_lost: bool = False

    @property
    def is_detached(self) -> bool:
        """Whether nothing of it is passed on any more."""
        return self.is_given_up or not self.ticket.is_open

    def let_go(self) -> None:
        """Keep nothing of what it got and made: its request is over, and only its stop is awaited."""
        for table in (self.inputs, self.ended, self.chunks):
            table.clear()
        self.in_order = 0
        self.early_finish = self.finish = self.partial = None

    def in_sequence(self) -> list[Payload]:
        """What it has produced, as far as there is no gap."""
        return [self.chunks[number] for number in range(self.in_order)]


@dataclass(slots=True)
class TicketModel:
    """One use of a request id."""

    event: RequestSubmitted
    finals: frozenset[str]
    needed: tuple[str, ...]
    is_open: bool = True
    is_admitted: bool = False
    is_aborting: bool = False
    is_input_open: bool = False
    sequence: int = 0
    appended: list[Payload] = field(default_factory=list)
    emitted: dict[str, int] = field(default_factory=dict)
    finishes: dict[str, FinishReason] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    partials: dict[str, Payload] = field(default_factory=dict)
    jobs: dict[str, JobModel] = field(default_factory=dict)
    must_end: Outcome | None = None
    outcome: Outcome | None = None


@dataclass(slots=True)
class CallModel:
    """One abort call."""

    event: AbortRequested
    tickets: dict[str, TicketModel]
    is_answered: bool = False
