"""How long what waits may wait: bundles for their companions, and whatever stands still in a frozen stage.

`TimedModel` judges as `Model` does, and knows times besides. It is apart: who compares models has no use for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from podium.core.admission import EngineLimits
from podium.core.effects import Effect, EndRequest
from podium.core.events import Event
from podium.core.graph import Stage
from podium.core.identity import MAIN
from podium.core.statistics import Statistics
from podium.errors import ErrorKind, ErrorRecord
from podium.testing.model import Model
from podium.testing.model_records import Spot, TicketModel

Bundle: TypeAlias = tuple[int, Spot]
"""A job that joins companions: its request's ticket, and its place."""

EXACT_S = 1e-6
"""Times are sums of limits; this much may be lost in adding them."""


@dataclass
class BundleWait:
    """A bundle that waits for companions alone: since when, until when at the most, for whom, and for which stages."""

    begun: float
    limit: float
    missing: list[str]
    stages: set[str]


class TimedModel(Model):
    """A model that knows times: nobody gives up too early, and no bundle waits too long."""

    def __init__(self, stages: Mapping[str, Stage], limits: EngineLimits) -> None:
        super().__init__(stages, limits)
        self.bundles: dict[Bundle, BundleWait] = {}
        self.frozen_since: dict[str, float] = {}

    def observe(self, event: Event | None, effects: Sequence[Effect], now: float, statistics: Statistics) -> None:
        """As `Model.observe`; what a timeout names must have been awaited for as long as it says."""
        for effect in effects if event is None else ():
            if isinstance(effect, EndRequest) and effect.error is not None:
                self._check_timeout(effect.ticket, effect.error, now)
        super().observe(event, effects, now, statistics)
        frozen = self.control.frozen
        thawed = self.frozen_since.keys() - frozen
        self.frozen_since = {stage: self.frozen_since.get(stage, now) for stage in sorted(frozen)}
        self.bundles = {
            (ticket.event.ticket, spot): self._follow(ticket, spot, thawed, now)
            for ticket, spot in self._waiting_bundles()
        }
        for bundle, wait in self.bundles.items():
            assert event is not None or now < wait.limit + EXACT_S, f"{bundle} waits too long: {wait}"

    def _check_timeout(self, ticket: int, error: ErrorRecord, now: float) -> None:
        awaited = error.awaited or ""
        if error.kind is ErrorKind.WAIT_TIMEOUT and awaited.startswith("the resume of stage"):
            stages = [stage for stage in self.frozen_since if awaited == f"the resume of stage '{stage}'"]
            assert stages, f"gave up waiting for {awaited}, which does not stand still"
            held_s = now - self.frozen_since[stages[0]]
            assert held_s > self.limits.hold_timeout_s - EXACT_S, f"gave up after {held_s} s, for {awaited}"
        elif error.kind is ErrorKind.WAIT_TIMEOUT and awaited.startswith("companions"):
            self._check_bundle_timeout(ticket, error, now)

    def _check_bundle_timeout(self, ticket: int, error: ErrorRecord, now: float) -> None:
        due = [
            wait
            for (number, (stage, _)), wait in self.bundles.items()
            if (number, stage) == (ticket, error.stage)
            and error.awaited == f"companions {', '.join(wait.missing)} at stage '{stage}'"
            and now > wait.begun + self.stages[stage].limits.bundle_timeout_s - EXACT_S
        ]
        assert due, f"gave up too early: {error.message}"
        assert any(not wait.stages & self.frozen_since.keys() for wait in due), "gave up on what stands still"

    def _waiting_bundles(self) -> Iterator[tuple[TicketModel, Spot]]:
        for ticket in self.open_tickets():
            for index in ticket.samples if ticket.roles else ():
                if index not in ticket.aborting and not ticket.has_ended(index):
                    for stage in ticket.needed:
                        spot = stage, ticket.name_of(index)
                        if self._waits_for_companions(ticket, spot):
                            yield ticket, spot

    def _waits_for_companions(self, ticket: TicketModel, spot: Spot) -> bool:
        if not self.stages[spot[0]].joins or spot in ticket.jobs or self._is_skipped(ticket, spot):
            return False
        missing = self._missing(ticket, spot)
        return bool(missing) and MAIN not in missing

    def _missing(self, ticket: TicketModel, spot: Spot) -> list[str]:
        """Of whom a joining job has not got everything."""
        inputs = self._inputs(ticket, spot)
        return list(dict.fromkeys(role for (_, role), source in inputs.items() if self._end_of(ticket, source) is None))

    def _follow(self, ticket: TicketModel, spot: Spot, thawed: set[str], now: float) -> BundleWait:
        """How long a bundle may wait now: where it needs a stage that stands still, that time does not count."""
        sample = ticket.siblings[spot[1]][0]
        stages = {one[0] for one in ticket.spots(sample) if self._is_still_needed(ticket, one)}
        limit_s = self.stages[spot[0]].limits.bundle_timeout_s
        wait = self.bundles.get((ticket.event.ticket, spot)) or BundleWait(now, now + limit_s, [], stages)
        if stages & thawed:
            wait.begun, wait.limit = now, max(wait.limit, now + limit_s)
        ends = [since + self.limits.hold_timeout_s for stage, since in self.frozen_since.items() if stage in stages]
        return BundleWait(wait.begun, max([wait.limit, *ends]), self._missing(ticket, spot), stages)
