"""Random pipelines for tests of the core: anything that a graph allows, often with companions that are joined."""

from __future__ import annotations

from hypothesis import strategies as st

from podium.core.graph import Balance, EdgeMode, EmptyPolicy, Limits, Source, Stage, upstream_of
from tests.support.core_world import make_stage

LABELS = ("x", "y")
"""What a producer may say at its end, where edges have conditions."""


@st.composite
def stage_limits(draw: st.DrawFn) -> Limits:
    return Limits(
        max_inflight=draw(st.integers(1, 2)),
        max_queued=draw(st.sampled_from([1, 2, 3, 8])),
        max_buffered_chunks=draw(st.integers(2, 4)),
        queue_timeout_s=8.0,
        dispatch_timeout_s=3.0,
        first_output_timeout_s=5.0,
        chunk_timeout_s=4.0,
        bundle_timeout_s=draw(st.sampled_from([1.5, 9.0])),
        stop_timeout_s=2.0,
        stuck_timeout_s=6.0,
    )


@st.composite
def edges(draw: st.DrawFn, source: str) -> Source:
    mode = draw(st.sampled_from(EdgeMode))
    return Source(source, mode, draw(st.sampled_from([None, None, *LABELS])) if mode is EdgeMode.COMPLETE else None)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Stage, ...]:
    """Up to four stages: chains, fan-out, fan-in, with both kinds of edges, and stages that join companions; whatever
    has no consumer is final.
    """
    is_guided = draw(st.booleans())
    names = "abcd"[: draw(st.sampled_from([2, 3, 3, 4] if is_guided else [1, 2, 2, 3, 3, 4]))]
    sources: dict[str, list[Source]] = {}
    for position, name in enumerate(names):
        fewest = 1 if is_guided and name == names[-1] else 0
        before = st.lists(st.sampled_from(names[:position] or "-"), min_size=fewest, max_size=2, unique=True)
        sources[name] = [draw(edges(one)) for one in draw(before)] if position else []
    joining: set[str] = set()
    for name in names:
        joins = name == names[-1] if is_guided else draw(st.booleans())
        if sources[name] and joins and not upstream_of({name}, edges_of(sources)) & joining:
            joining.add(name)
            sources[name] = [Source(one.stage, when=one.when) for one in sources[name]]
    conditions = {source.stage for several in sources.values() for source in several if source.when is not None}
    consumed = {source.stage for several in sources.values() for source in several}
    return tuple(
        make_stage(
            name,
            *sources[name],
            output=f"out-{name}" if name not in consumed or name in conditions or draw(st.booleans()) else None,
            on_empty=draw(st.sampled_from(EmptyPolicy)),
            prewarm=name not in joining and not conditions and draw(st.booleans()),
            rerun=draw(st.booleans()),
            joins=name in joining,
            labels=LABELS if name in conditions else (),
            balance=draw(st.sampled_from(Balance)),
            limits=draw(stage_limits()),
        )
        for name in names
    )


def edges_of(sources: dict[str, list[Source]]) -> dict[str, list[str]]:
    return {name: [source.stage for source in several] for name, several in sources.items()}
