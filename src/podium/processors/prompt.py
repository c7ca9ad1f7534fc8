"""`prompt`: the request's prompt as it is, a text or chat messages, for a stage that starts from it.

Rendering (chat templates, tokenising) is the backend's work, which has the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from podium.core.graph import Modality
from podium.core.identity import JobKey, Payload
from podium.ports.input_processor import InputStream
from podium.ports.stage_backend import Placement
from podium.processors.streams import PassingStream, PlainProcessor
from podium.prompts import check_prompt


class PromptProcessor(PlainProcessor):
    """Passes the prompt through, once it is known to be one. It has no options."""

    accepts: ClassVar[frozenset[Modality] | None] = frozenset()  # it is for stages without sources
    placement: ClassVar[Placement] = Placement.LOOP

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:  # noqa: ARG002 - port
        """Begin the input of `job`."""
        return _PromptStream()


class _PromptStream(PassingStream):
    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:
        for payload in payloads:
            check_prompt(payload)
        return super().feed(source, payloads)
