"""The order of one job's output, however it is delivered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.identity import JobKey
from podium.core.ordering import Run, Sequencer

JOB = JobKey("r", "a", "main", 1)
STOP = Finish(FinishReason.STOP)


def output(sequence: int, *payloads: str, finish: Finish | None = None) -> JobOutput:
    return JobOutput(JOB, sequence, payloads, finish)


def test_what_comes_in_order_passes_through() -> None:
    order = Sequencer()
    assert order.accept(output(0, "a", "b")) == Run(("a", "b"))
    assert order.accept(output(2, "c", finish=STOP)) == Run(("c",), STOP)
    assert order.is_plain
    assert repr(order) == "<Sequencer expects 3, 0 early>"


def test_what_comes_early_waits_for_what_is_missing() -> None:
    order = Sequencer()
    assert order.accept(output(2, "c")) == Run(())
    assert repr(order) == "<Sequencer expects 0, 1 early>"
    assert order.accept(output(1, "b")) == Run(())
    assert order.accept(output(0, "a")) == Run(("a", "b", "c"))
    assert order.early == 0


def test_what_comes_twice_is_handed_back() -> None:
    order = Sequencer()
    order.accept(output(0, "a", "b"))
    assert order.accept(output(0, "a'", "b'", "c")) == Run(("c",), None, ("a'", "b'"))
    assert order.accept(output(4, "e")) == Run(())
    assert order.accept(output(4, "e'")) == Run((), None, ("e'",))


@pytest.mark.case("B025")
def test_a_finish_waits_for_the_last_chunk() -> None:
    order = Sequencer()
    assert order.accept(output(2, "c", finish=STOP)) == Run(())
    assert order.accept(output(0, "a")) == Run(("a",))
    assert order.accept(output(1, "b")) == Run(("b", "c"), STOP)


def test_the_first_finish_counts_and_nothing_comes_after_it() -> None:
    order = Sequencer()
    order.accept(output(1, finish=STOP))
    assert order.accept(output(2, "c", finish=Finish(FinishReason.LENGTH))) == Run((), None, ("c",))
    assert order.accept(output(0, "a")) == Run(("a",), STOP)


def test_what_is_held_can_be_taken_back() -> None:
    order = Sequencer()
    assert order.take_early() == ()
    order.accept(output(1, "b"))
    assert order.take_early() == ("b",)
    assert order.early == 0
    assert order.take_early() == ()
    assert order.accept(output(2, "c")) == Run(())


@pytest.mark.rule("ORCH-INV-104")
@given(count=st.integers(0, 12), seed=st.integers(0, 10**6))
def test_any_delivery_of_all_chunks_gives_each_once_and_in_order(count: int, seed: int) -> None:
    """Runs of random length, repeated and shuffled: every chunk that is passed on is the next one."""
    draw = random.Random(seed)
    runs = [output(number, f"{number}-first") for number in range(count)]
    for _ in range(draw.randrange(4)):
        first = draw.randint(0, count)
        stop = draw.randint(first, count)
        runs.append(output(first, *(f"{number}-again" for number in range(first, stop))))
    runs.append(output(count, finish=STOP))
    draw.shuffle(runs)

    order, passed, repeated = Sequencer(), list[object](), list[object]()
    finishes: list[Finish] = []
    for one in runs:
        run = order.accept(one)
        assert not finishes or not run.payloads
        passed += run.payloads
        repeated += run.repeated
        finishes += [run.finish] if run.finish is not None and not finishes else []

    assert [int(str(payload).split("-", maxsplit=1)[0]) for payload in passed] == list(range(count))
    assert finishes == [STOP]
    assert order.early == 0
    assert len(passed) + len(repeated) == sum(len(one.payloads) for one in runs)


@pytest.mark.rule("ORCH-INV-104")
def test_a_chunk_past_the_finish_is_handed_back() -> None:
    order = Sequencer()
    assert order.accept(output(1, finish=STOP)) == Run(())
    assert order.accept(output(1, "past")) == Run((), None, ("past",))
    assert order.accept(output(0, "a")) == Run(("a",), STOP)
