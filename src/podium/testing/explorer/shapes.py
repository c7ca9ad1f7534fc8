"""What the shipped worlds are built of: stages, edges, and limits that are told apart in a trace.

Worlds of your own need none of it: `World` takes any stages.
"""

from __future__ import annotations

import msgspec

from podium.core.events import FinishReason
from podium.core.graph import EdgeMode, EmptyPolicy, Limits, Modality, Source, Stage, StageKind

ROOMY = Limits(
    queue_timeout_s=16.0,
    dispatch_timeout_s=3.0,
    first_output_timeout_s=5.0,
    chunk_timeout_s=4.0,
    stop_timeout_s=2.0,
    stuck_timeout_s=6.0,
)
ONE_AT_A_TIME = msgspec.structs.replace(ROOMY, max_inflight=1)
TIGHT = msgspec.structs.replace(ONE_AT_A_TIME, max_queued=1, max_buffered_chunks=1)
FINISHES = (FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR)


def stage(
    name: str,
    *sources: Source,
    output: str | None = None,
    limits: Limits = ROOMY,
    on_empty: EmptyPolicy = EmptyPolicy.COMPLETE,
    prewarm: bool = False,
    rerun: bool = False,
    joins: bool = False,
) -> Stage:
    """A stage of an explored world; with `output` it is final."""
    return Stage(
        name=name,
        kind=StageKind.FUNCTION,
        produces=Modality.TEXT,
        sources=sources,
        output=output,
        limits=limits,
        on_empty=on_empty,
        prewarm=prewarm,
        rerun=rerun,
        joins=joins,
    )


def streaming(name: str) -> Source:
    """An edge that passes chunks on as they come."""
    return Source(name, EdgeMode.STREAMING)


def complete(name: str) -> Source:
    """An edge that passes everything on at the end."""
    return Source(name, EdgeMode.COMPLETE)


PAIR = (stage("a", output="text"), stage("b", streaming("a"), output="speech"))
