"""The admission gate: one state for each stage, judged by the stages that a request needs."""

from __future__ import annotations

import pytest

from podium.core.admission import Gate
from podium.core.lifecycle import GateAction, GateState


def test_it_is_open_at_first() -> None:
    gate = Gate(["a", "b"])
    assert gate.is_open
    assert repr(gate) == "<Gate a=open b=open>"


def test_without_names_it_moves_for_every_stage() -> None:
    gate = Gate(["a", "b"])
    gate.act(GateAction.HOLD)
    assert repr(gate) == "<Gate a=holding b=holding>"
    assert not gate.is_open
    gate.act(GateAction.OPEN)
    assert gate.is_open


def test_it_moves_for_the_stages_that_are_named() -> None:
    gate = Gate(["a", "b"])
    gate.act(GateAction.REFUSE, ["b", "nobody"])
    assert gate.states() == {"a": GateState.OPEN, "b": GateState.REFUSING}
    assert not gate.is_open
    assert gate.judge(["a"]) is GateState.OPEN
    assert gate.judge(["a", "b"]) is GateState.REFUSING


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (GateAction.OPEN, GateAction.HOLD, GateState.HOLDING),
        (GateAction.HOLD, GateAction.REFUSE, GateState.REFUSING),
        (GateAction.CLOSE, GateAction.REFUSE, GateState.CLOSED),
    ],
)
def test_the_strictest_state_counts(first: GateAction, second: GateAction, verdict: GateState) -> None:
    gate = Gate(["a", "b"])
    gate.act(first, ["a"])
    gate.act(second, ["b"])
    assert gate.judge(["b", "a"]) is verdict


def test_what_is_closed_stays_closed() -> None:
    gate = Gate(["a"])
    gate.act(GateAction.CLOSE)
    gate.act(GateAction.OPEN)
    assert gate.judge(["a"]) is GateState.CLOSED


def test_it_can_stand_as_another_one_stood() -> None:
    gate = Gate(["a", "b"])
    gate.restore({"b": GateState.HOLDING, "nobody": GateState.CLOSED})
    assert repr(gate) == "<Gate a=open b=holding>"
    assert not gate.is_open
    gate.restore({"b": GateState.OPEN})
    assert gate.is_open


def test_it_is_shut_once_it_was_closed() -> None:
    gate = Gate(["a", "b"])
    assert not gate.is_shut
    gate.act(GateAction.CLOSE)
    assert gate.is_shut
