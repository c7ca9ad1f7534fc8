"""Reads a pipeline file, or refuses it with everything that is wrong in it, each fault with its line and remedy.

What the name of a backend or processor stands for is asked of a `PartCatalog`: this module imports no adapter, loads no
engine and starts nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import yaml

from podium.core.admission import EngineLimits
from podium.core.graph import Balance, EdgeMode, EmptyPolicy, Limits, Modality, Source, Stage, StageKind, find_faults
from podium.core.identity import PROMPT
from podium.errors import ConfigurationError, Fault, InvalidRequestError
from podium.options import import_callable
from podium.ports.input_processor import BundleProcessor, Processor
from podium.ports.stage_backend import StageBackend
from podium.runtime.config import DEFAULT_PROCESSOR, DEFAULT_TRANSPORT, PipelineConfig, StageConfig
from podium.runtime.marked_yaml import (
    FaultLog,
    Section,
    nearest,
    parse_yaml,
    place,
    read_choice,
    read_entries,
    read_value,
)
from podium.runtime.replica_slot import RestartLimits

PIPELINE_KEYS = ("name", "description", "requires", "install", "companions", "limits", "stages")
STAGE_KEYS = (
    *("kind", "produces", "output", "sources", "backend", "options", "processor", "processor_options", "params"),
    *("transport", "poll_interval_s", "replicas", "restart", "on_empty", "prewarm", "rerun", "joins", "limits"),
    *("labels", "balance"),
)
SOURCE_KEYS = ("mode", "when")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SOURCE = re.compile(r"source '([^']*)'")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class PartCatalog(Protocol):
    """What the names in a pipeline file stand for. `podium.bootstrap` has the one of the package."""

    @property
    def pipelines(self) -> Mapping[str, Path]:
        """The shipped pipelines, and where their files are."""
        ...

    @property
    def backends(self) -> Sequence[str]:
        """The short names of backends."""
        ...

    @property
    def processors(self) -> Sequence[str]:
        """The short names of input processors."""
        ...

    @property
    def transports(self) -> Sequence[str]:
        """The names of transports."""
        ...

    def resolve_backend(self, name: str) -> type[StageBackend]:
        """The class for a short name or `package.module:Class`; raises ConfigurationError."""
        ...

    def resolve_processor(self, name: str) -> type[Processor]:
        """The class for a short name or `package.module:Class`; raises ConfigurationError."""
        ...


def load_pipeline(source: str | Path, catalog: PartCatalog) -> PipelineConfig:
    """Read and check a pipeline: the name of a shipped one, the path of a file, or the text of one.

    A string with a line break is a text. Raises ConfigurationError that lists every fault, with its line.
    """
    if isinstance(source, str) and "\n" in source:
        return parse_pipeline(source, "pipeline", catalog)
    path = catalog.pipelines.get(str(source), Path(source))
    looks_like_a_name = len(path.parts) <= 1 and not path.suffix
    if looks_like_a_name and not path.is_file():
        remedy = f"{nearest(str(source), catalog.pipelines)} (or give the path of a pipeline file)"
        raise ConfigurationError(str(source), [Fault("pipeline", f"there is no pipeline '{source}'", remedy)])
    return parse_pipeline(_read_file(path), str(source), catalog)


def parse_pipeline(text: str, subject: str, catalog: PartCatalog) -> PipelineConfig:
    """Check the text of a pipeline file, which errors call `subject`. Raises ConfigurationError with every fault."""
    log = FaultLog()
    root = parse_yaml(text, log)
    config = None if root is None else _Reader(log, catalog).read_pipeline(root)
    if config is None or log.faults:
        raise ConfigurationError(subject, log.faults)
    return config


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        fault = Fault("pipeline", "there is no such file", "give the path of a pipeline file, or a pipeline's name")
        raise ConfigurationError(str(path), [fault]) from error
    except UnicodeDecodeError as error:
        fault = Fault("pipeline", f"byte {error.start} is not UTF-8", "save the file as UTF-8 text")
        raise ConfigurationError(str(path), [fault]) from error
    except OSError as error:
        fault = Fault("pipeline", f"cannot be read: {error.strerror}", "give the path of a readable file")
        raise ConfigurationError(str(path), [fault]) from error


class _Reader:
    """Goes through one file once. It reads on after a fault, with a stand-in for what it could not read."""

    def __init__(self, log: FaultLog, catalog: PartCatalog) -> None:
        self._log = log
        self._catalog = catalog

    def read_pipeline(self, root: yaml.Node) -> PipelineConfig:
        section = Section(self._log, "", root, PIPELINE_KEYS)
        if section.is_readable:
            section.require("name", "give the pipeline a name")
            section.require("stages", "declare at least one stage")
        requires = section.names("requires")
        for module in requires:
            if not _MODULE.fullmatch(module):
                self._log.add("requires", f"'{module}' cannot be imported", "use a module's name, as in `import name`")
        config = PipelineConfig(
            name=section.scalar("name", str) or "",
            description=section.scalar("description", str) or "",
            requires=requires,
            install=section.scalar("install", str) or "",
            companions=section.scalar("companions", str),
            limits=section.limits("limits", EngineLimits),
            stages=self._read_stages(section.node("stages")),
        )
        self._check_companions(config)
        if section.node("stages") is not None and not self._log.has_fault_at("stages"):
            self._check_graph(config)
        return config

    def _check_companions(self, config: PipelineConfig) -> None:
        """Check that companions are made where they are joined, and joined where they are made."""
        joining = [stage.stage for stage in config.stages if stage.stage.joins]
        if config.companions is None:
            for stage in joining:
                remedy = "add `companions: package.module:function` to the pipeline, or remove `joins`"
                self._log.add(f"stage '{stage.name}', joins", "nothing makes companions that it could join", remedy)
            return
        if config.stages and not joining:
            remedy = "declare `joins: true` at the stage that does, or remove `companions`"
            self._log.add("companions", "no stage joins them", remedy)
        try:
            import_callable(config.companions, "companions")
        except ConfigurationError as error:
            self._take_faults("companions", error)

    def _read_stages(self, node: yaml.Node | None) -> tuple[StageConfig, ...]:
        if node is None:
            return ()
        entries = read_entries(self._log, "stages", node)
        for name in entries:
            self._log.mark(f"stage '{name}'", self._log.line_of(place("stages", name)))
        return tuple(self._read_stage(name, stage) for name, stage in entries.items())

    def _read_stage(self, name: str, node: yaml.Node) -> StageConfig:
        section = Section(self._log, f"stage '{name}'", node, STAGE_KEYS)
        if section.is_readable:
            section.require("kind", f"use one of: {', '.join(StageKind)}")
            section.require("produces", f"use one of: {', '.join(Modality)}")
            section.require("backend", f"use one of: {_choices(self._catalog.backends)}")
        processor = section.scalar("processor", str)
        config = StageConfig(
            stage=self._read_node(name, section),
            backend=section.scalar("backend", str) or "",
            options=section.mapping("options"),
            processor=processor or DEFAULT_PROCESSOR,
            processor_options=section.mapping("processor_options"),
            params=section.mapping("params"),
            transport=section.scalar("transport", str) or DEFAULT_TRANSPORT,
            poll_interval_s=section.scalar("poll_interval_s", float),
            replicas=1 if (replicas := section.scalar("replicas", int)) is None else replicas,
            restart=self._read_restart(section),
        )
        self._check_stage(section, config, has_processor=processor is not None)
        if config.stage.sources and processor is None:
            return config
        accepts = self._check_processor(section, config)
        return msgspec.structs.replace(config, stage=msgspec.structs.replace(config.stage, accepts=accepts))

    def _read_node(self, name: str, section: Section) -> Stage:
        """What the core knows of a stage, but for what its input processor accepts."""
        return Stage(
            name=name,
            kind=section.choice("kind", StageKind) or StageKind.FUNCTION,
            produces=section.choice("produces", Modality) or Modality.TEXT,
            sources=self._read_sources(section),
            output=section.scalar("output", str) or (name if section.node("output") else None),
            on_empty=section.choice("on_empty", EmptyPolicy) or EmptyPolicy.COMPLETE,
            prewarm=section.scalar("prewarm", bool) or False,
            rerun=section.scalar("rerun", bool) or False,
            joins=section.scalar("joins", bool) or False,
            labels=section.names("labels"),
            balance=section.choice("balance", Balance) or Balance.LEAST_LOADED,
            limits=section.limits("limits", Limits),
        )

    def _read_restart(self, section: Section) -> RestartLimits:
        limits = section.limits("restart", RestartLimits, may_be_zero=("attempts",))
        where = place(section.place("restart"), "max_backoff_s")
        if limits.max_backoff_s < limits.backoff_s and not self._log.has_fault_in(section.place("restart")):
            problem = f"{limits.max_backoff_s} is less than backoff_s, {limits.backoff_s}"
            self._log.add(where, problem, "make it at least as long", self._log.line_of(where))
        return limits

    def _read_sources(self, section: Section) -> tuple[Source, ...]:
        if isinstance(section.node("sources"), yaml.SequenceNode):
            return tuple(Source(name) for name in section.names("sources"))
        node = section.node("sources")
        if not isinstance(node, yaml.MappingNode):
            section.mapping("sources")  # says what is wrong with it, if anything stands there
            return ()
        entries = read_entries(self._log, section.place("sources"), node)
        return tuple(self._read_source(place(section.place("sources"), name), name, entries[name]) for name in entries)

    def _read_source(self, where: str, name: str, node: yaml.Node) -> Source:
        """One edge: its mode, or a mapping with its mode and its condition."""
        if isinstance(node, yaml.MappingNode):
            edge = Section(self._log, where, node, SOURCE_KEYS)
            return Source(name, edge.choice("mode", EdgeMode) or EdgeMode.COMPLETE, edge.scalar("when", str))
        mode = read_value(self._log, where, node)
        if not isinstance(mode, str):
            self._log.add(where, "has no mode", f"use one of: {', '.join(EdgeMode)}")
            mode = EdgeMode.COMPLETE  # the stand-in, so that the edge itself is still checked
        return Source(name, read_choice(self._log, where, mode, EdgeMode) or EdgeMode.COMPLETE)

    def _check_stage(self, section: Section, config: StageConfig, *, has_processor: bool) -> None:
        stage, log = config.stage, self._log
        self._check_name(section.where, stage.name)
        if stage.output is not None:
            self._check_name(section.place("output"), stage.output)
        if stage.sources and not has_processor and not log.has_fault_at(section.place("processor")):
            remedy = f"use one of: {_choices(self._catalog.processors)}"
            log.add(section.place("processor"), "is missing, and a stage with sources needs one", remedy)
        is_streamed_to = any(source.mode is EdgeMode.STREAMING for source in stage.sources)
        if stage.prewarm and not is_streamed_to and not log.has_fault_in(section.place("sources")):
            remedy = "remove `prewarm`, or make a source `streaming`"
            log.add(section.place("prewarm"), "the stage has no streaming source to be started before", remedy)
        if config.replicas < 1:
            log.add(section.place("replicas"), f"{config.replicas} makes no sense", "it must be at least 1")
        if config.poll_interval_s is not None and not 0 < config.poll_interval_s < math.inf:
            remedy = "it must be greater than 0 (seconds), or be left out"
            log.add(section.place("poll_interval_s"), f"{config.poll_interval_s} makes no sense", remedy)
        if config.transport not in self._catalog.transports:
            remedy = nearest(config.transport, self._catalog.transports)
            log.add(section.place("transport"), f"unknown transport '{config.transport}'", remedy)
        if config.backend:
            self._check_backend(section, config)

    def _check_name(self, where: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            self._log.add(where, f"'{name}' is not a name", "use letters, digits, '_' and '-'")
        elif name == PROMPT and where == f"stage '{PROMPT}'":
            self._log.add(where, f"'{PROMPT}' is what the prompt of a request is called", "choose another name")

    def _check_backend(self, section: Section, config: StageConfig) -> None:
        """Check what a stage declares against its backend's capabilities, then the options, then the parameters."""
        try:
            backend = self._catalog.resolve_backend(config.backend)
        except ConfigurationError as error:
            self._take_faults(section.place("backend"), error)
            return
        self._check_capabilities(section, config, backend)
        try:
            options = backend.parse_options(config.options)
        except ConfigurationError as error:
            self._take_faults(section.place("options"), error)
            return
        self._check_params(section.place("params"), config, backend, options)

    def _check_capabilities(self, section: Section, config: StageConfig, backend: type[StageBackend]) -> None:
        stage, can, log = config.stage, backend.capabilities, self._log
        if stage.kind not in can.kinds and not log.has_fault_at(section.place("kind")):
            remedy = f"declare {_names(can.kinds)}, or use another backend"
            log.add(section.place("kind"), f"backend '{config.backend}' cannot be {stage.kind}", remedy)
        if stage.produces not in can.produces and not log.has_fault_at(section.place("produces")):
            remedy = f"declare {_names(can.produces)}, or use another backend"
            log.add(section.place("produces"), f"backend '{config.backend}' does not produce {stage.produces}", remedy)
        for source in stage.sources:
            if source.mode is EdgeMode.STREAMING and not can.streams_input:
                where = place(section.place("sources"), source.stage)
                remedy = f"declare `{source.stage}: complete`, or use another backend"
                log.add(where, f"backend '{config.backend}' takes no streaming input", remedy)

    def _check_params(self, where: str, config: StageConfig, backend: type[StageBackend], options: object) -> None:
        """Check the default parameters: together, and when that fails one by one, so that each bad one is named."""
        message = _refusal(backend, options, config.params)
        if message is None:
            return
        each = {name: _refusal(backend, options, {name: value}) for name, value in config.params.items()}
        refusals = {place(where, name): (name, reason) for name, reason in each.items() if reason is not None}
        for at, (name, reason) in (refusals or {where: ("", message)}).items():
            problem, _, remedy = reason.removeprefix(f"params.{name}: ").rpartition("; ")
            self._log.add(at, problem or remedy, remedy if problem else "correct the stage's default parameters")

    def _check_processor(self, section: Section, config: StageConfig) -> frozenset[Modality] | None:
        """Check the input processor and its options; return what it accepts."""
        try:
            processor = self._catalog.resolve_processor(config.processor)
        except ConfigurationError as error:
            self._take_faults(section.place("processor"), error)
            return None
        if config.stage.joins != issubclass(processor, BundleProcessor):
            self._log.add(section.place("processor"), *_misfit(config))
        try:
            processor.parse_options(config.processor_options)
        except ConfigurationError as error:
            self._take_faults(section.place("processor_options"), error)
        return processor.accepts

    def _check_graph(self, config: PipelineConfig) -> None:
        """Check the stages together; faults that only come from a stand-in are left out."""
        log = self._log
        unknown = {stage.name for stage in config.stages if log.has_fault_at(f"stage '{stage.name}', produces")}
        edges_are_known = not any(log.has_fault_at(f"stage '{stage.name}', sources") for stage in config.stages)
        unlabelled = {stage.name for stage in config.stages if log.has_fault_at(f"stage '{stage.name}', labels")}
        stages = [_without_what_is_unknown(stage.stage, unknown, unlabelled) for stage in config.stages]
        for fault in find_faults(stages):
            is_about_reach = fault.where.startswith("stage ") and ", " not in fault.where
            if not is_about_reach or (edges_are_known and not log.has_fault_at(fault.where)):
                source = _SOURCE.search(fault.problem)
                at = place(fault.where, source[1]) if source else fault.where
                log.add(fault.where, fault.problem, fault.remedy, log.line_of(at))

    def _take_faults(self, where: str, error: ConfigurationError) -> None:
        """Take over what a part says about its own options, under the place where they stand in the file."""
        leaf = re.split(r"\.|, ", where)[-1]
        for fault in error.faults:
            inner = fault.where.split(", ")[-1].removeprefix(leaf).removeprefix(".")
            self._log.add(place(where, inner) if inner else where, fault.problem, fault.remedy)


def _refusal(backend: type[StageBackend], options: object, params: Mapping[str, object]) -> str | None:
    """Why a backend does not take these parameters; None when it does."""
    try:
        backend.parse_params(options, params)
    except InvalidRequestError as error:
        return error.record.message
    return None


def _misfit(config: StageConfig) -> tuple[str, str]:
    """How a processor and `joins` do not go together, and the remedy."""
    if config.stage.joins:
        return f"'{config.processor}' does not join companions", "use `bundle`, or a BundleProcessor of your own"
    return f"'{config.processor}' joins companions, and the stage does not", "add `joins: true`, or use another"


def _without_what_is_unknown(stage: Stage, modalities: set[str], labels: set[str]) -> Stage:
    """The stage without what cannot be checked because the modality or the labels of a source could not be read."""
    sources = tuple(
        msgspec.structs.replace(source, when=None) if source.stage in labels else source for source in stage.sources
    )
    is_unknown = any(source.stage in modalities for source in sources)
    return msgspec.structs.replace(stage, sources=sources, accepts=None if is_unknown else stage.accepts)


def _choices(names: Iterable[str]) -> str:
    return ", ".join([*names, "or package.module:Class"])


def _names(values: Iterable[str]) -> str:
    return " or ".join(sorted(values))
