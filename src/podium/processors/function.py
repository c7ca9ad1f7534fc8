"""`function`: a user's own function makes the input, from everything that the sources gave.

It gets `{source: [payloads]}` once every source ended, with the request's prompt under `prompt`, and returns the
stage's one input item, or None for none. What it raises fails that request: InvalidRequestError as the client's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec

from podium.core.graph import Modality
from podium.core.identity import PROMPT, JobKey, Payload
from podium.options import import_callable, read_options
from podium.ports.input_processor import InputStream
from podium.ports.stage_backend import Placement
from podium.processors.streams import GatheringStream


class FunctionProcessorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`function` is the import path of the function, `package.module:name`."""

    function: str


class FunctionProcessor:
    """Calls the function once for each job, in the thread of the stage, so that it may take its time."""

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.THREAD

    def __init__(self, options: Payload) -> None:
        """Import the function that `options` names."""
        assert isinstance(options, FunctionProcessorOptions), "options come from parse_options"
        self._function = _find(options)

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> FunctionProcessorOptions:
        """Check the options, and that the function can be imported. Raises ConfigurationError."""
        options = read_options(FunctionProcessorOptions, values, "processor_options")
        _find(options)
        return options

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:  # noqa: ARG002 - port
        """Begin the input of `job`."""
        return _FunctionStream(self._function, prompt, sources)


class _FunctionStream(GatheringStream):
    def __init__(self, function: Callable[..., object], prompt: Payload, sources: Mapping[str, Modality]) -> None:
        super().__init__(sources)
        self._function = function
        self._prompt = prompt

    def make(self) -> Sequence[Payload]:
        item = self._function({PROMPT: [self._prompt], **self.gathered})
        return () if item is None else (item,)


def _find(options: FunctionProcessorOptions) -> Callable[..., object]:
    return import_callable(options.function, "processor_options.function")
