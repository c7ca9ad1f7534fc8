"""The parts of the `voice` pipeline: weights for its thinker, and its speaker.

Model names live in pipelines and nowhere else. Importing this module imports no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from podium.errors import InvalidRequestError
from podium.payloads import Audio, Text
from podium.pipelines.smollm2 import prepare_smollm2
from podium.stage_function import StageFunction

if TYPE_CHECKING:
    from hibari import Hibari

__all__ = ["Speaker", "SpeakerParams", "prepare_smollm2"]


class SpeakerParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to speak. `speed` 1 is the voice's own pace; with a `seed` the same text gives the same samples."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    speed: Annotated[float, msgspec.Meta(ge=0.5, le=2.0)] = 1.0


class Speaker(StageFunction):
    """Speaks English sentences with hibari, at 24 kHz: one Audio for each sentence of an item."""

    params_type = SpeakerParams

    def __init__(self, *, voice: str = "heart", threads: int = 1) -> None:
        """Load the voice and say a word, since the first one takes half a second. `threads` are ONNX Runtime's."""
        from hibari import Hibari  # noqa: PLC0415 - with the stage only

        self._tts = Hibari(voice=voice, threads=threads)
        self._tts("Ready.")

    def __call__(self, item: object, *, params: SpeakerParams) -> Iterator[Audio]:
        """Speak one item on its own."""
        return self.for_job()(item, params=params)

    def for_job(self) -> Speech:
        """What speaks the items of one job: they share one source of noise, as in one reading of the whole text."""
        return Speech(self._tts)


class Speech:
    """Speaks the sentences of one job, one after the other."""

    def __init__(self, tts: Hibari) -> None:
        self._tts = tts
        self._noise: np.random.Generator | None = None

    def __call__(self, item: object, *, params: SpeakerParams) -> Iterator[Audio]:
        """Speak a text (Text or str); raises InvalidRequestError for anything else."""
        text = item.text if isinstance(item, Text) else item
        if not isinstance(text, str):
            raise InvalidRequestError.because(f"the speaker takes text, not {type(item).__name__}")
        if self._noise is None:
            self._noise = np.random.default_rng(params.seed)
        for phonemes in self._tts.phonemize(text):
            samples = self._tts.from_ids(self._tts.ids(phonemes), params.speed, self._noise)
            if len(samples):
                yield Audio(np.clip(samples, -1.0, 1.0, dtype=np.float32), self._tts.sample_rate)
