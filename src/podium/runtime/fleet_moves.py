"""What an operator does to the replicas of a running engine: drain one, restart a stage one by one, add one.

Each move waits for the core and the fleet within one limit. It moves no job: a replica that drains keeps what it has.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from podium.core.events import ReplicaDrained
from podium.errors import ErrorKind, ErrorRecord, InvalidRequestError, Scope, StartError, WaitTimeoutError
from podium.ports.stage_client import EventSink
from podium.runtime.fleet import Fleet
from podium.runtime.replica_slot import ReplicaSlot, SlotPhase


class FleetMoves:
    """Moves of one fleet, on the engine's loop; those of one stage come one after another."""

    def __init__(self, fleet: Fleet, post: EventSink) -> None:
        self._fleet = fleet
        self._post = post
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def __repr__(self) -> str:
        return f"<FleetMoves of {self._fleet!r}>"

    async def drain(self, stage: str, replica: int, timeout_s: float) -> None:
        """Let a replica end what it has, and close it for good. Raises WaitTimeoutError; it leaves even so."""
        slot = self._find(stage, replica)
        async with self._limited(stage, timeout_s) as wait:
            wait.awaited = f"the end of the jobs of replica {replica}"
            slot.leave()
            await slot.wait_until(lambda: slot.phase in (SlotPhase.EMPTY, SlotPhase.SERVING))
            if slot.phase is SlotPhase.SERVING:
                self._post(ReplicaDrained(slot.key))
                await slot.wait_until(lambda: slot.phase is SlotPhase.EMPTY)

    async def restart(self, stage: str, timeout_s: float) -> None:
        """Give every replica of a stage a new life, one after another. Raises StartError of the first that fails."""
        async with self._limited(stage, timeout_s) as wait:
            for slot in self._fleet.slots(stage):
                if slot.phase is not SlotPhase.EMPTY and not slot.is_leaving:
                    await self._renew(slot, wait)

    async def add(self, stage: str, timeout_s: float) -> int:
        """Start one more replica, and return its slot. Raises StartError."""
        async with self._limited(stage, timeout_s) as wait:
            slot = self._fleet.free_slot(stage)
            wait.awaited = f"the start of replica {slot.key.slot}"
            life = slot.successor.generation
            slot.open()
            await _wait_for_life(slot, life)
            return slot.key.slot

    async def _renew(self, slot: ReplicaSlot, wait: _Wait) -> None:
        number = slot.key.slot
        if slot.phase is SlotPhase.STARTING:  # after a loss: that life is new enough
            wait.awaited = f"the start of replica {number}"
            await _wait_for_life(slot, slot.key.generation)
            return
        life = slot.successor
        slot.want_next()
        if slot.phase is SlotPhase.SERVING:
            wait.awaited = f"the end of the jobs of replica {number}"
            self._post(ReplicaDrained(slot.key, life))
            former = slot.key.generation
            await slot.wait_until(lambda: slot.closed >= former)
        wait.awaited = f"the start of replica {number}"
        await _wait_for_life(slot, life.generation)

    def _find(self, stage: str, replica: int) -> ReplicaSlot:
        slots = {slot.key.slot: slot for slot in self._fleet.slots(stage)}
        if replica not in slots:
            known = ", ".join(str(number) for number in slots)
            raise InvalidRequestError.because(f"replica: stage '{stage}' has no replica {replica}; use one of: {known}")
        return slots[replica]

    @asynccontextmanager
    async def _limited(self, stage: str, timeout_s: float) -> AsyncIterator[_Wait]:
        """The stage's turn, for so long; a timeout names what was awaited."""
        wait = _Wait()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit, self._locks[stage]:
                yield wait
        except TimeoutError:
            if not limit.expired():
                raise
            raise WaitTimeoutError(_too_late(stage, wait.awaited, timeout_s)) from None


class _Wait:
    """What a move waits for at the moment."""

    def __init__(self) -> None:
        self.awaited = "an earlier move of its replicas"


async def _wait_for_life(slot: ReplicaSlot, generation: int) -> None:
    """Wait until a life of that generation, or a later one, serves. Raises StartError when it does not start."""
    await slot.wait_until(
        lambda: slot.joined >= generation or slot.failed >= generation or slot.phase is SlotPhase.EMPTY
    )
    if slot.joined < generation:
        raise slot.failure or StartError(slot.key.stage, f"replica {slot.key.slot} was drained meanwhile")


def _too_late(stage: str, awaited: str, limit_s: float) -> ErrorRecord:
    return ErrorRecord(
        kind=ErrorKind.WAIT_TIMEOUT,
        scope=Scope.STAGE,
        stage=stage,
        awaited=f"{awaited} of stage '{stage}'",
        message=f"timed out after {limit_s:g} s waiting for {awaited} of stage '{stage}'; what was begun goes on",
    )
