"""Conditional edges in whole engines: from a label that a function gives to what the client gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from podium.bootstrap import AsyncOmniEngine
from podium.core.events import FinishReason
from podium.errors import StageFailedError
from podium.payloads import Label, Text
from podium.prompts import last_user_text

FORK = """\
name: fork
stages:
  judge:
    kind: function
    produces: text
    backend: function
    options: {function: 'tests.runtime.test_conditions:judge', blocking: false}
    labels: [loud, quiet]
  shouter:
    kind: function
    produces: text
    sources: {judge: {when: loud}}
    processor: complete
    backend: function
    options: {function: 'tests.runtime.test_conditions:shout', blocking: false}
    replicas: 2
    balance: affinity
  whisperer:
    kind: function
    produces: text
    output: whisper
    sources: {judge: {when: quiet}}
    processor: complete
    backend: function
    options: {function: 'tests.runtime.test_conditions:whisper', blocking: false}
  teller:
    kind: function
    produces: text
    output: text
    sources: [shouter, whisperer]
    processor: complete
    backend: function
    options: {function: 'tests.runtime.test_conditions:tell', blocking: false}
"""


def judge(prompt: object) -> Iterator[object]:
    text = last_user_text(prompt)
    yield Text(text)
    yield Label({"!": "loud", "?": "unheard of"}.get(text[-1], "quiet"))


def shout(text: Text) -> Text:
    return Text(text.text.upper())


def whisper(text: Text) -> Text:
    return Text(text.text.lower())


def tell(text: Text) -> Text:
    return Text(f"told: {text.text}")


@pytest.mark.rule("ORCH-INV-116", "ORCH-INV-108")
@pytest.mark.parametrize(
    ("prompt", "text", "whispered"),
    [("Hey!", "told: HEY!", None), ("Psst.", "told: psst.", "psst.")],
    ids=["loud", "quiet"],
)
async def test_a_request_takes_the_way_that_its_first_stage_says(prompt: str, text: str, whispered: str | None) -> None:
    async with AsyncOmniEngine.from_pipeline(FORK) as engine:
        result = await engine.generate(prompt, affinity="me").collect()
        assert result.outputs["text"] == Text(text)
        assert result.outputs["whisper"] == (None if whispered is None else Text(whispered))
        assert set(result.finish_reasons.values()) == {FinishReason.STOP}
        assert (await engine.statistics()).core.is_idle


@pytest.mark.rule("ORCH-INV-116", "ORCH-INV-200")
async def test_a_label_that_the_file_does_not_list_fails_the_request_alone() -> None:
    async with AsyncOmniEngine.from_pipeline(FORK) as engine:
        with pytest.raises(
            StageFailedError, match="'judge' finished with 'unheard of'; it may finish with: loud, quiet"
        ):
            await engine.generate("What?").collect()
        assert (await engine.generate("Hey!").collect()).outputs["text"] == Text("told: HEY!")


async def test_the_end_of_an_output_has_the_label_of_its_stage() -> None:
    pipeline = FORK.replace("    labels: [loud, quiet]\n", "    labels: [loud, quiet]\n    output: verdict\n")
    async with AsyncOmniEngine.from_pipeline(pipeline) as engine:
        items = [item async for item in engine.generate("Hey!", outputs=["verdict"])]
        assert [item.label for item in items] == [None, "loud"]
