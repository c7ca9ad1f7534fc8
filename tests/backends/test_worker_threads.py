"""Threads for blocking code: on demand, never more than their number, gone after close."""

from __future__ import annotations

import asyncio
import threading

import pytest

from podium.backends.worker_threads import WorkerThreads, post


def alive() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("work-"))


async def test_threads_start_on_demand_and_end_with_close() -> None:
    threads = WorkerThreads("work", 2)
    assert alive() == []
    first = await threads.run(threading.current_thread)
    assert first.name == "work-0"
    gate = threading.Event()
    blocked = [threads.run(gate.wait) for _ in range(5)]
    assert alive() == ["work-0", "work-1"], "never more than two"
    assert threads.is_contended
    gate.set()
    assert await asyncio.gather(*blocked) == [True] * 5
    await threads.close()
    assert alive() == []
    await threads.close()
    assert repr(threads) == "<WorkerThreads work 2/2 queued=0>"


async def test_close_without_any_work() -> None:
    threads = WorkerThreads("work", 1)
    await threads.close()
    with pytest.raises(RuntimeError, match="the worker threads of work are closed"):
        threads.put(lambda: None)


async def test_close_finishes_what_is_queued() -> None:
    threads = WorkerThreads("work", 1)
    done: list[int] = []
    for number in range(10):
        threads.put(lambda number=number: done.append(number))  # type: ignore[misc]
    await threads.close()
    assert done == list(range(10))


async def test_work_can_go_first_or_be_taken_back() -> None:
    threads = WorkerThreads("work", 1)
    gate, done = threading.Event(), list[str]()
    running = threads.run(gate.wait)

    def never() -> None:
        done.append("never")

    threads.put(lambda: done.append("second"))
    threads.put(lambda: done.append("first"), first=True)
    threads.put(never)
    assert threads.discard(never)
    assert not threads.discard(never)
    gate.set()
    await running
    await threads.close()
    assert done == ["first", "second"]


@pytest.mark.parametrize("error", [StopIteration(4), SystemExit(4), KeyboardInterrupt()])
async def test_what_a_future_cannot_carry_is_wrapped(error: BaseException) -> None:
    threads = WorkerThreads("work", 1)

    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__) as caught:
        await threads.run(fail)
    assert caught.value.__cause__ is error
    await threads.close()


async def test_nobody_may_wait_for_what_was_given_up() -> None:
    threads = WorkerThreads("work", 1)
    gate = threading.Event()

    def fail() -> None:
        gate.wait(10)
        raise ValueError

    for given_up in (threads.run(gate.wait), threads.run(fail)):
        given_up.cancel()
    gate.set()
    await threads.close()


def test_posting_to_a_closed_loop_is_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    post(loop, int)
