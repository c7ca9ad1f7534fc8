"""Random pipelines: chains, fans and joins of up to five stages, streaming and complete, finals anywhere.

It draws graphs only; what runs in a stage is not known here.
"""

from __future__ import annotations

from random import Random

import msgspec

from podium.core.graph import DELIVERABLE, EdgeMode, EmptyPolicy, Modality, Source, Stage, StageKind
from podium.testing.simulation.weather import Weather, draw_limits

NAMES = ("a", "b", "c", "d", "e")
MODES = tuple(EdgeMode)
DELIVERED = tuple(sorted(DELIVERABLE))


def draw_stages(draw: Random, weather: Weather) -> tuple[Stage, ...]:
    """The stages of one world, sources before consumers."""
    count = draw.choices((1, 2, 3, 4, 5), (2, 3, 4, 3, 1))[0]
    roots = 1 if draw.random() < 0.8 else 2
    mode = draw.choice((None, *MODES))
    stages: list[Stage] = []
    for position, name in enumerate(NAMES[:count]):
        before = [stage.name for stage in stages]
        wanted = draw.choices((1, 2, 3), (6, 2, 1))[0] if position >= roots else 0
        sources = sorted(draw.sample(before, min(wanted, len(before))))
        stages.append(
            Stage(
                name=name,
                kind=draw.choice(tuple(StageKind)),
                produces=Modality(draw.choice(DELIVERED)),
                sources=tuple(Source(source, mode or draw.choice(MODES)) for source in sources),
                on_empty=EmptyPolicy.ERROR if draw.random() < 0.1 else EmptyPolicy.COMPLETE,
                prewarm=draw.random() < 0.15,
                rerun=draw.random() < 0.4,
                limits=draw_limits(draw, weather),
            )
        )
    return _with_outputs(draw, stages)


def _with_outputs(draw: Random, stages: list[Stage]) -> tuple[Stage, ...]:
    """Each stage that nobody consumes is final, and some in the middle are."""
    consumed = {source.stage for stage in stages for source in stage.sources}
    return tuple(
        msgspec.structs.replace(stage, output=f"{stage.name} out")
        if stage.name not in consumed or draw.random() < 0.3
        else stage
        for stage in stages
    )
