"""What an idle core must be told to go on as if it had never been interrupted.

Only an idle core has a snapshot: no request, no job, no timer. A journal begins with one.
"""

from __future__ import annotations

import msgspec

from podium.core.identity import ReplicaKey
from podium.core.lifecycle import GateState


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that take work, the newest generation of each slot, the gate, and the numbers already used."""

    replicas: tuple[ReplicaKey, ...] = ()
    newest: tuple[ReplicaKey, ...] = ()
    gate: dict[str, GateState] = {}
    remembered: tuple[str, ...] = ()
    serial: int = 0
    attempt: int = 0
