"""The weights of one stage: their version, and an update on its way.

While they are not settled the stage cannot be resumed, so that no output is made by weights of no known version.
"""

from __future__ import annotations

from podium.core.identity import ReplicaKey
from podium.core.lifecycle import FENCE, FenceState, FenceTrigger, move
from podium.core.snapshot import FenceSnapshot


class Fence:
    """One stage's fence. `touched` are the replicas that may have other weights now, `updated` those that all have."""

    __slots__ = ("state", "target", "touched", "updated", "version")

    def __init__(self) -> None:
        self.state = FenceState.SETTLED
        self.version = 0
        self.target = 0
        self.touched: dict[ReplicaKey, None] = {}
        self.updated: dict[ReplicaKey, None] = {}

    def __repr__(self) -> str:
        towards = "" if self.is_settled else f" to {self.target}, {len(self.updated)} updated"
        return f"<Fence {self.state} {self.version}{towards}>"

    @property
    def is_settled(self) -> bool:
        """Whether the weights are those of one version."""
        return self.state is FenceState.SETTLED

    def begin(self, version: int) -> None:
        """Begin an update to `version`, or begin it anew."""
        self._advance(FenceTrigger.BEGIN)
        self.target = version
        self.updated.clear()

    def note_sent(self, replica: ReplicaKey) -> None:
        """A replica is told to change its weights: until it confirms, nobody knows which it has."""
        self.touched[replica] = None
        self.updated.pop(replica, None)

    def note_updated(self, replica: ReplicaKey) -> None:
        """A replica has changed its weights."""
        self.updated[replica] = None

    def fail(self) -> None:
        """An update failed somewhere: nobody knows what the weights are."""
        self._advance(FenceTrigger.FAIL)

    def commit(self) -> None:
        """The update is complete."""
        self._advance(FenceTrigger.COMMIT)
        self.version = self.target
        self._forget()

    def roll_back(self) -> None:
        """The former weights are back."""
        self._advance(FenceTrigger.ROLL_BACK)
        self.target = self.version
        self._forget()

    def forget_replica(self, replica: ReplicaKey) -> None:
        """A replica is gone, and its weights with it."""
        self.touched.pop(replica, None)
        self.updated.pop(replica, None)

    def snapshot(self) -> FenceSnapshot:
        """It, as data."""
        return FenceSnapshot(self.state, self.version, self.target, tuple(self.touched), tuple(self.updated))

    def restore(self, snapshot: FenceSnapshot) -> None:
        """Stand as another one stood."""
        self.state, self.version, self.target = snapshot.state, snapshot.version, snapshot.target
        self.touched = dict.fromkeys(snapshot.touched)
        self.updated = dict.fromkeys(snapshot.updated)

    def _advance(self, trigger: FenceTrigger) -> None:
        self.state = move(FENCE, self.state, trigger)

    def _forget(self) -> None:
        self.touched.clear()
        self.updated.clear()
