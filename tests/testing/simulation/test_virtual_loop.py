"""The loop whose time jumps, and an engine's home on it."""

from __future__ import annotations

import asyncio

import pytest

from podium.testing.simulation import virtual_loop
from podium.testing.simulation.virtual_loop import CirclesError, LoopHome, NothingLeftError, VirtualLoop
from podium.testing.virtual_clock import VirtualClock


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop(VirtualClock())


def run(loop: VirtualLoop, work: object) -> object:
    assert asyncio.iscoroutine(work)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)


def test_time_jumps_to_the_next_timer_and_not_past_it(loop: VirtualLoop) -> None:
    heard: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        heard.append((name, loop.time()))

    async def all_three() -> None:
        async with asyncio.TaskGroup() as group:
            for name, seconds in (("late", 1e6), ("early", 0.1), ("also early", 0.1)):
                group.create_task(wait(name, seconds))

    run(loop, all_three())
    assert heard == [("early", 0.1), ("also early", 0.1), ("late", 1e6)]
    assert loop.clock.now() == 1e6
    assert loop.timers == []


def test_who_waits_for_nothing_hears_of_it(loop: VirtualLoop) -> None:
    async def wait() -> None:
        await loop.create_future()

    with pytest.raises(NothingLeftError):
        run(loop, wait())


def test_who_turns_in_circles_hears_of_it(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_loop, "TURN_LIMIT", 50)

    async def turn() -> None:
        while True:  # noqa: ASYNC110 - it is what is tested
            await asyncio.sleep(0)

    with pytest.raises(CirclesError, match="more than 50 turns"):
        run(loop, turn())


def test_sets_of_tasks_have_the_order_of_their_begin(loop: VirtualLoop) -> None:
    async def nothing() -> None:
        pass

    async def order() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(nothing()) for _ in range(20)]
            return [task.get_name() for task in set(tasks)]

    names = run(loop, order())
    assert names == sorted(names, key=lambda name: int(str(name).removeprefix("task ")))  # type: ignore[call-overload]


def test_what_asyncio_would_log_is_kept(loop: VirtualLoop) -> None:
    async def complain() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.1)

    run(loop, complain())
    assert len(loop.complaints) == 1
    assert "ZeroDivisionError" in loop.complaints[0]


def test_a_home_on_the_loop_says_when_its_life_is_over(loop: VirtualLoop) -> None:
    home = LoopHome()
    heard: list[str] = []

    async def live() -> None:
        heard.append("begun")
        await asyncio.sleep(1.0)
        raise LookupError("planted")

    async def be() -> None:
        home.start(live, lambda: heard.append("over"))
        assert heard == []
        await asyncio.sleep(2.0)
        home.join()

    run(loop, be())
    assert heard == ["begun", "over"]
    assert isinstance(home.failure, LookupError)
