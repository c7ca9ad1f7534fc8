"""The pipeline as a graph of stages, and everything that can be wrong with one.

A graph that was built is right: known sources, no cycle, every stage of use to an output. The rest of the core relies
on that. What a stage runs, and where, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from math import inf

import msgspec

from podium.errors import ConfigurationError, Fault


class Modality(StrEnum):
    """What an output is made of. The first four can be delivered to a client."""

    TEXT = "text"
    SPEECH = "speech"
    IMAGE = "image"
    VIDEO = "video"
    TOKENS = "tokens"
    EMBEDDING = "embedding"
    LATENT = "latent"


DELIVERABLE = frozenset({Modality.TEXT, Modality.SPEECH, Modality.IMAGE, Modality.VIDEO, Modality.EMBEDDING})


class StageKind(StrEnum):
    """How a stage works: token by token, by denoising steps, or as a plain function."""

    AUTOREGRESSIVE = "autoregressive"
    DIFFUSION = "diffusion"
    FUNCTION = "function"


class EdgeMode(StrEnum):
    """How a consumer gets its source's output: when all of it is there, or chunk by chunk."""

    COMPLETE = "complete"
    STREAMING = "streaming"


class EmptyPolicy(StrEnum):
    """What it means that a stage finished without any output."""

    COMPLETE = "complete"
    ERROR = "error"


class Balance(StrEnum):
    """Which of several replicas with a credit gets a job."""

    LEAST_LOADED = "least_loaded"
    """The one with the fewest jobs, counting the load that it reports."""

    ROUND_ROBIN = "round_robin"
    """The one after the one that had the last job, by slot."""

    RANDOM = "random"
    """Any; drawn from the engine's seed."""

    AFFINITY = "affinity"
    """Always the same for the same affinity of a request; the least loaded one while that has no credit."""


class Source(msgspec.Struct, frozen=True):
    """One edge, seen from its consumer. With `when` it is taken only if the source finishes with that label."""

    stage: str
    mode: EdgeMode = EdgeMode.COMPLETE
    when: str | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit of one stage: counts of jobs or chunks, and seconds. All must be positive and finite."""

    max_inflight: int = 64
    max_queued: int = 1024
    max_buffered_chunks: int = 65536
    queue_timeout_s: float = 120.0
    dispatch_timeout_s: float = 30.0
    first_output_timeout_s: float = 120.0
    chunk_timeout_s: float = 60.0
    bundle_timeout_s: float = 120.0
    stop_timeout_s: float = 10.0
    stuck_timeout_s: float = 60.0
    start_timeout_s: float = 300.0


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `output` is set when a client may ask for what this stage makes; it is then a final stage.

    `accepts` are the modalities that the stage's input processor takes; None accepts any. `prewarm` starts the job
    before its first input; `rerun` allows one re-run after the loss of a replica, while nothing of it was delivered
    or consumed. A stage that `joins` gets the output of its sources for the request and for each of its CFG companions,
    all at once; what is upstream of it runs for each companion. `labels` are all that the stage may finish with;
    conditional edges ask for one of them.
    """

    name: str
    kind: StageKind
    produces: Modality
    sources: tuple[Source, ...] = ()
    accepts: frozenset[Modality] | None = None
    output: str | None = None
    on_empty: EmptyPolicy = EmptyPolicy.COMPLETE
    prewarm: bool = False
    rerun: bool = False
    joins: bool = False
    labels: tuple[str, ...] = ()
    balance: Balance = Balance.LEAST_LOADED
    limits: Limits = Limits()


class Graph:
    """A pipeline that was checked. `stages` are in topological order, sources before consumers."""

    def __init__(self, stages: Sequence[Stage], subject: str = "pipeline") -> None:
        """Check `stages` and order them; raises ConfigurationError with every fault."""
        faults = find_faults(stages)
        if faults:
            raise ConfigurationError(subject, faults)
        by_name = {stage.name: stage for stage in stages}
        order = TopologicalSorter({stage.name: _source_names(stage) for stage in stages}).static_order()
        self.stages: Mapping[str, Stage] = {name: by_name[name] for name in order}
        self.consumers: Mapping[str, tuple[str, ...]] = {
            name: tuple(other.name for other in self.stages.values() if name in _source_names(other))
            for name in self.stages
        }
        self.outputs: Mapping[str, Stage] = {
            stage.output: stage for stage in self.stages.values() if stage.output is not None
        }

    def __repr__(self) -> str:
        return f"<Graph {' '.join(self.stages)} outputs={','.join(self.outputs)}>"


def find_faults(stages: Sequence[Stage]) -> list[Fault]:
    """Everything that makes `stages` unfit to run, in the order of the stages."""
    faults: list[Fault] = []
    if not stages:
        faults.append(Fault("stages", "there is no stage", "declare at least one"))
        return faults
    faults += _name_faults(stages)
    for stage in stages:
        faults += _edge_faults(stage, stages)
        faults += _condition_faults(stage, stages)
        faults += _label_faults(stage, stages)
        faults += _modality_faults(stage)
        faults += _join_faults(stage)
        faults += _limit_faults(stage)
    faults += _shape_faults(stages)
    return faults


def _source_names(stage: Stage) -> tuple[str, ...]:
    return tuple(source.stage for source in stage.sources)


def _name_faults(stages: Sequence[Stage]) -> Iterable[Fault]:
    seen: set[str] = set()
    outputs: dict[str, str] = {}
    for stage in stages:
        if not stage.name:
            yield Fault("stages", "a stage has an empty name", "name it")
        if stage.name in seen:
            yield Fault(f"stage '{stage.name}'", "the name is used twice", "give each stage a name of its own")
        seen.add(stage.name)
        if stage.output is not None and stage.output in outputs:
            yield Fault(
                f"stage '{stage.name}', output",
                f"'{stage.output}' is already the output of stage '{outputs[stage.output]}'",
                "give each output a name of its own",
            )
        if stage.output is not None:
            outputs[stage.output] = stage.name
    if not outputs:
        yield Fault("stages", "no stage is final, so no request could ever complete", "give a stage an `output`")


def _edge_faults(stage: Stage, stages: Sequence[Stage]) -> Iterable[Fault]:
    by_name = {other.name: other for other in stages}
    where = f"stage '{stage.name}', sources"
    for name in {name for name in _source_names(stage) if _source_names(stage).count(name) > 1}:
        yield Fault(where, f"source '{name}' is listed twice", "list it once")
    for source in stage.sources:
        producer = by_name.get(source.stage)
        if producer is None:
            yield Fault(where, f"unknown source '{source.stage}'", f"use one of: {', '.join(by_name)}")
        elif stage.accepts is not None and producer.produces not in stage.accepts:
            yield Fault(
                where,
                f"source '{source.stage}' produces {producer.produces}, which the input processor does not take",
                f"use a processor for {producer.produces}, or a source that produces {_names(stage.accepts)}",
            )


def _condition_faults(stage: Stage, stages: Sequence[Stage]) -> Iterable[Fault]:
    """What is wrong with the conditions of the edges into a stage."""
    labels = {other.name: other.labels for other in stages}
    where = f"stage '{stage.name}', sources"
    for source in stage.sources:
        if source.when is None or source.stage not in labels:
            continue
        if source.mode is EdgeMode.STREAMING:
            yield Fault(
                where,
                f"source '{source.stage}' is streaming, but whether it is taken is known only at its end",
                "make it a complete edge, or remove its `when`",
            )
        known = labels[source.stage]
        if source.when not in known:
            remedy = f"use one of its labels: {', '.join(known)}" if known else f"declare `labels` at '{source.stage}'"
            yield Fault(where, f"source '{source.stage}' never finishes with '{source.when}'", remedy)


def _label_faults(stage: Stage, stages: Sequence[Stage]) -> Iterable[Fault]:
    where = f"stage '{stage.name}', labels"
    edges = [source for other in stages for source in other.sources if source.stage == stage.name]
    for label in dict.fromkeys(stage.labels):
        if not label:
            yield Fault(where, "a label is empty", "name it")
        elif stage.labels.count(label) > 1:
            yield Fault(where, f"'{label}' is listed twice", "list it once")
        elif stage.output is None and all(source.when not in (None, label) for source in edges):
            yield Fault(
                where,
                f"'{label}' leads nowhere",
                f"add an edge with `when: {label}`, give the stage an `output`, or remove the label",
            )


def _modality_faults(stage: Stage) -> Iterable[Fault]:
    if stage.output is not None and stage.produces not in DELIVERABLE:
        yield Fault(
            f"stage '{stage.name}', output",
            f"{stage.produces} cannot be delivered to a client",
            f"make a stage final that produces one of: {_names(DELIVERABLE)}",
        )


def _join_faults(stage: Stage) -> Iterable[Fault]:
    where = f"stage '{stage.name}', joins"
    if not stage.joins:
        return
    if not stage.sources:
        yield Fault(where, "it has no sources, so there is nothing to join", "give it `sources`, or remove `joins`")
    for source in stage.sources:
        if source.mode is EdgeMode.STREAMING:
            yield Fault(
                where,
                f"source '{source.stage}' is streaming, but a bundle is joined when all of it is there",
                "make it a complete edge",
            )
    if stage.prewarm:
        yield Fault(where, "it starts with the whole bundle, so it cannot be prewarmed", "remove `prewarm`")


def _limit_faults(stage: Stage) -> Iterable[Fault]:
    for field in msgspec.structs.fields(Limits):
        value = msgspec.structs.asdict(stage.limits)[field.name]
        if not 0 < value < inf:
            yield Fault(
                f"stage '{stage.name}', limits.{field.name}",
                f"{value} makes no sense",
                "it must be greater than 0, and finite",
            )


def _shape_faults(stages: Sequence[Stage]) -> Iterable[Fault]:
    known = {stage.name for stage in stages}
    sources = {stage.name: [name for name in _source_names(stage) if name in known] for stage in stages}
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as cycle:
        path = " -> ".join(cycle.args[1])
        yield Fault("stages", f"the sources form a cycle: {path}", "remove one of these sources")
        return
    needed = {stage.name for stage in stages if stage.output is not None}
    needed |= upstream_of(needed, sources)
    yield from _prewarm_faults(stages, sources)
    if needed:
        for stage in stages:
            if stage.name not in needed:
                yield Fault(
                    f"stage '{stage.name}'",
                    "no output needs it, so it would never run",
                    "give it an `output`, make it a source of another stage, or remove it",
                )
    joining = {stage.name for stage in stages if stage.joins}
    for name in joining:
        for other in sorted(upstream_of({name}, sources) & joining):
            yield Fault(
                f"stage '{name}', joins",
                f"stage '{other}' upstream of it joins the companions already",
                "join them once",
            )


def upstream_of(names: Iterable[str], sources: Mapping[str, Sequence[str]]) -> set[str]:
    """Every stage whose output leads to one of `names`."""
    found: set[str] = set()
    pending = [source for name in names for source in sources[name]]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += sources[name]
    return found


def _prewarm_faults(stages: Sequence[Stage], sources: Mapping[str, Sequence[str]]) -> Iterable[Fault]:
    conditional = {stage.name for stage in stages if any(source.when is not None for source in stage.sources)}
    for stage in stages:
        for name in sorted((upstream_of([stage.name], sources) | {stage.name}) & conditional if stage.prewarm else ()):
            yield Fault(
                f"stage '{stage.name}', prewarm",
                f"whether the stage runs at all depends on a condition of stage '{name}'",
                "remove `prewarm`",
            )


def _names(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))
