"""`sentences`: cuts text into sentences while it is still being generated, so that speech starts with the first one.

However the text is cut into chunks, the same sentences come out. This module has the stream; where a sentence ends is
decided in `sentence_ends`, what is not spoken in `plain_text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec

from podium.core.graph import Modality
from podium.core.identity import PROMPT, JobKey, Payload
from podium.options import read_options
from podium.payloads import SegmentEnd, Text
from podium.ports.input_processor import InputStream
from podium.ports.stage_backend import Placement
from podium.processors.plain_text import make_plain
from podium.processors.sentence_ends import Lengths, find_end
from podium.processors.streams import text_of

_GAP = re.compile(r"\s+")


class SentencesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`plain` leaves out Markdown, and pieces without a letter or digit: they cannot be spoken.

    A sentence with fewer than `min_letters` letters and digits is not given alone but with the next one. Text without
    an end is cut after at most `max_characters`: behind a comma if there is one, else at a space.
    """

    plain: bool = True
    min_letters: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 4
    max_characters: Annotated[int, msgspec.Meta(ge=20, le=100_000)] = 240


class SentencesProcessor:
    """Gives each sentence as a Text of its own, stripped, with single spaces. The end of a segment ends a sentence."""

    accepts: ClassVar[frozenset[Modality] | None] = frozenset({Modality.TEXT})
    placement: ClassVar[Placement] = Placement.LOOP

    def __init__(self, options: Payload) -> None:
        """`options` is what `parse_options` returned."""
        assert isinstance(options, SentencesOptions), "options come from parse_options"
        self._options = options

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> SentencesOptions:
        """Check the options. Raises ConfigurationError with every fault."""
        return read_options(SentencesOptions, values, "processor_options")

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:  # noqa: ARG002 - port
        """Begin the input of `job`; without sources it is the prompt that is cut."""
        return _SentencesStream(self._options, list(sources) or [PROMPT])


class _SentencesStream:
    """One cutter for each source, as the texts of different sources do not continue each other."""

    def __init__(self, options: SentencesOptions, sources: Sequence[str]) -> None:
        lengths = Lengths(options.min_letters, options.max_characters)
        self._cutters = {source: SentenceCutter(lengths) for source in sources}
        self._is_plain = options.plain

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:
        cutter = self._cutters[source]
        sentences: list[str] = []
        for payload in payloads:
            ends = isinstance(payload, SegmentEnd)
            sentences += cutter.end() if ends else cutter.feed(text_of(source, payload))
        return self._finished(sentences)

    def end(self, source: str) -> Sequence[Payload]:
        return self._finished(self._cutters[source].end())

    def _finished(self, sentences: Sequence[str]) -> Sequence[Payload]:
        texts = (make_plain(sentence) if self._is_plain else " ".join(sentence.split()) for sentence in sentences)
        return [Text(text) for text in texts if text]


class SentenceCutter:
    """One text on its way, cut into sentences. No character but white space is lost or repeated."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._text = ""  # begins and ends with something visible
        self._gap = ""  # what follows it so far: nothing, " ", "\n" or "\n\n"

    def __repr__(self) -> str:
        return f"<SentenceCutter {self._text!r}>"

    def feed(self, chunk: str) -> list[str]:
        """The sentences that `chunk` completes."""
        added = _GAP.sub(_narrow, self._gap + chunk)
        visible = added.rstrip()
        self._gap = added[len(visible) :]
        if not visible:
            return []
        self._text += visible if self._text else visible.lstrip()
        return self._cut(is_whole=False)

    def end(self) -> list[str]:
        """The sentences that are left."""
        return self._cut(is_whole=True)

    def _cut(self, *, is_whole: bool) -> list[str]:
        sentences: list[str] = []
        while self._text and (end := find_end(self._text, self._lengths, is_whole=is_whole)) is not None:
            sentences.append(self._text[:end])
            self._text = self._text[end:].lstrip()
        return sentences


def _narrow(gap: re.Match[str]) -> str:
    return ("\n" * min(gap[0].count("\n"), 2)) or " "
