"""Calls of callers: one record for each id or replica, one answer for each call."""

from __future__ import annotations

from podium.core.control import AbortCall, ControlCall, Step
from podium.core.effects import AbortRecord, AbortStatus, ControlRecord, ReplyAbort
from podium.core.events import ControlRequested
from podium.core.identity import ReplicaKey
from podium.core.operations import CallMethod


def record(request_id: str, status: AbortStatus = AbortStatus.ABORTED) -> AbortRecord:
    return AbortRecord(request_id, status)


def test_nothing_asked_is_answered_at_once() -> None:
    call = AbortCall(1, ())
    assert call.is_answered
    assert call.reply() == ReplyAbort(1, ())


def test_ids_are_answered_in_the_order_in_which_they_were_asked_for() -> None:
    call = AbortCall(1, ("b", "a", "b"))
    assert repr(call) == "<AbortCall 1, 2 of 2 open>"
    call.note(record("a"))
    assert call.open_ids() == ["b"]
    call.note(record("b"))
    assert call.open_ids() == []
    assert call.is_answered
    assert call.reply() == ReplyAbort(1, (record("b"), record("a")))


def test_the_first_record_of_an_id_counts() -> None:
    call = AbortCall(1, ("a", "b"))
    call.note(record("a", AbortStatus.FAILED))
    call.note(record("a", AbortStatus.ABORTED))
    assert repr(call) == "<AbortCall 1, 1 of 2 open>"
    assert call.reply() == ReplyAbort(1, (record("a", AbortStatus.FAILED),))


def test_a_control_call_knows_what_it_waits_for() -> None:
    call = ControlCall(ControlRequested(7, CallMethod("reset"), ("a", "b"), 9.0), (Step.CALL,))
    assert repr(call) == "<ControlCall 7 CallMethod at call, 0 pending>"
    call.pending[1] = ReplicaKey("b", 0, 0)
    assert (call.waits_for("a"), call.waits_for("b")) == (False, True)
    call.records[ReplicaKey("a", 0, 0)] = ControlRecord("a", 0, ok=True)
    failed = call.records[ReplicaKey("a", 1, 0)] = ControlRecord("a", 1, ok=False)
    assert call.failures() == [failed]


def test_an_abort_is_about_every_sample_unless_it_says_which() -> None:
    assert AbortCall(1, ("a",)).means(3)
    call = AbortCall(1, ("a",), (0, 2))
    assert [call.means(index) for index in range(3)] == [True, False, True]
