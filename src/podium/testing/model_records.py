"""What `podium.testing.model` knows of one job, one use of a request id, and one abort call.

Records only: what events mean for them is in `model_events.py`, what effects may do to them in `model.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from podium.core.effects import (
    AbortStatus,
    Outcome,
)
from podium.core.events import (
    AbortRequested,
    Finish,
    FinishReason,
    RequestSubmitted,
)
from podium.core.identity import MAIN, JobKey, Payload, ReplicaKey, sibling_name

Spot: TypeAlias = tuple[str, str]
"""The work of one sibling at one stage, whatever the attempt: the stage's name and the sibling's."""

Input: TypeAlias = tuple[str, str]
"""What a job gets: of which stage (or the prompt), and of whom: `main` for its own sibling, or a companion's role."""


@dataclass(slots=True)
class JobModel:
    """One attempt, as its replica sees it."""

    key: JobKey
    replica: ReplicaKey
    ticket: TicketModel
    inputs: dict[Input, int] = field(default_factory=dict)
    """How many chunks it got of each input."""
    ended: dict[Input, FinishReason] = field(default_factory=dict)
    chunks: dict[int, Payload] = field(default_factory=dict)
    in_order: int = 0
    early_finish: tuple[int, Finish] | None = None
    finish: Finish | None = None
    partial: Payload = None
    is_asked_to_stop: bool = False
    is_given_up: bool = False
    is_over: bool = False
    is_lost: bool = False
    is_dismissed: bool = False
    is_repeated: bool = False

    @property
    def spot(self) -> Spot:
        """Whose work it is, and where."""
        return self.key.stage, self.key.sibling

    @property
    def sample(self) -> int:
        """The sample that it works for."""
        return self.ticket.siblings[self.key.sibling][0]

    @property
    def role(self) -> str:
        """The companion that it works for, or `main`."""
        return self.ticket.siblings[self.key.sibling][1]

    @property
    def is_detached(self) -> bool:
        """Whether nothing of it is passed on any more."""
        is_of_use = self.ticket.is_open and not self.ticket.has_ended(self.sample)
        return self.is_given_up or self.is_dismissed or not is_of_use

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
    joined: frozenset[str] = frozenset()
    roles: tuple[str, ...] = ()
    is_open: bool = True
    is_admitted: bool = False
    is_aborting: bool = False
    is_input_open: bool = False
    sequence: int = 0
    appended: list[Payload] = field(default_factory=list)
    emitted: dict[Spot, int] = field(default_factory=dict)
    finishes: dict[Spot, FinishReason] = field(default_factory=dict)
    partials: dict[Spot, Payload] = field(default_factory=dict)
    jobs: dict[Spot, JobModel] = field(default_factory=dict)
    aborting: set[int] = field(default_factory=set)
    must_end: Outcome | None = None
    outcome: Outcome | None = None

    @property
    def samples(self) -> range:
        """The indices of its samples."""
        return range(self.event.samples)

    @property
    def siblings(self) -> dict[str, tuple[int, str]]:
        """Its siblings by name, each with its sample and role."""
        return {self.name_of(index, role): (index, role) for role in (MAIN, *self.roles) for index in self.samples}

    def name_of(self, sample: int, role: str = MAIN) -> str:
        """What a sibling is called."""
        return sibling_name(sample, self.event.samples, role)

    def spots(self, sample: int) -> list[Spot]:
        """All the work that one of its samples needs."""
        return [
            (stage, self.name_of(sample, role))
            for role in (MAIN, *self.roles)
            for stage in self.needed
            if role == MAIN or stage in self.joined
        ]

    def final_spots(self, sample: int) -> list[Spot]:
        """Where what a client gets of one sample is made, in the order of the stages."""
        return [(stage, self.name_of(sample)) for stage in self.needed if stage in self.finals]

    def has_ended(self, sample: int) -> bool:
        """Whether the client has had every finish of a sample."""
        return all(spot in self.finishes for spot in self.final_spots(sample))

    def is_stopping(self, sample: int) -> bool:
        """Whether a sample is being aborted."""
        return sample in self.aborting and not self.has_ended(sample)

    def abort(self) -> None:
        """Note that all of it is aborted."""
        self.aborting.update(index for index in self.samples if not self.has_ended(index))
        self.is_aborting = True

    def abort_samples(self, samples: Iterable[int]) -> None:
        """Note that samples are aborted, and the whole with them if no other goes on."""
        going_on = {index for index in self.samples if index not in self.aborting and not self.has_ended(index)}
        aborted = going_on & set(samples)
        if aborted and aborted == going_on:
            self.abort()
        self.aborting |= aborted


@dataclass(slots=True)
class CallModel:
    """One abort call."""

    event: AbortRequested
    ids: list[str]
    tickets: dict[str, TicketModel]
    expected: dict[str, AbortStatus]
    is_answered: bool = False

    def samples_of(self, ticket: TicketModel) -> list[int]:
        """What it is about."""
        return list(self.event.samples or ticket.samples)
