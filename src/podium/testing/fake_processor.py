"""An input processor that passes items on, and raises where an item tells it to.

Its items are plain data, so that they work wherever the processor runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar

import msgspec

from podium.core.graph import Modality
from podium.core.identity import JobKey, Payload
from podium.errors import InvalidRequestError
from podium.options import read_options
from podium.ports.stage_backend import Placement


class At(StrEnum):
    """Where a processor raises."""

    FEED = "feed"
    END = "end"


class Trouble(msgspec.Struct, frozen=True):
    """An item that makes the processor raise: as the client's fault, or as its own."""

    at: At
    is_clients_fault: bool = False

    def cause(self) -> None:
        """Raise."""
        if self.is_clients_fault:
            raise InvalidRequestError.because("input: the processor was told to refuse it; give another")
        raise LookupError("the processor was told to raise")


class NoOptions(msgspec.Struct, frozen=True):
    """Nothing can be set."""


class FakeProcessor:
    """Takes every modality. It has no options."""

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.LOOP

    def __init__(self, options: Payload = None) -> None:
        """Nothing is needed."""

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> NoOptions:
        """Refuse every option. Raises ConfigurationError."""
        return read_options(NoOptions, values, "processor_options")

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> FakeInputStream:  # noqa: ARG002
        """Begin the input of `job`."""
        return FakeInputStream()


class FakeInputStream:
    """Gives every item on, but for a Trouble."""

    def __init__(self) -> None:
        self._trouble: Trouble | None = None

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:  # noqa: ARG002 - the port's shape
        """The items; a Trouble raises here, or waits for the end."""
        for payload in payloads:
            if isinstance(payload, Trouble) and payload.at is At.FEED:
                payload.cause()
            elif isinstance(payload, Trouble):
                self._trouble = payload
        return [payload for payload in payloads if not isinstance(payload, Trouble)]

    def end(self, source: str) -> Sequence[Payload]:  # noqa: ARG002 - the port's shape
        """Nothing, or the trouble that was waiting."""
        if self._trouble is not None:
            self._trouble.cause()
        return ()
