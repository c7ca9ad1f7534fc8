"""How a stage turns the outputs of its sources into its own input.

A processor runs next to its backend, never in the core. It submits nothing and emits nothing. When it raises, that one
request fails: with InvalidRequestError as the client's fault, with anything else as the service's. A stage that joins
companions has a BundleProcessor, every other stage an InputProcessor; a pipeline file is refused where that is not so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from podium.core.graph import Modality
from podium.core.identity import MAIN, PROMPT, JobKey, Payload
from podium.ports.stage_backend import Placement

__all__ = [
    "MAIN", "PROMPT", "BundleMember", "BundleProcessor", "InputProcessor", "InputStream", "Processor",
]  # fmt: skip


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


class BundleMember(NamedTuple):
    """What one sibling made: `role` is `main`, or that of a companion. `outputs` has every chunk of each source, in
    order, by the source's name.
    """

    role: str
    outputs: Mapping[str, Sequence[Payload]]


class BundleProcessor(ABC):
    """Makes the whole input of a job at once, from what its request and all companions made. Derive from it.

    One instance serves one replica. `accepts` and `placement` are as those of an InputProcessor.
    """

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.LOOP

    @abstractmethod
    def __init__(self, options: Payload) -> None:
        """Prepare to serve one replica. `options` is what `parse_options` returned."""

    @classmethod
    @abstractmethod
    def parse_options(cls, values: Mapping[str, object]) -> Payload:
        """Check the processor's options in a pipeline file. Raises ConfigurationError with every fault."""

    @abstractmethod
    def join(self, job: JobKey, prompt: Payload, bundle: Sequence[BundleMember]) -> Sequence[Payload]:
        """The input items of `job`. `bundle` has the request itself first, then its companions in the order of roles;
        a request without companions is a bundle of one.
        """


Processor: TypeAlias = InputProcessor | BundleProcessor
"""What may stand before a backend."""
