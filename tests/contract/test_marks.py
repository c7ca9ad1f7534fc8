"""Rule 105: the end of a segment, of a stage and of the request are three different marks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from podium import AsyncOmniEngine, OmniOutput
from podium.core.events import FinishReason
from podium.core.graph import Modality
from podium.core.identity import JobKey
from podium.payloads import SegmentEnd, Text, join
from podium.processors.sentences import SentencesProcessor

PIPELINE = """
name: marks
stages:
  turns:
    kind: function
    produces: text
    output: text
    backend: function
    options: {function: "tests.contract.test_marks:turns"}
  shout:
    kind: function
    produces: text
    output: loud
    sources: {turns: streaming}
    processor: sentences
    backend: function
    options: {function: "tests.contract.test_marks:shout"}
"""


def turns(prompt: str) -> Iterator[object]:
    """Each word is a segment of its own."""
    for word in prompt.split():
        yield Text(word)
        yield SegmentEnd()


def shout(text: Text) -> Text:
    return Text(text.text.upper())


@pytest.mark.rule("ORCH-INV-105")
def test_three_ends_have_three_marks() -> None:
    async def run() -> list[OmniOutput]:
        async with AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            return [item async for item in engine.generate("well then")]

    items = asyncio.run(run())
    text = [item for item in items if item.output == "text"]
    assert [item.segment_finished for item in text] == [False, True, False, True, False]
    assert [item.stage_finished for item in text] == [False] * 4 + [True]
    assert not any(item.request_finished for item in text)
    loud = [item for item in items if item.output == "loud"]
    assert [item.delta for item in loud] == [Text("WELL"), Text("THEN"), None]
    assert [item.request_finished for item in items] == [False] * (len(items) - 1) + [True]
    assert text[-1].finish_reason is loud[-1].finish_reason is FinishReason.STOP
    assert [item.sequence for item in items] == list(range(len(items)))


@pytest.mark.rule("ORCH-INV-105")
def test_the_end_of_a_segment_ends_a_sentence_and_leaves_no_trace_in_the_whole() -> None:
    processor = SentencesProcessor(SentencesProcessor.parse_options({}))
    stream = processor.open(JobKey("r", "s", "main", 0), None, {"turns": Modality.TEXT})
    assert stream.feed("turns", [Text("Not over"), SegmentEnd(), Text("Nor this")]) == [Text("Not over")]
    assert stream.end("turns") == [Text("Nor this")]
    assert join([Text("a"), SegmentEnd(), Text("b"), SegmentEnd()]) == Text("ab")
