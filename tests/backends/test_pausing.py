"""Whose turn it is: the latest call counts, and every one before it hears of that."""

from __future__ import annotations

import asyncio

import pytest

from podium.backends.control_errors import translated
from podium.backends.pausing import Turns, read_pause
from podium.core.operations import PauseMode
from podium.errors import ControlError, InvalidRequestError, SupersededError, UnsupportedError
from podium.ports.stage_backend import BackendDead

MODES = frozenset({PauseMode.KEEP, PauseMode.WAIT})


def test_modes_are_read_as_text_or_as_they_are() -> None:
    assert read_pause({"mode": "keep"}, MODES, "s") is PauseMode.KEEP
    assert read_pause({"mode": PauseMode.WAIT}, MODES, "s") is PauseMode.WAIT
    with pytest.raises(UnsupportedError, match="stage 's' cannot pause with 'abort'; it can: keep, wait"):
        read_pause({"mode": "abort"}, MODES, "s")
    with pytest.raises(InvalidRequestError, match=r"pause\.mode: is missing"):
        read_pause({}, MODES, "s")


@pytest.mark.rule("ORCH-INV-236")
async def test_a_later_turn_ends_the_one_that_waits() -> None:
    turns = Turns("s")
    reached: list[str] = []
    has_begun = asyncio.Event()

    async def wait() -> None:
        async with turns.take():
            has_begun.set()
            await turns.wait(lambda: False)
            reached.append("behind the wait")

    async with asyncio.TaskGroup() as group:
        first = group.create_task(_outcome(wait()))
        await has_begun.wait()
        async with turns.take():
            await asyncio.wait({first}, timeout=5.0)
            assert isinstance(first.result(), SupersededError)
    assert reached == []


async def test_a_wait_ends_when_it_is_so() -> None:
    turns, seen = Turns("s"), 0

    async def wait() -> None:
        async with turns.take():
            await turns.wait(lambda: seen == 2)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        for seen in (1, 2):
            await asyncio.sleep(0)
            turns.note_change()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert waiting.done() is (seen == 2)
    turns.note_change()


async def test_a_timeout_of_the_work_itself_stays_what_it_is() -> None:
    turns = Turns("s")
    with pytest.raises(TimeoutError) as caught:
        async with turns.take():
            raise TimeoutError("of the work")
    assert str(caught.value) == "of the work"
    async with turns.take():
        pass


def test_what_an_engine_raises_is_a_control_error_with_its_reason() -> None:
    with pytest.raises(ControlError, match=r"^stage 's' could not sing: no voice$"), translated("s", "sing"):
        raise RuntimeError("no voice\n  at line 5")
    with pytest.raises(ControlError, match="could not sing: KeyboardError"), translated("s", "sing"):
        raise type("KeyboardError", (Exception,), {})
    for known in (BackendDead("gone"), UnsupportedError.because("no"), TimeoutError()):
        with pytest.raises(type(known)), translated("s", "sing"):
            raise known


async def _outcome(work: object) -> object:
    outcomes = await asyncio.gather(work, return_exceptions=True)  # type: ignore[call-overload]
    return outcomes[0]
