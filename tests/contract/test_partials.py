"""Rule 205 on whole engines: an abort hands over what each final stage made, whatever runs the stage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from podium import AsyncOmniEngine, FinishReason
from podium.payloads import Text

PIPELINE = """
name: counting
stages:
  counter:
    kind: autoregressive
    produces: text
    output: text
    backend: function
    options: {function: "tests.contract.test_partials:count"}
"""


async def count(prompt: str) -> AsyncIterator[Text]:
    """Three words, and then nothing for ever."""
    for number in range(3):
        yield Text(f"{prompt}{number} ")
    await asyncio.Event().wait()


@pytest.mark.rule("ORCH-INV-205", "ORCH-INV-207")
def test_an_aborted_function_stage_hands_over_what_it_made() -> None:
    async def run() -> None:
        async with asyncio.timeout(60), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            stream = engine.generate("n", request_id="counted")
            pieces = [await anext(stream) for _ in range(3)]
            report = await engine.abort("counted")
            (finish,) = [item async for item in stream]
        assert [piece.delta for piece in pieces] == [Text("n0 "), Text("n1 "), Text("n2 ")]
        assert finish.finish_reason is FinishReason.ABORT
        assert finish.partial == report["counted"].partials["counter"] == Text("n0 n1 n2 ")
        assert finish.request_finished

    asyncio.run(run())
