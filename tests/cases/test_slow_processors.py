"""B067: an input processor that takes its time holds up its own stage, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence

import pytest

from podium import AsyncOmniEngine
from podium.payloads import Text

PIPELINE = """
name: slow
stages:
  slow:
    kind: function
    produces: text
    output: slow
    processor: function
    processor_options: {function: "tests.cases.test_slow_processors:think"}
    backend: function
    options: {function: "tests.cases.test_slow_processors:same", blocking: false}
  quick:
    kind: function
    produces: text
    output: quick
    backend: function
    options: {function: "tests.cases.test_slow_processors:same", blocking: false}
"""

HELD_UP_S = 60.0

may_go_on = threading.Event()
is_thinking = threading.Event()


def think(sources: Mapping[str, Sequence[object]]) -> object:
    """A processor that returns when the test lets it."""
    is_thinking.set()
    assert may_go_on.wait(HELD_UP_S)
    return sources["prompt"][0]


def same(item: object) -> Text:
    return Text(str(item))


@pytest.mark.case("B067")
@pytest.mark.rule("ORCH-INV-004")
def test_a_slow_processor_holds_up_neither_other_requests_nor_the_loop() -> None:
    may_go_on.clear()
    is_thinking.clear()

    async def run() -> None:
        async with asyncio.timeout(HELD_UP_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            slow = [engine.generate(f"slow {number}", outputs=["slow"]) for number in range(20)]
            await asyncio.to_thread(is_thinking.wait)
            quick = [await engine.generate(f"quick {number}", outputs=["quick"]).collect() for number in range(20)]
            assert [result.outputs["quick"] for result in quick] == [Text(f"quick {number}") for number in range(20)]
            assert (await engine.check_health()).is_ready
            assert (await engine.statistics()).core.requests == 20
            may_go_on.set()
            done = [await stream.collect() for stream in slow]
            assert [result.outputs["slow"] for result in done] == [Text(f"slow {number}") for number in range(20)]

    asyncio.run(run())
