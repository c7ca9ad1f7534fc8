"""Which jobs a request needs for the outputs it asked for, and what each waits for.

A plan is made once for each set of outputs and shared by all requests that ask for it. What no requested output needs
is not in it, so it can never be started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from podium.core.graph import EdgeMode, Graph, Source, Stage
from podium.core.identity import PROMPT
from podium.errors import InvalidRequestError


class Link(NamedTuple):
    """One edge as its producer sees it: the consumer's position in the plan, and how it wants the output."""

    consumer: int
    mode: EdgeMode


class JobPlan(msgspec.Struct, frozen=True):
    """One job to come: its stage, where its input comes from, who consumes its output, and whether a client does.

    `shared` are the sources whose output somebody else gets too, so that it is not this job's to release; the prompt is
    one where several jobs begin with it.
    """

    position: int
    stage: Stage
    sources: tuple[Source, ...]
    links: tuple[Link, ...]
    is_final: bool
    shared: frozenset[str] = frozenset()


class Plan(msgspec.Struct, frozen=True):
    """All jobs of one sibling, sources before consumers."""

    jobs: tuple[JobPlan, ...]
    finals: int

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages, sources before consumers."""
        return tuple(job.stage.name for job in self.jobs)


class Planner:
    """Makes plans for one graph, and keeps them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._plans: dict[tuple[str, ...] | None, Plan] = {}

    def __repr__(self) -> str:
        return f"<Planner of {self._graph!r}>"

    def plan(self, outputs: tuple[str, ...] | None) -> Plan:
        """The plan for `outputs` (None: all of them); raises InvalidRequestError for an output that there is not."""
        plan = self._plans.get(outputs)
        if plan is None:
            plan = self._make(outputs)
            self._plans[plan_key(outputs)] = plan
        return plan

    def _make(self, outputs: tuple[str, ...] | None) -> Plan:
        known = self._graph.outputs
        wanted = tuple(known) if outputs is None else plan_key(outputs) or ()
        for name in wanted:
            if name not in known:
                raise InvalidRequestError.because(
                    f"outputs: this pipeline has no output '{name}'; ask for some of: {', '.join(known)}"
                )
        if not wanted:
            raise InvalidRequestError.because(f"outputs: nothing is asked for; ask for some of: {', '.join(known)}")
        cached = self._plans.get(wanted)
        if cached is not None:
            return cached
        return _lay_out(self._graph.stages, {known[name].name for name in wanted})


def plan_key(outputs: Sequence[str] | None) -> tuple[str, ...] | None:
    """One key for all ways to ask for the same outputs."""
    return None if outputs is None else tuple(sorted(set(outputs)))


def _lay_out(stages: Mapping[str, Stage], finals: set[str]) -> Plan:
    needed = set(finals)
    for stage in reversed(tuple(stages.values())):
        if stage.name in needed:
            needed.update(source.stage for source in stage.sources)
    chosen = [stage for stage in stages.values() if stage.name in needed]
    position = {stage.name: index for index, stage in enumerate(chosen)}
    links: dict[str, list[Link]] = {stage.name: [] for stage in chosen}
    for stage in chosen:
        for source in stage.sources:
            links[source.stage].append(Link(position[stage.name], source.mode))
    shared = {name for name, consumers in links.items() if len(consumers) + (name in finals) > 1}
    prompt_shared = frozenset({PROMPT}) if sum(not stage.sources for stage in chosen) > 1 else frozenset[str]()
    jobs = tuple(
        JobPlan(
            position[stage.name],
            stage,
            stage.sources,
            tuple(links[stage.name]),
            stage.name in finals,
            frozenset(source.stage for source in stage.sources if source.stage in shared)
            if stage.sources
            else prompt_shared,
        )
        for stage in chosen
    )
    return Plan(jobs, len(finals))
