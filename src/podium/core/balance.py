"""Which replica gets a job, where the stage does not simply want the least loaded one.

Every choice follows from what was chosen before and from the engine's seed: the same events give the same choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from podium.core.graph import Balance
from podium.core.snapshot import BalanceSnapshot

if TYPE_CHECKING:
    from podium.core.stage_pool import Replica

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class Balancer:
    """Chooses for one stage. It remembers the slot that it chose last, and how often it drew."""

    __slots__ = ("_balance", "_last_slot", "_state")

    def __init__(self, balance: Balance, stage: str, seed: int) -> None:
        self._balance = balance
        self._last_slot = -1
        self._state = mix(seed ^ crc32(stage.encode()))

    def __repr__(self) -> str:
        return f"<Balancer {self._balance}, last slot {self._last_slot}>"

    def choose(self, replicas: Sequence[Replica], max_inflight: int) -> Replica | None:
        """One of the replicas with a credit, in turn or at random; None when none has any."""
        able = [replica for replica in replicas if replica.takes_work and len(replica.jobs) < max_inflight]
        if not able:
            return None
        if self._balance is Balance.RANDOM:
            self._state = (self._state + _STEP) & _MASK
            return able[mix(self._state) % len(able)]
        able.sort(key=_slot_of)
        chosen = next((replica for replica in able if replica.key.slot > self._last_slot), able[0])
        self._last_slot = chosen.key.slot
        return chosen

    def prefer(self, affinity: str, replicas: Sequence[Replica], max_inflight: int) -> Replica | None:
        """The replica that `affinity` belongs to, among those that take work; None when that has no credit."""
        key = mix(crc32(affinity.encode()))
        best: Replica | None = None
        highest = -1
        for replica in replicas:
            if replica.takes_work:
                score = mix(key ^ mix(replica.key.slot))
                if score > highest:
                    best, highest = replica, score
        return best if best is not None and len(best.jobs) < max_inflight else None

    def snapshot(self) -> BalanceSnapshot:
        """It, as data."""
        return BalanceSnapshot(self._last_slot, self._state)

    def restore(self, snapshot: BalanceSnapshot) -> None:
        """Go on from where another one was."""
        self._last_slot, self._state = snapshot.last_slot, snapshot.drawn


def mix(value: int) -> int:
    """Scatter 64 bits: the finish of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _slot_of(replica: Replica) -> int:
    return replica.key.slot
