"""How a stage turns the outputs of its sources into its own input.

A processor runs next to its backend, never in the core. It submits nothing and emits nothing. When it raises, that one
request fails: with InvalidRequestError as the client's fault, with anything else as the service's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from podium.core.graph import Modality
from podium.core.identity import PROMPT, JobKey, Payload
from podium.ports.stage_backend import Placement

__all__ = ["PROMPT", "InputProcessor", "InputStream"]


class InputStream(Protocol):
    """The input of one job in the making. Used from one thread; dropped when the job ends."""

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Take chunks of a source, in order; return what the stage can use now (often nothing yet)."""
        ...

    def end(self, source: str) -> Sequence[Payload]:
        """Take the end of a source, after its last chunk; return what the stage can use now."""
        ...


class InputProcessor(Protocol):
    """Makes an InputStream for each job of a stage. One instance serves one replica."""

    accepts: ClassVar[frozenset[Modality] | None]
    """The modalities of sources that it takes; None takes any. Checked before anything starts."""

    placement: ClassVar[Placement]
    """LOOP when every method returns in microseconds; THREAD puts its stage into a thread, where it may take longer."""

    def __init__(self, options: Payload) -> None:
        """Prepare to serve one replica. `options` is what `parse_options` returned."""
        ...

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> Payload:
        """Check the processor's options in a pipeline file. Raises ConfigurationError with every fault."""
        ...

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:
        """Begin the input of `job`. `sources` is empty for a stage that starts from the prompt."""
        ...
