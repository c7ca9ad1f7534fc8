"""The replicas of one engine: started all or none, retired one by one, closed together; always with a limit.

It knows nothing of requests. That a replica is lost is said by its client; what that means is the core's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from podium.core.identity import ReplicaKey
from podium.errors import ErrorRecord
from podium.ports.environment import Clock
from podium.ports.stage_client import EventSink, StageClient
from podium.runtime.replica_slot import FleetCommons, Progress, ReplicaSlot, ReplicaSpec, SlotPhase, SlotStatistics

_log = logging.getLogger("podium.fleet")


class Fleet:
    """All replicas of one engine."""

    def __init__(
        self,
        specs: Sequence[ReplicaSpec],
        sink: EventSink,
        on_progress: Progress,
        close_timeout_s: float,
        clock: Clock,
    ) -> None:
        self._clients: dict[ReplicaKey, StageClient] = {}
        self._commons = FleetCommons(self._clients, sink, on_progress, clock, close_timeout_s)
        self._specs = {spec.key.stage: spec for spec in specs}
        self._slots = {(spec.key.stage, spec.key.slot): ReplicaSlot(spec, self._commons) for spec in specs}

    def __repr__(self) -> str:
        retiring = sum(slot.phase is SlotPhase.CLOSING for slot in self._slots.values())
        return f"<Fleet of {len(self._clients)} replicas, {retiring} retiring>"

    @property
    def close_timeout_s(self) -> float:
        """How long a replica may take to close."""
        return self._commons.close_timeout_s

    @close_timeout_s.setter
    def close_timeout_s(self, limit_s: float) -> None:
        self._commons.close_timeout_s = limit_s

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        """The replicas that are up."""
        return tuple(self._clients)

    def find(self, replica: ReplicaKey) -> StageClient | None:
        """The client of that very generation."""
        return self._clients.get(replica)

    def slots(self, stage: str) -> list[ReplicaSlot]:
        """The slots of a stage, by number."""
        return [self._slots[place] for place in sorted(self._slots) if place[0] == stage]

    def free_slot(self, stage: str) -> ReplicaSlot:
        """An empty slot of a stage: the first there is, or a new one."""
        slots = self.slots(stage)
        for slot in slots:
            if slot.phase is SlotPhase.EMPTY:
                return slot
        key = ReplicaKey(stage, len(slots), -1)
        fresh = self._slots[stage, key.slot] = ReplicaSlot(self._specs[stage]._replace(key=key), self._commons)
        return fresh

    def statistics(self) -> tuple[SlotStatistics, ...]:
        """Every slot as it is now; may be asked from any thread."""
        return tuple(slot.statistics() for slot in list(self._slots.values()))

    async def start(self) -> None:
        """Start every replica, at the same time. Raises StartError of the first that fails.

        When it raises, or is cancelled, `close` ends the others, the late ones too.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self._slots.values():
                    group.create_task(slot.start())
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures

    def retire(self, replica: ReplicaKey, error: ErrorRecord | None) -> None:
        """Close one replica in the background; it is not found any more. A lost one comes back as its limits say."""
        client = self._clients.pop(replica, None)
        if client is None:
            return
        if error is not None:
            _log.error("%s is closed: %s", replica, error.message)
        self._slots[replica.stage, replica.slot].retire(client, is_lost=error is not None)

    async def close(self) -> None:
        """Close every replica, at the same time, each within the limit; none comes back. Idempotent."""
        async with asyncio.TaskGroup() as group:
            for slot in self._slots.values():
                group.create_task(slot.close())


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that the others followed from."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
