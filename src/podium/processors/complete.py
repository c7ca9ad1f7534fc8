"""`complete`: the whole output of each source as one item, in the order of the sources, once all of them ended.

Pieces are joined by `podium.payloads.join`: texts and sounds are concatenated. A source without output gives no item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from podium.core.graph import Modality
from podium.core.identity import JobKey, Payload
from podium.payloads import join
from podium.ports.input_processor import InputStream
from podium.processors.streams import GatheringStream, PlainProcessor


class CompleteProcessor(PlainProcessor):
    """Takes every modality. It has no options."""

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:  # noqa: ARG002 - port
        """Begin the input of `job`."""
        return _WholesStream(sources)


class _WholesStream(GatheringStream):
    def make(self) -> Sequence[Payload]:
        return [join(pieces) for pieces in self.gathered.values() if pieces]
