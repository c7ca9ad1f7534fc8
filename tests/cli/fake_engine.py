"""An engine for the command line that follows a script: outputs, errors, and what a test does in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from podium.cli.engine import Engine, Progress
from podium.core.effects import AbortRecord, AbortStatus, Outcome, StageTimings
from podium.core.events import FinishReason
from podium.core.graph import Modality
from podium.errors import PodiumError
from podium.payloads import Audio, Text
from podium.runtime.outputs import AbortReport, OmniOutput

RATE = 8000


def text(piece: str, stage: str = "thinker", output: str = "text") -> OmniOutput:
    return _output(stage, output, Modality.TEXT, delta=Text(piece))


def speech(seconds: float, level: float = 0.5) -> OmniOutput:
    samples = np.full(round(seconds * RATE), level, dtype=np.float32)
    return _output("speaker", "speech", Modality.SPEECH, delta=Audio(samples, RATE))


def finish(stage: str, reason: FinishReason = FinishReason.STOP, partial: object = None) -> OmniOutput:
    modality = Modality.TEXT if stage == "thinker" else Modality.SPEECH
    return msgspec.structs.replace(
        _output(stage, str(modality), modality),
        partial=partial,
        stage_finished=True,
        finish_reason=reason,
        usage={"pieces": 2},
    )


def _output(stage: str, output: str, modality: Modality, delta: object = None) -> OmniOutput:
    return OmniOutput(
        request_id="generated-1", stage=stage, output=output, modality=modality, sequence=0, at=100.0, delta=delta
    )


Step: TypeAlias = OmniOutput | PodiumError | Callable[[], None] | asyncio.Event
"""An output to give, an error to raise, something to do, or something to wait for."""

TIMELINE = {
    "thinker": StageTimings(100.0, 100.0, 100.1, 100.25, 101.0),
    "speaker": StageTimings(100.0, 100.25, 100.5, 100.75, 102.0),
}


class FakeStream:
    """Plays the script of one request."""

    timeline: Mapping[str, StageTimings] = {}
    outcome: Outcome | None = None

    def __init__(self, request_id: str, engine: FakeEngine) -> None:
        self.request_id = request_id
        self._engine = engine

    async def __aiter__(self) -> AsyncIterator[OmniOutput]:
        for step in self._engine.script:
            if isinstance(step, OmniOutput):
                yield step
            elif isinstance(step, PodiumError):
                self.outcome = self._engine.outcome
                self.timeline = self._engine.timeline
                raise step
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                step()
                await asyncio.sleep(0)
        self.outcome = self._engine.outcome
        self.timeline = self._engine.timeline


class FakeEngine:
    """Notes what it is asked; `aborted` is set by an abort, so that a script can wait for it."""

    def __init__(self, *script: Step, outcome: Outcome | None = Outcome.COMPLETED) -> None:
        self.script = script
        self.outcome = outcome
        self.timeline: Mapping[str, StageTimings] = TIMELINE
        self.aborted = asyncio.Event()
        self.calls: list[dict[str, object]] = []
        self.opened: list[tuple[str, Path | None]] = []
        self.aborts: list[tuple[tuple[str, ...], str]] = []
        self.abort_error: PodiumError | None = None
        self.start_error: PodiumError | None = None
        self.close_error: PodiumError | None = None
        self.while_starting: Callable[[], None] | None = None
        self.is_open = False

    @asynccontextmanager
    async def open(self, pipeline: str, *, journal: Path | None, on_progress: Progress) -> AsyncIterator[Engine]:
        self.opened.append((pipeline, journal))
        for stage in ("thinker", "speaker"):
            on_progress(stage, "loading [weights]")
        if self.while_starting is not None:
            self.while_starting()
            await asyncio.Event().wait()
        if self.start_error is not None:
            raise self.start_error
        self.is_open = True
        try:
            yield self
        finally:
            self.is_open = False
        if self.close_error is not None:
            raise self.close_error

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
    ) -> FakeStream:
        self.calls.append(
            {
                "prompt": prompt,
                "outputs": outputs,
                "params": params,
                "deadline_s": deadline_s,
                "priority": priority,
                "request_id": request_id,
                "n": n,
            }
        )
        return FakeStream(request_id or "generated-1", self)

    async def abort(self, request_ids: Sequence[str], *, wait: str, timeout_s: float) -> AbortReport:
        self.aborts.append((tuple(request_ids), wait))
        self.aborted.set()
        if self.abort_error is not None:
            raise self.abort_error
        return AbortReport(tuple(AbortRecord(request_id, AbortStatus.ABORTED) for request_id in request_ids))
