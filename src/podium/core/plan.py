"""Which jobs a request needs for the outputs it asked for, and what each waits for.

A plan is made once for each set of outputs, number of samples and roles of companions, and shared by all requests that
ask for the same. What no requested output needs is not in it, so it can never be started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from podium.core.graph import EdgeMode, Graph, Source, Stage, upstream_of
from podium.core.identity import MAIN, PROMPT, sibling_name
from podium.errors import InvalidRequestError

MAX_KEPT = 256
"""Plans with siblings that are kept; callers choose samples and roles, so there could be any number."""


class Link(NamedTuple):
    """One edge as its producer sees it: the consumer's position in the plan, how it wants the output, as which of its
    inputs, and the label without which the edge is not taken.
    """

    consumer: int
    mode: EdgeMode
    source: str
    when: str | None = None


class BundleInput(NamedTuple):
    """What a joining job gets of one companion: the input's key, the stage that makes it, the companion's role."""

    key: str
    stage: str
    role: str


class JobPlan(msgspec.Struct, frozen=True):
    """One job to come: its stage, where its input comes from, who consumes its output, and whether a client does.

    `shared` are the inputs whose payloads somebody else gets too, so that they are not this job's to release; the
    prompt is one where several jobs begin with it. `bundle` is what comes of companions besides `sources`. A
    companion's job follows that of its sample at the same stage, its `leader`, to whatever replica has it.
    `is_certain` says that no condition can keep the job from running.
    """

    position: int
    stage: Stage
    sources: tuple[Source, ...]
    links: tuple[Link, ...]
    is_final: bool
    shared: frozenset[str] = frozenset()
    is_certain: bool = True
    sample: int = 0
    role: str = MAIN
    sibling: str = MAIN
    bundle: tuple[BundleInput, ...] = ()
    leader: int = -1
    followers: tuple[int, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """The jobs of all siblings, sample by sample: its own, sources before consumers, then those of its companions.

    `finals` counts the final stages of each sample; `demand` says how many jobs each stage gets; `uncertain` are the
    stages that a condition can keep from running.
    """

    jobs: tuple[JobPlan, ...]
    finals: int
    demand: tuple[tuple[Stage, int], ...]
    uncertain: frozenset[str] = frozenset()
    samples: int = 1
    roles: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages, sources before consumers."""
        return tuple(stage.name for stage, _ in self.demand)


class Planner:
    """Makes plans for one graph, and keeps them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._plans: dict[tuple[str, ...] | None, Plan] = {}
        self._expanded: dict[tuple[tuple[str, ...] | None, int, tuple[str, ...]], Plan] = {}

    def __repr__(self) -> str:
        return f"<Planner of {self._graph!r}>"

    def plan(self, outputs: tuple[str, ...] | None) -> Plan:
        """The plan for `outputs` (None: all of them); raises InvalidRequestError for an output that there is not."""
        plan = self._plans.get(outputs)
        if plan is None:
            plan = self._make(outputs)
            self._plans[plan_key(outputs)] = plan
        return plan

    def expand(self, outputs: tuple[str, ...] | None, samples: int, roles: tuple[str, ...], most: int) -> Plan:
        """The plan for several samples of `outputs`, each with companions of `roles`.

        Raises InvalidRequestError for an output that there is not, for roles that cannot be, and for more than `most`
        siblings.
        """
        plain = self.plan(outputs)
        self._check_siblings(samples, roles, most)
        if not any(job.stage.joins for job in plain.jobs):
            roles = ()
        if samples == 1 and not roles:
            return plain
        key = plan_key(outputs), samples, roles
        plan = self._expanded.get(key)
        if plan is None:
            if len(self._expanded) >= MAX_KEPT:
                self._expanded.clear()
            plan = self._expanded[key] = _expand(plain, samples, roles)
        return plan

    def _check_siblings(self, samples: int, roles: tuple[str, ...], most: int) -> None:
        if samples < 1:
            raise InvalidRequestError.because(f"samples: {samples} makes no sense; ask for at least 1")
        siblings = samples * (1 + len(roles))
        if siblings > most:
            raise InvalidRequestError.because(
                f"samples: with its companions the request has {siblings} siblings, and may have {most} "
                "(limits.max_siblings)"
            )
        for role in roles:
            if role == MAIN or not role.isidentifier():
                raise InvalidRequestError.because(f"companions: '{role}' is no role; use a name like 'negative'")
        if roles and not any(stage.joins for stage in self._graph.stages.values()):
            raise InvalidRequestError.because("companions: this pipeline has no stage that joins them")

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
            links[source.stage].append(Link(position[stage.name], source.mode, source.stage, source.when))
    certain = _certain_stages(chosen)
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
            stage.name in certain,
        )
        for stage in chosen
    )
    return Plan(jobs, len(finals), _demand_of(jobs), _uncertain(jobs))


def _certain_stages(chosen: Sequence[Stage]) -> set[str]:
    """The stages that run whatever labels are said; sources stand before their consumers."""
    certain: set[str] = set()
    for stage in chosen:
        if not stage.sources or any(source.when is None and source.stage in certain for source in stage.sources):
            certain.add(stage.name)
    return certain


def _uncertain(jobs: Iterable[JobPlan]) -> frozenset[str]:
    return frozenset(job.stage.name for job in jobs if not job.is_certain)


def _demand_of(jobs: Iterable[JobPlan]) -> tuple[tuple[Stage, int], ...]:
    counts = Counter(job.stage.name for job in jobs)
    stages = {job.stage.name: job.stage for job in jobs}
    return tuple((stage, counts[name]) for name, stage in stages.items())


def _expand(plain: Plan, samples: int, roles: tuple[str, ...]) -> Plan:
    """Lay the plan of one sample out for each sample, and what is upstream of a joining stage for each companion."""
    sources = {job.stage.name: [source.stage for source in job.sources] for job in plain.jobs}
    upstream = upstream_of((job.stage.name for job in plain.jobs if job.stage.joins), sources)
    layout = _Layout(plain, tuple(job for job in plain.jobs if job.stage.name in upstream), samples, roles)
    jobs = tuple(job for sample in range(samples) for job in layout.jobs_of(sample))
    return Plan(jobs, plain.finals, _demand_of(jobs), plain.uncertain, samples, roles)


class _Layout:
    """Where each job of an expanded plan stands."""

    def __init__(self, plain: Plan, upstream: tuple[JobPlan, ...], samples: int, roles: tuple[str, ...]) -> None:
        self._plain = plain
        self._upstream = upstream
        self._samples = samples
        self._roles = roles
        self._rank = {job.position: rank for rank, job in enumerate(upstream)}
        self._size = len(plain.jobs) + len(upstream) * len(roles)
        starts = sum(not job.sources for job in plain.jobs) * samples
        self._prompt_shared = frozenset({PROMPT}) if starts > 1 else frozenset[str]()

    def jobs_of(self, sample: int) -> Iterable[JobPlan]:
        """All jobs of one sample: its own, then those of its companions."""
        for job in self._plain.jobs:
            yield self._own(job, sample)
        for role in range(len(self._roles)):
            for job in self._upstream:
                yield self._companion(job, sample, role)

    def _at(self, sample: int, position: int) -> int:
        return sample * self._size + position

    def _companion_at(self, sample: int, role: int, position: int) -> int:
        return self._at(sample, len(self._plain.jobs) + role * len(self._upstream) + self._rank[position])

    def _own(self, job: JobPlan, sample: int) -> JobPlan:
        joins = job.stage.joins
        bundle = tuple(_bundle_input(source.stage, role) for role in self._roles for source in job.sources if joins)
        has_followers = job.position in self._rank
        return msgspec.structs.replace(
            job,
            position=self._at(sample, job.position),
            links=tuple(link._replace(consumer=self._at(sample, link.consumer)) for link in job.links),
            shared=(job.shared if job.sources else self._prompt_shared)
            | {one.key for one in bundle if self._consumers_in_bundle(one.stage) > 1},
            sample=sample,
            sibling=sibling_name(sample, self._samples),
            bundle=bundle,
            followers=tuple(
                self._companion_at(sample, role, job.position) for role in range(len(self._roles)) if has_followers
            ),
        )

    def _companion(self, job: JobPlan, sample: int, role: int) -> JobPlan:
        return msgspec.structs.replace(
            job,
            position=self._companion_at(sample, role, job.position),
            links=tuple(self._companion_links(job, sample, role)),
            is_final=False,
            shared=frozenset(source.stage for source in job.sources if self._consumers_in_bundle(source.stage) > 1),
            sample=sample,
            role=self._roles[role],
            sibling=sibling_name(sample, self._samples, self._roles[role]),
            leader=self._at(sample, job.position),
        )

    def _companion_links(self, job: JobPlan, sample: int, role: int) -> Iterable[Link]:
        for link in job.links:
            if link.consumer in self._rank:
                yield link._replace(consumer=self._companion_at(sample, role, link.consumer), when=None)
            elif self._plain.jobs[link.consumer].stage.joins:
                key = _bundle_input(job.stage.name, self._roles[role]).key
                yield Link(self._at(sample, link.consumer), link.mode, key)

    def _consumers_in_bundle(self, stage: str) -> int:
        """How many jobs get what a companion makes at a stage."""
        (job,) = (job for job in self._upstream if job.stage.name == stage)
        return sum(link.consumer in self._rank or self._plain.jobs[link.consumer].stage.joins for link in job.links)


def _bundle_input(stage: str, role: str) -> BundleInput:
    return BundleInput(f"{role}\0{stage}", stage, role)
