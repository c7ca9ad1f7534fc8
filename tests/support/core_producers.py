"""What replicas tell of their jobs in tests of random events: numbered chunks, early, late, twice, or never."""

from __future__ import annotations

from dataclasses import dataclass, field

from podium.core.effects import StartJob
from podium.core.events import Finish, FinishReason, JobOutput


class Handle:
    """A payload: equal to nothing but itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@dataclass
class Producer:
    """What one replica has to tell of one job: numbered chunks, and where they end once that is decided."""

    start: StartJob
    end: int | None = None
    reason: FinishReason = FinishReason.STOP
    told: set[int] = field(default_factory=set)
    label: str | None = None

    @property
    def gap(self) -> set[int]:
        """The chunks that are missing before the last that was told."""
        return set(range(max(self.told, default=0))) - self.told

    @property
    def finish(self) -> Finish:
        """How it ends."""
        return Finish(self.reason, label=self.label)

    def output(self, offset: int, count: int, finish: FinishReason | None) -> JobOutput:
        """A run of chunks from `offset` beyond what was told so far on; a finish only where it fits."""
        first = max(0, len(self.told) + offset)
        if self.end is not None:
            first = min(first, self.end)
            count = min(count, self.end - first)
        chunks = tuple(Handle(f"{self.start.job}:{number}") for number in range(first, first + count))
        self.told.update(range(first, first + count))
        stop = first + count
        if finish is not None and self.end is None and stop > max(self.told, default=-1):
            self.end, self.reason = stop, finish
        return JobOutput(self.start.job, first, chunks, self.finish if stop == self.end else None)
