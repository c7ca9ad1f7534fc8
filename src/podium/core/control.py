"""Abort calls: which requests each still waits for, and the one answer that each gets.

Knows nothing of how a request is stopped; it is told what came of each id.
"""

from __future__ import annotations

from podium.core.deadlines import Timer
from podium.core.effects import AbortRecord, ReplyAbort


class AbortCall(Timer):
    """One abort, until it is answered. Its timer is the limit that the caller set."""

    __slots__ = ("call", "pending", "records")

    def __init__(self, call: int, request_ids: tuple[str, ...]) -> None:
        super().__init__()
        self.call = call
        self.records: dict[str, AbortRecord | None] = dict.fromkeys(request_ids)
        self.pending = len(self.records)

    def __repr__(self) -> str:
        return f"<AbortCall {self.call}, {self.pending} of {len(self.records)} open>"

    @property
    def is_answered(self) -> bool:
        """Whether every id has its record."""
        return self.pending == 0

    def open_ids(self) -> list[str]:
        """The ids that have no record yet."""
        return [request_id for request_id, record in self.records.items() if record is None]

    def note(self, record: AbortRecord) -> None:
        """Keep what came of one id; the first record counts."""
        if self.records[record.request_id] is None:
            self.records[record.request_id] = record
            self.pending -= 1

    def reply(self) -> ReplyAbort:
        """The answer, in the order of the ids that were asked for."""
        return ReplyAbort(self.call, tuple(record for record in self.records.values() if record is not None))
