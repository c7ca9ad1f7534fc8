"""What a pipeline is once its file was read: its stages, what runs them, its limits; and how parameters are merged.

Reading and checking a file is `pipeline_file`'s work. Nothing here knows what the name of a backend or processor stands
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from podium.core.admission import EngineLimits
from podium.core.graph import Graph, Stage
from podium.errors import InvalidRequestError
from podium.runtime.marked_yaml import describe, nearest
from podium.runtime.replica_slot import RestartLimits

StageParams: TypeAlias = Mapping[str, Mapping[str, object]]
"""Sampling parameters by stage, as a caller or a file writes them; not yet checked by a backend."""

DEFAULT_PROCESSOR = "prompt"
DEFAULT_TRANSPORT = "in_process"


class StageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a file: what the core must know of it (`stage`), and what runs it, where, how often.

    `backend`, `processor` and `transport` are names for the catalog. `options` and `params` are as written in the file;
    the backend's `parse_options` and `parse_params` have accepted them. With a `poll_interval_s` the replicas' outputs
    are picked up so often, in seconds, instead of one by one as they come. `restart` says how a lost replica comes
    back.
    """

    stage: Stage
    backend: str
    options: Mapping[str, object] = {}
    processor: str = DEFAULT_PROCESSOR
    processor_options: Mapping[str, object] = {}
    params: Mapping[str, object] = {}
    transport: str = DEFAULT_TRANSPORT
    poll_interval_s: float | None = None
    replicas: int = 1
    restart: RestartLimits = RestartLimits()

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.stage.name


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline file that was checked. `requires` are the modules that it needs, `install` says how to get them.

    `companions` is the import path of what makes the prompts of a request's companions.
    """

    name: str
    stages: tuple[StageConfig, ...]
    description: str = ""
    requires: tuple[str, ...] = ()
    install: str = ""
    companions: str | None = None
    limits: EngineLimits = EngineLimits()

    @property
    def graph(self) -> Graph:
        """The stages as the core needs them."""
        return Graph([stage.stage for stage in self.stages], f"pipeline '{self.name}'")

    @property
    def default_params(self) -> StageParams:
        """The sampling parameters of the file, for every stage."""
        return {stage.name: stage.params for stage in self.stages}


def merge_params(defaults: StageParams, *overlays: object) -> dict[str, dict[str, object]]:
    """Sampling parameters for each stage: every overlay covers what stands before it, parameter by parameter.

    The order of podium is `merge_params(file, engine, request)`: request > engine > file. A stage that an overlay does
    not name, and a parameter that it does not set, stay as they are. Raises InvalidRequestError for an overlay that is
    not a mapping of mappings, and for a stage that `defaults` does not have.
    """
    merged = {stage: dict(values) for stage, values in defaults.items()}
    for overlay in overlays:
        if not isinstance(overlay, Mapping):
            raise InvalidRequestError.because(
                f"params: is {describe(overlay)}; it must map each stage to its parameters, as in"
                f" {{'{next(iter(defaults), 'stage')}': {{'name': value}}}}",
            )
        for stage, values in overlay.items():
            if stage not in merged:
                raise InvalidRequestError.because(f"params: unknown stage '{stage}'; {nearest(str(stage), defaults)}")
            if not isinstance(values, Mapping):
                raise InvalidRequestError.because(
                    f"params.{stage}: is {describe(values)}; it must map names of parameters to values",
                    stage=stage,
                )
            merged[stage].update({str(name): value for name, value in values.items()})
    return merged
