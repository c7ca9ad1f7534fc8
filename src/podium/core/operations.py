"""What a caller can want of the engine itself: the closed union of control operations.

Plain data. How an operation is carried out is decided in `controlling.py`; what a replica does when it is called is a
matter of its backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from podium.core.identity import Payload


class PauseMode(StrEnum):
    """What becomes of running work: it ends with its prefix, it drains, or it stands still until the resume."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


class HoldPolicy(StrEnum):
    """What becomes of requests that arrive meanwhile: they wait in order, or are refused."""

    HOLD = "hold"
    REFUSE = "refuse"


class CallMethod(msgspec.Struct, frozen=True, tag=True):
    """Call every replica; nothing of the core changes by it."""

    method: str
    arguments: Mapping[str, Payload] = {}


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Close admission, and be told by each replica that no step runs or will start."""

    mode: PauseMode
    held: HoldPolicy = HoldPolicy.HOLD


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Let replicas work again, and open admission once all have confirmed. The only thing that opens it."""


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Pause, and then give up memory. `tags` has, for each stage, what shall be given up there."""

    level: int
    tags: Mapping[str, tuple[str, ...]]
    mode: PauseMode = PauseMode.WAIT
    held: HoldPolicy = HoldPolicy.HOLD


class WakeUp(msgspec.Struct, frozen=True, tag=True):
    """Take memory back, and nothing else. `tags` has, for each stage, what shall be there again."""

    tags: Mapping[str, tuple[str, ...]]


class BeginUpdate(msgspec.Struct, frozen=True, tag=True):
    """Begin to change the weights of paused stages; they cannot be resumed until it is over."""

    version: int


class UpdateWeights(msgspec.Struct, frozen=True, tag=True):
    """Change weights at every replica. An update may take several of these."""

    arguments: Mapping[str, Payload] = {}


class CommitUpdate(msgspec.Struct, frozen=True, tag=True):
    """The weights are changed everywhere: from now on outputs carry the new version."""


class RollBackUpdate(msgspec.Struct, frozen=True, tag=True):
    """Restore the former weights. `arguments` says how, as for UpdateWeights; None where nothing was changed yet."""

    arguments: Mapping[str, Payload] | None = None


Operation: TypeAlias = (
    CallMethod | Pause | Resume | Sleep | WakeUp | BeginUpdate | UpdateWeights | CommitUpdate | RollBackUpdate
)

BARRIER_METHODS = frozenset({"pause", "resume", "sleep", "wake_up"})
"""The methods of replicas whose arguments the core makes itself; those of all others are a caller's payloads."""
