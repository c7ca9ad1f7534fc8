"""Control of a stage whose replicas are all gone: what is said to be done is done."""

from __future__ import annotations

import pytest

from podium.core.effects import ReplyControl
from podium.core.events import ControlRequested, ReplicaJoined, ReplicaLost
from podium.core.graph import Graph
from podium.core.identity import ReplicaKey
from podium.core.lifecycle import BarrierState, FenceState
from podium.core.operations import BeginUpdate, Operation, Pause, PauseMode, Resume, RollBackUpdate, UpdateWeights
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind, ErrorRecord, Scope
from tests.support.core_world import make_stage

REPLICA = ReplicaKey("solo", 0, 0)
GONE = ErrorRecord(kind=ErrorKind.REPLICA_LOST, scope=Scope.REPLICA, message="it is gone")


@pytest.mark.rule("ORCH-INV-236", "ORCH-INV-238")
def test_an_update_is_rolled_back_when_nobody_is_left_to_hear_of_it() -> None:
    core = Orchestrator(Graph([make_stage("solo", output="text")]))
    core.step([ReplicaJoined(REPLICA), ReplicaLost(REPLICA, GONE)], 0.0)

    def ask(call: int, operation: Operation) -> ErrorRecord | None:
        (reply,) = core.step([ControlRequested(call, operation, ("solo",), 10.0)], 1.0)
        assert isinstance(reply, ReplyControl)
        return reply.error

    assert ask(1, Pause(PauseMode.ABORT)) is None
    assert ask(2, BeginUpdate(1)) is None
    assert ask(3, UpdateWeights({"method": "load"})) is None
    assert core.statistics().stages["solo"].fence is FenceState.UPDATING
    assert ask(4, RollBackUpdate({"method": "restore"})) is None
    assert core.statistics().stages["solo"].fence is FenceState.SETTLED
    assert ask(5, Resume()) is None
    assert core.statistics().stages["solo"].barrier is BarrierState.OPEN
