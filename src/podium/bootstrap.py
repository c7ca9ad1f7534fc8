"""The only module that knows every part: which class a short name stands for, and which pipelines are shipped.

Parts are imported when they are asked for, so that nothing here needs an engine to be installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self, cast

from podium.core.graph import Modality
from podium.core.identity import Payload, ReplicaKey
from podium.errors import ConfigurationError, Fault
from podium.options import import_callable, import_object
from podium.ports.input_processor import BundleProcessor, InputProcessor, Processor
from podium.ports.stage_backend import Capabilities, Placement, StageBackend
from podium.ports.stage_client import StageClient
from podium.runtime import async_omni_engine, omni_engine, pipeline_file
from podium.runtime.config import PipelineConfig, StageConfig, StageParams
from podium.runtime.journal import Journal
from podium.runtime.marked_yaml import nearest
from podium.runtime.parts import EngineParts, StageParts
from podium.transports.polling import PollingClient

BACKENDS: Mapping[str, str] = {
    "function": "podium.backends.function:FunctionBackend",
    "vllm": "podium.backends.vllm:VllmBackend",
}
PROCESSORS: Mapping[str, str] = {
    "bundle": "podium.processors.bundle:WholeBundleProcessor",
    "complete": "podium.processors.complete:CompleteProcessor",
    "function": "podium.processors.function:FunctionProcessor",
    "passthrough": "podium.processors.passthrough:PassthroughProcessor",
    "prompt": "podium.processors.prompt:PromptProcessor",
    "sentences": "podium.processors.sentences:SentencesProcessor",
}
TRANSPORTS: Mapping[str, str] = {
    "in_process": "podium.transports.in_process:in_process_client",
}
PIPELINES = Path(__file__).parent / "pipelines"


class Catalog:
    """What the names in a pipeline file stand for; `package.module:Class` stands for itself."""

    @property
    def pipelines(self) -> Mapping[str, Path]:
        """The shipped pipelines by name."""
        return {path.stem: path for path in sorted(PIPELINES.glob("*.yaml"))}

    @property
    def backends(self) -> Sequence[str]:
        """The short names of backends."""
        return tuple(BACKENDS)

    @property
    def processors(self) -> Sequence[str]:
        """The short names of input processors."""
        return tuple(PROCESSORS)

    @property
    def transports(self) -> Sequence[str]:
        """The names of transports."""
        return tuple(TRANSPORTS)

    def resolve_backend(self, name: str) -> type[StageBackend]:
        """The backend's class. Raises ConfigurationError when there is none, or what is there is no backend."""
        return resolve_backend(name)

    def resolve_processor(self, name: str) -> type[Processor]:
        """The processor's class. Raises ConfigurationError when there is none, or what is there is no processor."""
        return resolve_processor(name)


CATALOG = Catalog()


class PipelineSummary(NamedTuple):
    """A shipped pipeline at a glance. `missing` are modules that it needs; with `faults` it cannot be loaded at all."""

    name: str
    description: str
    stages: tuple[str, ...]
    outputs: tuple[str, ...]
    missing: tuple[str, ...]
    install: str
    faults: tuple[Fault, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether it would run here and now."""
        return not self.missing and not self.faults


def load_pipeline(source: str | Path) -> PipelineConfig:
    """Read and check a pipeline: a shipped one, a file, or a text. Raises ConfigurationError with every fault."""
    return pipeline_file.load_pipeline(source, CATALOG)


def list_pipelines() -> list[PipelineSummary]:
    """The shipped pipelines, by name."""
    return [_summarise(name) for name in CATALOG.pipelines]


def missing_requirements(config: PipelineConfig) -> tuple[str, ...]:
    """The modules that a pipeline needs and that are not installed."""
    return tuple(module for module in config.requires if not _is_installed(module))


def check_requirements(config: PipelineConfig) -> None:
    """Raise ConfigurationError, with how to install them, when modules are missing that a pipeline needs."""
    missing = missing_requirements(config)
    if missing:
        remedy = f"install what it needs: {config.install}" if config.install else "install what is missing"
        fault = Fault("requires", f"not installed: {', '.join(missing)}", remedy)
        raise ConfigurationError(f"pipeline '{config.name}'", [fault])


def resolve_backend(name: str) -> type[StageBackend]:
    """The class of a backend, by short name or as `package.module:Class`. Raises ConfigurationError."""
    found = cast("type[StageBackend]", _resolve("backend", name, BACKENDS, StageBackend))
    if not isinstance(found.capabilities, Capabilities):
        raise _unusable("backend", name, "its `capabilities` are no Capabilities", "declare them as a ClassVar")
    return found


def resolve_processor(name: str) -> type[Processor]:
    """The class of an input processor, by short name or as `package.module:Class`. Raises ConfigurationError."""
    found = _find_class("processor", name, PROCESSORS, InputProcessor)
    if issubclass(found, BundleProcessor):
        return found
    return cast("type[InputProcessor]", _check_port("processor", name, found, InputProcessor))


def _resolve(kind: str, name: str, known: Mapping[str, str], port: type) -> type:
    """The class that `name` stands for, which must have everything that `port` asks for."""
    return _check_port(kind, name, _find_class(kind, name, known, port), port)


def _find_class(kind: str, name: str, known: Mapping[str, str], port: type) -> type:
    if ":" not in name and name not in known:
        raise ConfigurationError(name, [Fault(kind, f"unknown {kind} '{name}'", _name_remedy(name, known))])
    found = import_object(known.get(name, name), kind)
    if not isinstance(found, type):
        raise _unusable(kind, name, "it is not a class", f"name a class that implements podium.ports.{port.__name__}")
    return found


def _check_port(kind: str, name: str, found: type, port: type) -> type:
    lacking = sorted(_members(port) - set(dir(found)))
    if lacking:
        raise _unusable(kind, name, f"it lacks {', '.join(lacking)}", f"implement all of {port.__name__}")
    return found


def _members(port: type) -> set[str]:
    return {name for name in (*vars(port), *port.__annotations__) if not name.startswith("_")}


def _name_remedy(name: str, known: Mapping[str, str]) -> str:
    return f"{nearest(name, known)} (or write package.module:Class)"


def _unusable(kind: str, name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(name, [Fault(kind, f"'{name}' cannot be used: {problem}", remedy)])


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is not installed
        return False


def _summarise(name: str) -> PipelineSummary:
    try:
        config = load_pipeline(name)
    except ConfigurationError as error:
        return PipelineSummary(name, "", (), (), (), "", error.faults)
    return PipelineSummary(
        name=name,
        description=config.description,
        stages=tuple(config.graph.stages),
        outputs=tuple(config.graph.outputs),
        missing=missing_requirements(config),
        install=config.install,
    )


class AsyncOmniEngine(async_omni_engine.AsyncOmniEngine):
    """The engine of a pipeline file."""

    @classmethod
    def from_pipeline(
        cls,
        source: str | Path,
        *,
        params: StageParams | None = None,
        journal: str | Path | None = None,
        journal_payloads: bool = False,
        on_progress: Callable[[str, str], None] | None = None,
    ) -> Self:
        """An engine for a shipped pipeline (by name), a file, or the text of one; not started yet.

        `params` covers the file's sampling parameters, for every request. `journal` is a file that every step of the
        core is written to, for `podium replay`; with `journal_payloads` what the stages produced is written too.

        Raises ConfigurationError with every fault of the file, and what is not installed that it needs, and
        InvalidRequestError when `params` do not fit.
        """
        config = load_pipeline(source)
        check_requirements(config)
        parts = assemble(config)
        observers = () if journal is None else (Journal(journal, keeps_payloads=journal_payloads),)
        return cls(parts, params=params, observers=observers, on_progress=on_progress)


class OmniEngine(omni_engine.OmniEngine):
    """The same for synchronous callers."""

    @classmethod
    def from_pipeline(
        cls,
        source: str | Path,
        *,
        params: StageParams | None = None,
        journal: str | Path | None = None,
        journal_payloads: bool = False,
        on_progress: Callable[[str, str], None] | None = None,
    ) -> Self:
        """As AsyncOmniEngine.from_pipeline."""
        return cls(
            AsyncOmniEngine.from_pipeline(
                source,
                params=params,
                journal=journal,
                journal_payloads=journal_payloads,
                on_progress=on_progress,
            )
        )


def assemble(config: PipelineConfig) -> EngineParts:
    """The parts of a checked pipeline. Nothing is loaded or started."""
    produces = {stage.name: stage.stage.produces for stage in config.stages}
    return EngineParts(
        graph=config.graph,
        stages={stage.name: _stage_parts(stage, produces) for stage in config.stages},
        default_params=config.default_params,
        limits=config.limits,
        companions=None if config.companions is None else import_callable(config.companions, "companions"),
    )


def _stage_parts(config: StageConfig, produces: Mapping[str, Modality]) -> StageParts:
    backend = resolve_backend(config.backend)
    processor = resolve_processor(config.processor)
    options = backend.parse_options(config.options)
    processor_options = processor.parse_options(config.processor_options)
    make_transport = import_callable(TRANSPORTS[config.transport], "transport")
    needs = (backend.capabilities.placement, processor.placement)
    placement = Placement.THREAD if Placement.THREAD in needs else Placement.LOOP
    sources = {source.stage: produces[source.stage] for source in config.stage.sources}

    def make_client(replica: ReplicaKey) -> StageClient:
        client = cast(
            "StageClient",
            make_transport(
                replica,
                lambda: backend(config.name, options),
                lambda: processor(processor_options),
                sources,
                placement,
            ),
        )
        return client if config.poll_interval_s is None else PollingClient(client, config.poll_interval_s)

    def parse_params(values: Mapping[str, object]) -> Payload:
        return backend.parse_params(options, values)

    return StageParts(backend.capabilities, parse_params, make_client, config.replicas, config.restart)
