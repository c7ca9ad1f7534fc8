"""Snapshots: what an idle core hands on."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.identity import ReplicaKey
from podium.core.lifecycle import BarrierState, FenceState, GateAction, GateState
from podium.core.operations import Sleep
from podium.core.orchestrator import Orchestrator
from podium.core.snapshot import BarrierSnapshot, FenceSnapshot, ReplicaSnapshot, Snapshot
from podium.errors import InternalError
from tests.support.core_world import World, lines, voice

B = ReplicaKey("b", 0, 0), ReplicaKey("b", 1, 0)


def test_a_core_goes_on_to_wait_for_a_successor() -> None:
    world = World(*voice())
    world.drain(voice()[0].name, succeeded=True)
    snapshot = world.core.snapshot()
    other = Orchestrator(world.core.graph, world.core.limits, snapshot)
    assert other.snapshot() == snapshot
    assert snapshot.returning == (ReplicaKey(voice()[0].name, 0, 1),)


def a_world_with_a_past() -> World:
    world = World(*voice(), replicas=2)
    world.submit("r")
    world.finish("a", "x", request_id="r")
    world.finish("b", "y", request_id="r")
    world.lose("a", 0)
    world.gate(GateAction.HOLD, "b")
    return world


def test_it_is_data() -> None:
    snapshot = a_world_with_a_past().core.snapshot()
    assert snapshot == Snapshot(
        replicas=tuple(ReplicaSnapshot(key) for key in (ReplicaKey("a", 1, 0), *B)),
        newest=(ReplicaKey("a", 0, 0), ReplicaKey("a", 1, 0), *B),
        gate={"a": GateState.OPEN, "b": GateState.HOLDING},
        barriers={
            "a": BarrierSnapshot(BarrierState.OPEN, is_frozen=False, closed_at=0.0),
            "b": BarrierSnapshot(BarrierState.QUIESCED, is_frozen=True, closed_at=0.0),
        },
        fences=dict.fromkeys("ab", FenceSnapshot(FenceState.SETTLED, 0, 0)),
        remembered=("r",),
        serial=1,
        attempt=2,
        calls=2,
    )
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot


def test_a_core_goes_on_from_it_as_if_nothing_had_been() -> None:
    world = a_world_with_a_past()
    other = a_world_with_a_past()
    other.core = Orchestrator(world.core.graph, world.core.limits, world.core.snapshot())
    for one in (world, other):
        one.effects.clear()
        one.join("a", 0, 0)
        one.submit("r", outputs=("text",))
        one.abort("r", "s")
        one.stopped("a", "partial")
        one.submit("s")
        one.gate(GateAction.OPEN)
    assert lines(world.effects) == lines(other.effects)
    assert world.effects == other.effects


@pytest.mark.rule("ORCH-INV-233")
def test_what_sleeps_and_what_may_is_handed_on() -> None:
    world = World(*voice())
    world.control(Sleep(1, {"a": ("kv", "weights"), "b": ("kv",)}), timeout_s=1.0)
    while calls := [call for call in world.calls() if call.method == "pause" or call.replica.stage == "b"]:
        world.answer(calls[0])
    world.wait(1.0)
    assert world.core.snapshot().replicas == (
        ReplicaSnapshot(ReplicaKey("a", 0, 0), doubtful=("kv", "weights")),
        ReplicaSnapshot(ReplicaKey("b", 0, 0), asleep=("kv",)),
    )


@pytest.mark.rule("ORCH-INV-003")
def test_a_core_that_works_has_none() -> None:
    world = World(*voice())
    world.submit()
    assert not world.core.is_idle
    with pytest.raises(InternalError, match="only an idle core has a snapshot"):
        world.core.snapshot()
