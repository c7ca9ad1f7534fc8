"""A catalog with two backends and two processors that exist in name only: what pipeline files are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

from podium.core.graph import Modality, StageKind
from podium.core.identity import JobKey, Payload
from podium.errors import ConfigurationError, Fault, InvalidRequestError
from podium.ports.input_processor import BundleMember, BundleProcessor, Processor
from podium.ports.stage_backend import Capabilities, Placement, StageBackend
from podium.runtime.marked_yaml import nearest

_OPTIONS = ("model", "threads")
_PARAMS = ("max_tokens", "temperature", "seed")


class FakeBackend:
    """Declares and parses; runs nothing."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        kinds=frozenset({StageKind.AUTOREGRESSIVE, StageKind.FUNCTION}),
        produces=frozenset({Modality.TEXT, Modality.SPEECH, Modality.TOKENS}),
        streams_input=True,
        partial_on_stop=True,
        placement=Placement.LOOP,
    )

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> object:
        unknown = [name for name in values if name not in _OPTIONS]
        faults = [Fault(f"options.{name}", "unknown option", nearest(name, _OPTIONS)) for name in unknown]
        if not isinstance(values.get("threads", 1), int):
            faults.append(Fault("threads", "is not a number", "give a whole number"))
        if faults:
            raise ConfigurationError("options", faults)
        return dict(values)

    @classmethod
    def parse_params(cls, options: object, values: Mapping[str, object]) -> object:
        for name, value in values.items():
            if name not in _PARAMS:
                raise InvalidRequestError.because(f"unknown parameter '{name}'; use one of: {', '.join(_PARAMS)}")
            if not isinstance(value, int | float):
                raise InvalidRequestError.because(f"params.{name}: must be a number")
        if values.get("max_tokens") == 0 and "seed" in values:
            raise InvalidRequestError.because("these cannot be combined")
        return dict(values)


class WholeInputBackend(FakeBackend):
    """Takes all of its input at once."""

    capabilities = Capabilities(
        kinds=frozenset({StageKind.DIFFUSION}),
        produces=frozenset({Modality.IMAGE}),
        streams_input=False,
        partial_on_stop=False,
        placement=Placement.THREAD,
    )


class AnyProcessor:
    """Takes every modality; has one option."""

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.LOOP

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> object:
        faults = [Fault(name, "unknown option", nearest(name, ["join"])) for name in values if name != "join"]
        if faults:
            raise ConfigurationError("processor", faults)
        return dict(values)


class TextProcessor(AnyProcessor):
    """Takes text only."""

    accepts = frozenset({Modality.TEXT})
    placement: ClassVar[Placement] = Placement.LOOP


class JoiningProcessor(BundleProcessor):
    """Takes every modality, of companions too. It has no options."""

    def __init__(self, options: Payload) -> None:
        """Nothing is needed."""

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> object:
        return dict(values)

    def join(self, job: JobKey, prompt: Payload, bundle: Sequence[BundleMember]) -> Sequence[Payload]:
        raise NotImplementedError


class FakeCatalog:
    """The names `fake` and `whole` for backends, `prompt`, `text` and `joining` for processors."""

    backends: Sequence[str] = ("fake", "whole")
    processors: Sequence[str] = ("prompt", "text", "joining")
    transports: Sequence[str] = ("in_process",)

    def __init__(self, pipelines: Mapping[str, Path] | None = None) -> None:
        self.pipelines: Mapping[str, Path] = pipelines or {}

    def resolve_backend(self, name: str) -> type[StageBackend]:
        known = {"fake": FakeBackend, "whole": WholeInputBackend}
        if name not in known:
            fault = Fault("backend", f"unknown backend '{name}'", nearest(name, known))
            raise ConfigurationError(name, [fault])
        return cast(type[StageBackend], known[name])

    def resolve_processor(self, name: str) -> type[Processor]:
        known = {"prompt": AnyProcessor, "text": TextProcessor, "joining": JoiningProcessor}
        if name not in known:
            fault = Fault("processor", f"unknown processor '{name}'", nearest(name, known))
            raise ConfigurationError(name, [fault])
        return cast(type[Processor], known[name])
