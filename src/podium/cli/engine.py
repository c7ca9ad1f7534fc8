"""The engine as the command line needs it, and how it is opened.

It is a protocol of its own so that the verbs can be tested with an engine that runs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from podium.core.effects import Outcome, StageTimings
from podium.runtime.config import PipelineConfig
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
    ) -> Stream: ...

    async def abort(self, request_ids: Sequence[str], *, wait: str, timeout_s: float) -> AbortReport: ...


def open_engine(config: PipelineConfig, on_progress: Progress) -> AbstractAsyncContextManager[Engine]:
    """An engine for the pipeline, which starts when it is entered, and raises StartError then if a stage does not."""
    from podium.runtime.async_omni_engine import AsyncOmniEngine  # noqa: PLC0415 - `podium --help` needs no engine

    return AsyncOmniEngine.from_pipeline(config, on_progress=on_progress)
