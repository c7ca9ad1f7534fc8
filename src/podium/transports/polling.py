"""The polling cadence, as a wrapper around any client: what the replica pushes is picked up at intervals.

For replicas that can only be asked, and for those whose every output is not worth a step of the loop. The driver knows
no difference: the same events arrive in the same order, only in larger batches.
"""

from __future__ import annotations

import asyncio
from collections import deque

from podium.core.events import Event
from podium.ports.stage_client import EventSink, StageClient, StageCommand
from podium.tasks import OwnedTask


class PollingClient:
    """A client whose events wait until they are picked up, every `interval_s` seconds."""

    def __init__(self, client: StageClient, interval_s: float) -> None:
        self.replica = client.replica
        self._client = client
        self._interval_s = interval_s
        self._events: deque[Event] = deque()
        self._polling = OwnedTask(f"polling {client.replica}", self._note_failure)
        self._sink: EventSink | None = None

    def __repr__(self) -> str:
        return f"<PollingClient of {self._client!r}, {len(self._events)} events wait>"

    async def start(self, sink: EventSink) -> None:
        """Start the replica, and the polling."""
        await self._client.start(self._events.append)
        self._sink = sink
        self._polling.start(self._poll())

    def post(self, command: StageCommand) -> None:
        """Commands do not wait for a poll."""
        self._client.post(command)

    async def close(self) -> None:
        """End the polling, then the replica."""
        self._sink = None
        await self._polling.close()
        await self._client.close()

    async def _poll(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(self._interval_s)

    def poll(self) -> None:
        """Pick up what is there."""
        sink = self._sink
        while self._events and sink is not None:
            sink(self._events.popleft())

    def _note_failure(self, failure: BaseException) -> None:
        raise failure
