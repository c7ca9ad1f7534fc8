"""The floor gives as many outputs as an engine would: only then is it a floor."""

from __future__ import annotations

import asyncio
import threading

import pytest

from podium.testing.bare_floor import Echo, loop_in_thread, open_floor
from podium.testing.benchmark_shape import parse_shape

SHAPES = ("1x1x1", "3x1x2", "3x4x2", "3x4x2:complete", "3x4x2:all-final", "fan-out:4x3x2", "fan-in:4x3x2:complete")


@pytest.mark.parametrize("text", [*SHAPES, "fan-in:4x3x2"])
async def test_it_gives_what_the_shape_says(text: str) -> None:
    shape = parse_shape(text)
    async with open_floor(shape) as floor:
        arrived = await asyncio.gather(*(floor.call() for _ in range(3)))
        finals = sum(shape.is_final(stage) for stage in range(shape.stages))
        assert arrived == [shape.items_per_request - finals] * 3
        assert floor.given == 3 * shape.outputs_per_request


async def test_the_crossing_goes_there_and_back() -> None:
    with loop_in_thread() as inner:
        echo = Echo(inner)
        for _ in range(3):
            await echo.call()
            await echo.call_without_task()


async def test_nothing_is_left() -> None:
    before = set(threading.enumerate())
    async with open_floor(parse_shape("3x1x1")) as floor:
        await floor.call()
        assert set(threading.enumerate()) != before
    assert set(threading.enumerate()) == before
