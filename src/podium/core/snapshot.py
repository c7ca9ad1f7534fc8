"""What an idle core must be told to go on as if it had never been interrupted.

Only an idle core has a snapshot: no request, no job, no call, no timer. A journal begins with one.
"""

from __future__ import annotations

import msgspec

from podium.core.identity import ReplicaKey
from podium.core.lifecycle import BarrierState, FenceState, GateState


class BarrierSnapshot(msgspec.Struct, frozen=True):
    """The barrier of a stage as it stands; `closed_at` is on the core's clock."""

    state: BarrierState
    is_frozen: bool
    closed_at: float


class FenceSnapshot(msgspec.Struct, frozen=True):
    """The weights of a stage as they stand."""

    state: FenceState
    version: int
    target: int
    touched: tuple[ReplicaKey, ...] = ()
    updated: tuple[ReplicaKey, ...] = ()


class ReplicaSnapshot(msgspec.Struct, frozen=True):
    """A replica that is up: the version of its weights, the tags of its memory that sleep, or may, sorted, and the load
    that each of its members reported.
    """

    key: ReplicaKey
    weights_version: int = 0
    asleep: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    loads: dict[int, int] = {}


class BalanceSnapshot(msgspec.Struct, frozen=True):
    """How far the choice of replicas of a stage has come: the last slot, and the state of what it draws from."""

    last_slot: int
    drawn: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that are up, the newest generation of each slot, gates, barriers, weights, balances, and the numbers
    already used.
    """

    replicas: tuple[ReplicaSnapshot, ...] = ()
    newest: tuple[ReplicaKey, ...] = ()
    gate: dict[str, GateState] = {}
    barriers: dict[str, BarrierSnapshot] = {}
    fences: dict[str, FenceSnapshot] = {}
    returning: tuple[ReplicaKey, ...] = ()
    balances: dict[str, BalanceSnapshot] = {}
    remembered: tuple[str, ...] = ()
    serial: int = 0
    attempt: int = 0
    calls: int = 0
