"""What the shipped processors share: streams that pass items through, or wait until every source has ended.

Nothing here knows of jobs, backends or what an item means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from podium.core.graph import Modality
from podium.core.identity import PROMPT, JobKey, Payload
from podium.errors import InvalidRequestError
from podium.options import read_options
from podium.payloads import Text
from podium.ports.input_processor import InputStream
from podium.ports.stage_backend import Placement


class NoOptions(msgspec.Struct, frozen=True):
    """Nothing can be set."""


class PlainProcessor(ABC):
    """Base of a processor without options."""

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.LOOP

    def __init__(self, options: Payload) -> None:
        """`options` is what `parse_options` returned."""
        self._options = options

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> NoOptions:
        """Refuse every option. Raises ConfigurationError."""
        return read_options(NoOptions, values)

    @abstractmethod
    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:
        """Begin the input of `job`."""


class PassingStream:
    """Gives every item on as it is."""

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:  # noqa: ARG002 - the port's shape
        """The items themselves."""
        return payloads

    def end(self, source: str) -> Sequence[Payload]:  # noqa: ARG002 - the port's shape
        """Nothing was kept."""
        return ()


class GatheringStream(ABC):
    """Keeps what it is fed until every source has ended; then `make` gives the items, once."""

    def __init__(self, sources: Iterable[str]) -> None:
        self.gathered: dict[str, list[Payload]] = {source: [] for source in sources or (PROMPT,)}
        self._open = set(self.gathered)

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Keep the items."""
        self.gathered[source].extend(payloads)
        return ()

    def end(self, source: str) -> Sequence[Payload]:
        """The items, with the last source."""
        if source not in self._open:
            return ()
        self._open.remove(source)
        return () if self._open else self.make()

    @abstractmethod
    def make(self) -> Sequence[Payload]:
        """The items that come of everything in `gathered`."""


def text_of(source: str, payload: Payload) -> str:
    """The text of a payload. Of another kind, a prompt raises InvalidRequestError, a source's output TypeError."""
    if isinstance(payload, Text):
        return payload.text
    if isinstance(payload, str):
        return payload
    kind = type(payload).__name__
    if source == PROMPT:
        raise InvalidRequestError.because(f"prompt: is of type {kind}; this stage takes a text only")
    raise TypeError(f"source '{source}' gave a {kind}, and this stage's input processor takes text")
