"""What the `echo` pipeline hosts: a thinker that repeats the prompt, and a speaker that hums a tone per word.

They need no engine and always do the same for the same input: for a first look, for tests, and as an example of how a
stage is written.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from podium.payloads import Audio, Text
from podium.prompts import last_user_text
from podium.stage_function import StageFunction

SAMPLE_RATE = 24_000
"""In Hz."""

_WORD = re.compile(r"\s*\S+\s*")
_LOWEST_HZ = 220.0
_STEPS = (0, 2, 4, 7, 9, 12, 14, 16, 19, 21)  # a pentatonic scale: whatever is said, it sounds like a tune
_FADE_S = 0.008  # tones that begin and end at full volume would click

Seconds = Annotated[float, msgspec.Meta(ge=0, le=60)]


class WordsParams(msgspec.Struct, frozen=True, kw_only=True):
    """`delay_s` is the pause before each word, in seconds."""

    delay_s: Seconds = 0.03


class Words(StageFunction):
    """Gives back the words of the prompt, or of the last message of the user, as one Text each."""

    params_type: ClassVar[type[msgspec.Struct] | None] = WordsParams

    async def __call__(self, prompt: object, *, params: WordsParams) -> AsyncIterator[Text]:
        """The words, with the white space around them: joined they are the text again."""
        for word in _WORD.findall(last_user_text(prompt)):
            await asyncio.sleep(params.delay_s)
            yield Text(word)


class TonesParams(msgspec.Struct, frozen=True, kw_only=True):
    """`tone_s` is how long a tone sounds, `delay_s` the pause before it is made, both in seconds."""

    tone_s: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.16
    delay_s: Seconds = 0.005


class Tones(StageFunction):
    """Gives a tone for each word of a text: the same word is always the same note."""

    params_type: ClassVar[type[msgspec.Struct] | None] = TonesParams

    async def __call__(self, text: Text, *, params: TonesParams) -> AsyncIterator[Audio]:
        """One Audio of `tone_s` seconds for each word."""
        for word in text.text.split():
            await asyncio.sleep(params.delay_s)
            yield _make_tone(_pitch_of(word), params.tone_s)


def _pitch_of(word: str) -> float:
    """The frequency of a word, in Hz. Neither case nor punctuation changes it."""
    letters = "".join(filter(str.isalnum, word.lower()))
    step = _STEPS[zlib.crc32(letters.encode()) % len(_STEPS)]
    return float(_LOWEST_HZ * 2 ** (step / 12))


@lru_cache(maxsize=64)
def _make_tone(pitch: float, duration_s: float) -> Audio:
    times = np.arange(max(1, round(duration_s * SAMPLE_RATE)), dtype=np.float32) / SAMPLE_RATE
    fade_s = min(_FADE_S, duration_s / 2)
    envelope = np.clip(np.minimum(times, times[::-1]) / fade_s, 0.0, 1.0)
    samples = 0.3 * envelope * np.sin(2 * np.pi * pitch * times)
    samples = samples.astype(np.float32)
    samples.setflags(write=False)  # every use of the note shares them
    return Audio(samples, SAMPLE_RATE)
