"""The shapes of pipelines and loads that are measured: stages × outputs of a stage × requests at once.

A shape says what is expected of a run, so that every measurement can be checked by its counts.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from podium.core.graph import EdgeMode, Graph, Limits, Modality, Source, Stage, StageKind

_SPEC = re.compile(r"(?:(?P<layout>[a-z-]+):)?(?P<stages>\d+)[x×](?P<outputs>\d+)[x×](?P<concurrent>\d+)(?P<rest>.*)")


class Layout(StrEnum):
    """How the stages hang together. The client gets what stages without consumers make."""

    CHAIN = "chain"
    """Each stage after the one before."""

    FAN_OUT = "fan-out"
    """The first stage before all others."""

    FAN_IN = "fan-in"
    """All other stages before the last."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline under one load.

    A first stage gives `outputs` pieces for each request. Behind a streaming edge a stage gives one piece for each that
    it gets, while it gets them; behind a complete edge it gives `outputs` pieces when it has got everything. With
    `all_final` the client gets the pieces of every stage. Each stage has `replicas`.
    """

    stages: int
    outputs: int
    concurrent: int
    layout: Layout = Layout.CHAIN
    mode: EdgeMode = EdgeMode.STREAMING
    all_final: bool = False
    replicas: int = 1

    def __str__(self) -> str:
        prefix = "" if self.layout is Layout.CHAIN else f"{self.layout}:"
        suffix = "" if self.mode is EdgeMode.STREAMING else f":{self.mode}"
        suffix += ":all-final" if self.all_final else ""
        suffix += f":replicas={self.replicas}" if self.replicas > 1 else ""
        return f"{prefix}{self.stages}x{self.outputs}x{self.concurrent}{suffix}"

    @property
    def requests_at_most(self) -> int:
        """Room that every limit of the engine has to leave."""
        return self.concurrent + 16384

    def sources(self, stage: int) -> tuple[int, ...]:
        """The stages, counted from 0, that `stage` gets its input from; none for the prompt."""
        if stage == 0:
            return ()
        if self.layout is Layout.CHAIN:
            return (stage - 1,)
        if self.layout is Layout.FAN_OUT:
            return (0,)
        return tuple(range(stage)) if stage == self.stages - 1 else ()

    def gives_per_item(self, stage: int) -> bool:
        """Whether a stage gives one piece for each that it gets."""
        return self.mode is EdgeMode.STREAMING and bool(self.sources(stage))

    def outputs_of(self, stage: int) -> int:
        """The pieces that a stage gives for one request."""
        if self.gives_per_item(stage):
            return sum(self.outputs_of(source) for source in self.sources(stage))
        return self.outputs

    def is_final(self, stage: int) -> bool:
        """Whether the client gets what a stage makes."""
        is_source = any(stage in self.sources(other) for other in range(self.stages))
        return self.all_final or not is_source

    @property
    def outputs_per_request(self) -> int:
        """The pieces of all stages for one request."""
        return sum(self.outputs_of(stage) for stage in range(self.stages))

    @property
    def items_per_request(self) -> int:
        """What the client's iterator gives: the pieces of final stages, and one item for the end of each."""
        return sum(self.outputs_of(stage) + 1 for stage in range(self.stages) if self.is_final(stage))

    def graph(self) -> Graph:
        """The pipeline. Raises ConfigurationError when there is no stage."""
        return Graph([self._stage(stage) for stage in range(self.stages)], subject=f"shape {self}")

    def _stage(self, stage: int) -> Stage:
        room = self.requests_at_most
        return Stage(
            name=stage_name(stage),
            kind=StageKind.FUNCTION,
            produces=Modality.TEXT,
            sources=tuple(Source(stage_name(source), self.mode) for source in self.sources(stage)),
            output=f"output{stage}" if self.is_final(stage) else None,
            limits=Limits(max_inflight=room, max_queued=room),
        )


def stage_name(stage: int) -> str:
    """The name of a stage by its number."""
    return f"stage{stage}"


def parse_shape(text: str) -> Shape:
    """Read `[layout:]STAGESxOUTPUTSxREQUESTS[:complete][:all-final][:replicas=N]`. Raises ValueError."""
    match = _SPEC.fullmatch(text)
    if match is None:
        raise ValueError(f"shape: '{text}' is unknown; write it as 3x32x64, fan-out:4x8x16 or 3x32x64:complete")
    mode, all_final, replicas = EdgeMode.STREAMING, False, 1
    for word in filter(None, match["rest"].split(":")):
        if word == EdgeMode.COMPLETE:
            mode = EdgeMode.COMPLETE
        elif word == "all-final":
            all_final = True
        elif word.startswith("replicas=") and word[9:].isdecimal():
            replicas = int(word[9:])
        else:
            raise ValueError(f"shape: '{text}' has '{word}'; use complete, all-final or replicas=N")
    try:
        layout = Layout(match["layout"] or Layout.CHAIN)
    except ValueError:
        raise ValueError(f"shape: layout '{match['layout']}' is unknown; use {', '.join(Layout)}") from None
    stages, outputs, concurrent = (int(match[name]) for name in ("stages", "outputs", "concurrent"))
    if min(stages, outputs, concurrent, replicas) < 1:
        raise ValueError(f"shape: '{text}' has a 0; every number must be at least 1")
    return Shape(
        stages=stages,
        outputs=outputs,
        concurrent=concurrent,
        layout=layout,
        mode=mode,
        all_final=all_final,
        replicas=replicas,
    )
