"""The engine as the command line needs it, and how it is opened.

It is a protocol of its own so that the verbs can be tested with an engine that runs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from podium import bootstrap
from podium.core.effects import Outcome, StageTimings
from podium.runtime.outputs import AbortReport, OmniOutput

Progress: TypeAlias = Callable[[str, str], None]
"""Takes the name of a stage and what it is doing, while the engine starts. May be called from another thread."""


class Stream(Protocol):
    """The outputs of one request. `timeline` and `outcome` are there after its end."""

    @property
    def request_id(self) -> str: ...
    @property
    def timeline(self) -> Mapping[str, StageTimings]: ...
    @property
    def outcome(self) -> Outcome | None: ...
    def __aiter__(self) -> AsyncIterator[OmniOutput]: ...


class Engine(Protocol):
    """What `podium generate` calls."""

    def generate(
        self,
        prompt: object,
        *,
        outputs: Sequence[str] | None,
        params: Mapping[str, Mapping[str, object]] | None,
        deadline_s: float | None,
        priority: int,
        request_id: str | None,
        n: int,
    ) -> Stream: ...

    async def abort(self, request_ids: Sequence[str], *, wait: str, timeout_s: float) -> AbortReport: ...


def open_engine(pipeline: str, *, journal: Path | None, on_progress: Progress) -> AbstractAsyncContextManager[Engine]:
    """An engine for the pipeline, which starts when it is entered, and raises StartError then if a stage does not."""
    return bootstrap.AsyncOmniEngine.from_pipeline(pipeline, journal=journal, on_progress=on_progress)
