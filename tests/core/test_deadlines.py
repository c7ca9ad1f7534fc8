"""The heap of waits: what is due, and when."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from podium.core.deadlines import SWEEP_FLOOR, Deadlines, Timer


def due_in_order(deadlines: Deadlines, now: float = 1e9) -> list[Timer]:
    found = []
    while (timer := deadlines.pop_due(now)) is not None:
        found.append(timer)
    return found


def test_nothing_is_due_at_first() -> None:
    deadlines = Deadlines()
    assert deadlines.next_due() is None
    assert deadlines.pop_due(1e9) is None
    assert repr(deadlines) == "<Deadlines 0 set>"


def test_timers_come_due_in_order_and_are_cleared() -> None:
    deadlines = Deadlines()
    late, early = Timer(), Timer()
    deadlines.set(late, 5.0)
    deadlines.set(early, 3.0)
    assert repr(deadlines) == "<Deadlines 2 set>"
    assert deadlines.next_due() == 3.0
    assert deadlines.pop_due(2.9) is None
    assert deadlines.pop_due(3.0) is early
    assert early.due == inf
    assert deadlines.next_due() == 5.0
    assert due_in_order(deadlines) == [late]
    assert deadlines.live == 0


def test_a_timer_moves_either_way() -> None:
    deadlines = Deadlines()
    moved, other = Timer(), Timer()
    deadlines.set(moved, 1.0)
    deadlines.set(other, 2.0)
    deadlines.set(moved, 3.0)
    assert deadlines.next_due() == 2.0
    deadlines.set(moved, 1.5)
    assert due_in_order(deadlines) == [moved, other]
    assert deadlines.next_due() is None


def test_a_cleared_timer_is_not_due_and_clearing_is_idempotent() -> None:
    deadlines = Deadlines()
    timer = Timer()
    deadlines.set(timer, 1.0)
    deadlines.clear(timer)
    deadlines.clear(timer)
    assert deadlines.live == 0
    assert deadlines.next_due() is None


def test_a_timer_that_is_set_to_never_waits_for_nothing() -> None:
    deadlines = Deadlines()
    timer = Timer()
    deadlines.set(timer, inf)
    assert deadlines.live == 0
    deadlines.set(timer, 1.0)
    deadlines.set(timer, inf)
    assert deadlines.live == 0
    assert deadlines.next_due() is None


def test_cleared_timers_are_swept_and_the_others_stay() -> None:
    deadlines = Deadlines()
    kept = Timer()
    timers = [Timer() for _ in range(3 * SWEEP_FLOOR)]
    for at, timer in enumerate(timers):
        deadlines.set(timer, 10.0 + at)
    deadlines.set(kept, 500.0)
    for timer in timers:
        deadlines.clear(timer)
    assert len(deadlines._heap) <= 2 * deadlines.live + SWEEP_FLOOR
    assert due_in_order(deadlines) == [kept]


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(1, 20)), max_size=60))
def test_it_agrees_with_a_plain_table(moves: list[tuple[int, int | None]]) -> None:
    """Whatever is set, moved and cleared: the same timers come due at the same times."""
    deadlines, timers, table = Deadlines(), [Timer() for _ in range(5)], dict[int, int]()
    for which, due in moves:
        if due is None:
            deadlines.clear(timers[which])
            table.pop(which, None)
        else:
            deadlines.set(timers[which], float(due))
            table[which] = due
        assert deadlines.live == len(table)
        assert deadlines.next_due() == min(table.values(), default=None)
    for now in range(21):
        expected = {which for which, due in table.items() if due == now}
        assert {timers.index(timer) for timer in due_in_order(deadlines, now)} == expected
