"""Puts the chunks of one job into order: each exactly once, gap-free, the finish after the last.

Knows sequence numbers only. What comes twice is handed back to be released; what comes early is held, within a limit.
"""

from __future__ import annotations

from typing import NamedTuple

from podium.core.events import Finish, JobOutput
from podium.core.identity import Payload


class Run(NamedTuple):
    """What can be passed on now: `payloads` in order, then `finish` when the job ended. `repeated` came twice."""

    payloads: tuple[Payload, ...]
    finish: Finish | None = None
    repeated: tuple[Payload, ...] = ()


class Sequencer:
    """The order of one job's output."""

    __slots__ = ("_early", "_finish", "expected", "is_plain")

    def __init__(self) -> None:
        self.expected = 0
        self.is_plain = True
        """Whether everything came in order so far: then a delivery at `expected` needs no sorting."""
        self._early: dict[int, Payload] | None = None
        self._finish: tuple[int, Finish] | None = None

    def __repr__(self) -> str:
        return f"<Sequencer expects {self.expected}, {self.early} early>"

    @property
    def early(self) -> int:
        """How many chunks are held because an earlier one is missing."""
        return len(self._early) if self._early else 0

    def accept(self, output: JobOutput) -> Run:
        """Take a delivery, whatever was delivered before, and return what follows in order."""
        if self.is_plain and output.sequence == self.expected:
            self.expected += len(output.payloads)
            return Run(output.payloads, output.finish)
        if self._early is None:
            self._early = {}
        self.is_plain = False
        return self._sort_in(output, self._early)

    def take_early(self) -> tuple[Payload, ...]:
        """Give up what is held, for release."""
        early = tuple(self._early.values()) if self._early else ()
        self._early = None
        return early

    def _sort_in(self, output: JobOutput, early: dict[int, Payload]) -> Run:
        repeated: list[Payload] = []
        for sequence, payload in enumerate(output.payloads, output.sequence):
            if sequence < self.expected or sequence in early or self._is_past_finish(sequence):
                repeated.append(payload)
            else:
                early[sequence] = payload
        if output.finish is not None and self._finish is None:
            self._finish = (output.sequence + len(output.payloads), output.finish)
        ready: list[Payload] = []
        while self.expected in early:
            ready.append(early.pop(self.expected))
            self.expected += 1
        finish = self._finish[1] if self._finish is not None and self._finish[0] <= self.expected else None
        return Run(tuple(ready), finish, tuple(repeated))

    def _is_past_finish(self, sequence: int) -> bool:
        return self._finish is not None and sequence >= self._finish[0]
