"""Which ways a request takes through its stages, as `podium.testing.model` sees it: what is skipped or left out.

It reads tickets and the graph, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from podium.core.graph import Stage
from podium.core.identity import MAIN
from podium.testing.model_records import Input, Spot, TicketModel


class WaysModel:
    """Questions about work that has not begun: whether it is to be done, and what it waits for."""

    def __init__(self, stages: Mapping[str, Stage]) -> None:
        self.stages = stages

    def is_certain(self, stage: str) -> bool:
        """Whether no condition can keep the stage from running."""
        sources = self.stages[stage].sources
        return not sources or any(one.when is None and self.is_certain(one.stage) for one in sources)

    def _inputs(self, ticket: TicketModel, spot: Spot) -> dict[Input, Spot]:
        """What the work of a sibling at a stage gets, and who makes it: its own sources first, then its companions'."""
        name, sibling = spot
        sample, role = ticket.siblings[sibling]
        sources = [source.stage for source in self.stages[name].sources]
        inputs = {(source, MAIN): (source, sibling) for source in sources}
        if self.stages[name].joins and role == MAIN:
            for other in ticket.roles:
                inputs |= {(source, other): (source, ticket.name_of(sample, other)) for source in sources}
        return inputs

    def _is_ahead(self, ticket: TicketModel, spot: Spot) -> bool:
        """Whether work is still to be done: for the first time, or again after the loss of its replica."""
        job = ticket.jobs.get(spot)
        if job is not None:
            return job.is_lost
        is_companion = ticket.siblings[spot[1]][1] != MAIN
        return not self._is_skipped(ticket, spot) and not (is_companion and self._is_given_up(ticket, spot))

    def _is_skipped(self, ticket: TicketModel, spot: Spot) -> bool:
        """Whether a job never runs: no way leads to it, or a source of it ended with nothing before it could start."""
        if spot in ticket.jobs or self.stages[spot[0]].prewarm:
            return False
        if self._is_passed_over(ticket, spot):
            return True
        for key, source in self._inputs(ticket, spot).items():
            if self._is_left_out(ticket, spot, key):
                continue
            job = ticket.jobs.get(source)
            is_empty = job is not None and job.finish is not None and job.in_order == 0
            if is_empty or self._is_skipped(ticket, source):
                return True
        return False

    def _is_passed_over(self, ticket: TicketModel, spot: Spot) -> bool:
        """Whether no way leads to a job; where it leads its sample's it leads its companions'."""
        sample, role = ticket.siblings[spot[1]]
        if spot in ticket.jobs:
            return False
        if role != MAIN and self._is_passed_over(ticket, (spot[0], ticket.name_of(sample))):
            return True
        own = [(source.stage, MAIN) for source in self.stages[spot[0]].sources]
        return bool(own) and all(self._is_left_out(ticket, spot, one) for one in own)

    def _is_left_out(self, ticket: TicketModel, spot: Spot, key: Input) -> bool:
        """Whether nothing comes of an input, because what its source finished with asks for another way."""
        producer = self._inputs(ticket, spot)[key]
        job = ticket.jobs.get(producer)
        if ticket.siblings[producer[1]][1] == MAIN and job is not None and job.finish is not None:
            (edge,) = (one for one in self.stages[spot[0]].sources if one.stage == key[0])
            if edge.when is not None and edge.when != job.finish.label:
                return True
        return self._is_passed_over(ticket, producer)

    def _is_given_up(self, ticket: TicketModel, spot: Spot) -> bool:
        """Whether a companion's work is not done any more: nothing wants it, and a stage that would have is skipped."""
        sample = ticket.siblings[spot[1]][0]
        joining = [(name, ticket.name_of(sample)) for name in ticket.needed if self.stages[name].joins]
        return self._is_useless(ticket, spot) and any(self._is_skipped(ticket, one) for one in joining)

    def _is_useless(self, ticket: TicketModel, spot: Spot) -> bool:
        """Whether nothing wants any more what a companion makes."""
        sample = ticket.siblings[spot[1]][0]
        consumers = [one for one in ticket.spots(sample) if spot in self._inputs(ticket, one).values()]
        return all(self._wants_nothing(ticket, one) for one in consumers)

    def _wants_nothing(self, ticket: TicketModel, spot: Spot) -> bool:
        job = ticket.jobs.get(spot)
        is_over = self._is_skipped(ticket, spot) if job is None else job.is_over and not job.is_lost
        is_companion = ticket.siblings[spot[1]][1] != MAIN
        return is_over or (job is not None and job.is_detached) or (is_companion and self._is_useless(ticket, spot))
