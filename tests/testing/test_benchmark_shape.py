"""Shapes say what a run must give; everything that is measured is checked against that."""

from __future__ import annotations

import pytest

from podium.core.graph import EdgeMode
from podium.testing.benchmark_shape import Layout, Shape, parse_shape


@pytest.mark.parametrize(
    ("text", "outputs", "items"),
    [
        ("3x1x1", 3, 2),
        ("3x32x64", 96, 33),
        ("3x32x64:complete", 96, 33),
        ("3x32x64:all-final", 96, 99),
        ("fan-out:5x8x2", 40, 36),
        ("fan-in:5x8x2", 64, 33),  # 4 × 8, and one for each of those
        ("fan-in:5x8x2:complete", 40, 9),
        ("1x4x1", 4, 5),
    ],
)
def test_what_a_request_gives(text: str, outputs: int, items: int) -> None:
    shape = parse_shape(text)
    assert (shape.outputs_per_request, shape.items_per_request) == (outputs, items)
    assert str(shape) == text


def test_every_part_of_a_text() -> None:
    assert parse_shape("fan-in:3×2×5:complete:all-final:replicas=4") == Shape(
        stages=3,
        outputs=2,
        concurrent=5,
        layout=Layout.FAN_IN,
        mode=EdgeMode.COMPLETE,
        all_final=True,
        replicas=4,
    )
    assert parse_shape(str(parse_shape("3x1x1:replicas=4"))).replicas == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3x1", "shape: '3x1' is unknown; write it as 3x32x64, fan-out:4x8x16 or 3x32x64:complete"),
        ("3x0x1", "shape: '3x0x1' has a 0; every number must be at least 1"),
        ("ring:3x1x1", "shape: layout 'ring' is unknown; use chain, fan-out, fan-in"),
        ("3x1x1:fast", "shape: '3x1x1:fast' has 'fast'; use complete, all-final or replicas=N"),
    ],
)
def test_what_is_no_shape(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="shape") as refusal:
        parse_shape(text)
    assert str(refusal.value) == message


def test_the_graph_has_the_edges_of_the_layout() -> None:
    graph = parse_shape("fan-in:3x1x1:complete").graph()
    assert [source.stage for source in graph.stages["stage2"].sources] == ["stage0", "stage1"]
    assert {source.mode for source in graph.stages["stage2"].sources} == {EdgeMode.COMPLETE}
    assert list(graph.outputs) == ["output2"]
    assert list(parse_shape("fan-out:3x1x1").graph().outputs) == ["output1", "output2"]
