"""`passthrough`: every chunk of every source, as it comes.

With several sources the chunks of each are in order; what comes of which source is not marked. Use `function` for that.
"""

from __future__ import annotations

from collections.abc import Mapping

from podium.core.graph import Modality
from podium.core.identity import JobKey, Payload
from podium.ports.input_processor import InputStream
from podium.processors.streams import PassingStream, PlainProcessor


class PassthroughProcessor(PlainProcessor):
    """Takes every modality. It has no options."""

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:  # noqa: ARG002 - port
        """Begin the input of `job`."""
        return PassingStream()
