"""What the echo pipeline hosts; the pipeline as a whole is run by the engine's tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.bootstrap import Catalog
from podium.core.graph import EdgeMode
from podium.errors import InvalidRequestError
from podium.payloads import Audio, Text, join
from podium.pipelines.echo import SAMPLE_RATE, Tones, TonesParams, Words, WordsParams
from podium.runtime.pipeline_file import load_pipeline


async def words_of(prompt: object) -> list[Text]:
    return [word async for word in Words()(prompt, params=WordsParams(delay_s=0))]


async def tones_of(text: str, **params: float) -> list[Audio]:
    return [tone async for tone in Tones()(Text(text), params=TonesParams(delay_s=0, **params))]


@pytest.mark.parametrize("prompt", ["a bc  d", Text("a bc  d"), [{"role": "user", "content": "a bc  d"}]])
async def test_words_come_one_by_one(prompt: object) -> None:
    assert await words_of(prompt) == [Text("a "), Text("bc  "), Text("d")]


@pytest.mark.parametrize("prompt", ["", " \n "])
async def test_nothing_to_say(prompt: str) -> None:
    assert await words_of(prompt) == []


async def test_what_is_no_prompt() -> None:
    with pytest.raises(InvalidRequestError):
        await words_of(5)


async def test_a_tone_for_each_word() -> None:
    tones = await tones_of("One, two! one", tone_s=0.1)
    assert [tone.sample_rate for tone in tones] == [SAMPLE_RATE] * 3
    assert [tone.duration_s for tone in tones] == [0.1] * 3
    one, two, again = (tone.samples for tone in tones)
    assert np.array_equal(one, again), "the same word is the same note"
    assert not np.array_equal(one, two)


async def test_a_tone_can_be_heard_and_does_not_click() -> None:
    (tone,) = await tones_of("hello")
    assert tone.samples.dtype == np.float32
    assert 0.1 < np.sqrt(np.mean(tone.samples**2)) < 0.5
    assert np.max(np.abs(tone.samples)) <= 0.3
    assert abs(tone.samples[0]) < 0.01
    assert abs(tone.samples[-1]) < 0.01


async def test_the_shortest_tone() -> None:
    (tone,) = await tones_of("a", tone_s=1e-6)
    assert tone.samples.shape == (1,)
    assert np.isfinite(tone.samples).all()


async def test_sounds_of_one_answer_can_be_joined() -> None:
    whole = join(await tones_of("a b c", tone_s=0.5))
    assert isinstance(whole, Audio)
    assert whole.duration_s == 1.5


@given(st.text(max_size=80))
def test_the_words_are_the_text(text: str) -> None:
    import asyncio  # noqa: PLC0415 - only here

    words = asyncio.run(words_of(text))
    assert "".join(word.text for word in words) == (text if text.strip() else "")
    assert all(len(word.text.split()) == 1 for word in words)


def test_the_file_is_a_pipeline() -> None:
    config = load_pipeline("echo", Catalog())
    assert config.requires == ()
    assert config.default_params == {
        "thinker": {"delay_s": WordsParams().delay_s},
        "speaker": {"tone_s": TonesParams().tone_s, "delay_s": TonesParams().delay_s},
    }
    assert dict(config.graph.outputs).keys() == {"text", "speech"}
    (source,) = config.graph.stages["speaker"].sources
    assert (source.stage, source.mode) == ("thinker", EdgeMode.STREAMING)


def test_the_file_explains_every_key() -> None:
    """It is the example: each key follows a comment, or has one on its line."""
    lines = [line.strip() for line in Catalog().pipelines["echo"].read_text(encoding="utf-8").splitlines()]
    thinker = lines[lines.index("thinker:") + 1 : lines.index("speaker:")]
    keys = [(before, line) for before, line in pairwise(["", *thinker]) if line and not line.startswith("#")]
    assert all(before.startswith("#") or "#" in line or before.endswith(":") for before, line in keys)
