"""The admission gate, and the limits of the engine as a whole.

The gate is judged against the stages that a request needs: closed for those that need a closed stage, open for the
rest. What is held waits in the order of its arrival and stays abortable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from podium.core.lifecycle import GATE, GateAction, GateState, move


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that no single stage owns: counts, and seconds. All must be positive."""

    max_requests: int = 16384
    """Accepted requests that have not ended yet; one more is refused."""
    hold_timeout_s: float = 300.0
    """How long a request may wait at a held gate."""
    max_remembered: int = 4096
    """Ended request ids that an abort can still be answered `already_ended` for."""
    max_control_calls: int = 1024
    """Control calls that are not answered yet; one more is refused."""
    max_siblings: int = 64
    """Samples and companions that one request may have together; one with more is refused."""
    retry_after_s: float = 1.0
    """The hint that a refused request gets."""
    seed: int = 1
    """What stages that balance at random draw from."""


_STRICTEST = {GateState.OPEN: 0, GateState.HOLDING: 1, GateState.REFUSING: 2, GateState.CLOSED: 3}


class Gate:
    """One state for each stage."""

    def __init__(self, stages: Iterable[str]) -> None:
        self._states = dict.fromkeys(stages, GateState.OPEN)
        self.is_open = True

    def __repr__(self) -> str:
        return f"<Gate {' '.join(f'{stage}={state}' for stage, state in self._states.items())}>"

    def act(self, action: GateAction, stages: Iterable[str] = ()) -> None:
        """Move the gate of `stages`, or of all; names of unknown stages change nothing."""
        for stage in tuple(stages) or tuple(self._states):
            if stage in self._states:
                self._states[stage] = move(GATE, self._states[stage], action)
        self.is_open = all(state is GateState.OPEN for state in self._states.values())

    def restore(self, states: Mapping[str, GateState]) -> None:
        """Stand as another gate stood."""
        self._states.update({stage: state for stage, state in states.items() if stage in self._states})
        self.is_open = all(state is GateState.OPEN for state in self._states.values())

    @property
    def is_shut(self) -> bool:
        """Whether it is closed for good."""
        return GateState.CLOSED in self._states.values()

    def judge(self, stages: Iterable[str]) -> GateState:
        """The strictest state among `stages`."""
        return max((self._states[stage] for stage in stages), key=_STRICTEST.__getitem__)

    def states(self) -> dict[str, GateState]:
        """The state of every stage, as it is."""
        return dict(self._states)
