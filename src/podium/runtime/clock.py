"""The clock of a running engine, and the store of payloads that live in this process.

Both are ports of the environment, so that tests can bring others; neither knows what it is used for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from podium.core.identity import Payload


class MonotonicClock:
    """Time that never goes back, in seconds since some moment; the same for all threads of the machine."""

    def now(self) -> float:
        """The time."""
        return time.monotonic()


class ReferenceStore:
    """Payloads that are plain references: letting go of them is enough. Counts what was never delivered."""

    def __init__(self) -> None:
        self.released = 0

    def release(self, payloads: Sequence[Payload]) -> None:
        """Count payloads that nobody got."""
        self.released += len(payloads)
