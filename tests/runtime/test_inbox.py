"""The queue into the driver: nothing lost, nothing reordered, one wake-up for a burst, no wake-up without need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from podium.core.events import Event, RequestCancelled
from podium.runtime import inbox as inbox_module
from podium.runtime.inbox import Inbox
from podium.testing.virtual_clock import VirtualClock


def event(number: int, origin: int = 0) -> Event:
    return RequestCancelled(number, f"from {origin}")


def bound(clock: VirtualClock | None = None) -> Inbox:
    inbox = Inbox(clock or VirtualClock())
    inbox.bind()
    return inbox


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def test_events_come_out_in_order_and_in_one_batch() -> None:
    inbox = bound()
    for number in range(3):
        inbox.post(event(number))
    assert len(inbox) == 3
    assert repr(inbox) == "<Inbox 3 events>"
    assert await inbox.get(None) == [event(0), event(1), event(2)]
    assert len(inbox) == 0


async def test_a_batch_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "BATCH_LIMIT", 2)
    inbox = bound()
    for number in range(5):
        inbox.post(event(number))
    assert [len(await inbox.get(None)) for _ in range(3)] == [2, 2, 1]


async def test_who_waits_is_woken_by_an_event_of_this_thread() -> None:
    inbox = bound()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(inbox.get(None))
        await asyncio.sleep(0)
        assert not waiting.done()
        inbox.post(event(1))
    assert waiting.result() == [event(1)]


async def test_who_waits_is_woken_by_an_event_of_another_thread() -> None:
    inbox = bound()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(inbox.get(None))
        await asyncio.sleep(0)
        in_a_thread(lambda: inbox.post(event(1)))
    assert waiting.result() == [event(1)]


async def test_the_deadline_ends_a_wait() -> None:
    clock = VirtualClock(100.0)
    inbox = bound(clock)
    assert await inbox.get(100.0) == []
    assert await inbox.get(99.0) == [], "it is over already"


async def test_a_sleeper_that_is_woken_leaves_no_timer() -> None:
    inbox = bound(VirtualClock(100.0))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(inbox.get(1e6))
        await asyncio.sleep(0)
        inbox.post(event(1))
    assert waiting.result() == [event(1)]


async def test_an_event_comes_before_a_deadline_that_is_over() -> None:
    inbox = bound(VirtualClock(100.0))
    inbox.post(event(1))
    assert await inbox.get(1.0) == [event(1)]


async def test_waking_without_events_returns_none() -> None:
    inbox = bound()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(inbox.get(None))
        await asyncio.sleep(0)
        inbox.wake()
        inbox.wake()
    assert waiting.result() == []


@pytest.mark.case("B026")
async def test_a_burst_of_another_thread_crosses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crossings = 0
    loop = asyncio.get_running_loop()
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counted(callback: Callable[[], object]) -> object:
        nonlocal crossings
        crossings += 1
        return call_soon_threadsafe(callback)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    inbox = bound()

    def burst() -> None:
        for number in range(1000):
            inbox.post(event(number))

    in_a_thread(burst)
    assert len(await inbox.get(None)) == 1000
    assert crossings == 1
    in_a_thread(burst)
    assert len(await inbox.get(None)) == 1000
    assert crossings == 2


async def test_nothing_is_lost_or_reordered_between_threads() -> None:
    """The waiter sleeps and wakes again and again while four threads post."""
    inbox, each = bound(), 3000

    def post_all(origin: int) -> None:
        for number in range(each):
            inbox.post(event(number, origin))

    threads = [threading.Thread(target=post_all, args=(origin,)) for origin in range(4)]
    for thread in threads:
        thread.start()
    got: list[Event] = []
    async with asyncio.timeout(30):
        while len(got) < 4 * each:
            got += await inbox.get(None)
    for thread in threads:
        thread.join()
    for origin in range(4):
        assert [one for one in got if one == event(one.ticket, origin)] == [  # type: ignore[union-attr]
            event(number, origin) for number in range(each)
        ]


def test_events_before_the_loop_wait_for_it() -> None:
    inbox = Inbox(VirtualClock())
    inbox.post(event(1))

    async def later() -> list[Event]:
        inbox.bind()
        return await inbox.get(None)

    assert asyncio.run(later()) == [event(1)]


def test_an_event_after_the_loop_is_harmless() -> None:
    inbox = Inbox(VirtualClock())

    async def wait_in_vain() -> None:
        inbox.bind()
        inbox.post(event(0))
        await inbox.get(None)

    asyncio.run(wait_in_vain())
    in_a_thread(lambda: inbox.post(event(1)))
    assert len(inbox) == 1
