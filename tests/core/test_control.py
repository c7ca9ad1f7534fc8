"""Abort calls: one record for each id, one answer for each call."""

from __future__ import annotations

from podium.core.control import AbortCall
from podium.core.effects import AbortRecord, AbortStatus, ReplyAbort


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
