"""`bundle`: what a request and its CFG companions made, as one item, for a stage that joins them.

Pieces of one source are joined by `podium.payloads.join`, as `complete` does. Nothing here knows what roles mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from podium.core.identity import JobKey, Payload
from podium.options import read_options
from podium.payloads import Bundle, join
from podium.ports.input_processor import BundleMember, BundleProcessor
from podium.processors.streams import NoOptions


class WholeBundleProcessor(BundleProcessor):
    """Takes every modality. It has no options."""

    def __init__(self, options: Payload) -> None:
        """`options` is what `parse_options` returned."""
        self._options = options

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> NoOptions:
        """Refuse every option. Raises ConfigurationError."""
        return read_options(NoOptions, values)

    def join(self, job: JobKey, prompt: Payload, bundle: Sequence[BundleMember]) -> Sequence[Payload]:  # noqa: ARG002
        """One `podium.payloads.Bundle`."""
        return [Bundle({one.role: {source: join(pieces) for source, pieces in one.outputs.items()} for one in bundle})]
