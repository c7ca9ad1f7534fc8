"""A loop for callers that have none: everybody who waits gets an answer, also when it is closed meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from podium.runtime import caller_thread
from podium.runtime.caller_thread import CallerThread, CallerThreadClosedError


@pytest.fixture
def thread() -> Iterator[CallerThread]:
    thread = CallerThread()
    yield thread
    thread.close()
    assert not any(other.name == "podium caller" for other in threading.enumerate())


async def name_of_thread() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def fail() -> None:
    raise LookupError("it broke")


def test_it_returns_what_the_coroutine_returns(thread: CallerThread) -> None:
    assert thread.run(name_of_thread()) == "podium caller"
    assert repr(thread) == "<CallerThread>"


def test_it_raises_what_the_coroutine_raises(thread: CallerThread) -> None:
    with pytest.raises(LookupError, match="it broke"):
        thread.run(fail())
    assert thread.run(name_of_thread()) == "podium caller"


def test_once_closed_it_takes_nothing(thread: CallerThread) -> None:
    thread.close()
    thread.close()
    assert repr(thread) == "<CallerThread, closed>"
    with pytest.raises(CallerThreadClosedError):
        thread.run(name_of_thread())


def wait_elsewhere(thread: CallerThread, begun: threading.Event, gate: asyncio.Event) -> Future[str]:
    """Let another thread run a coroutine that waits for `gate`; what comes of it."""
    outcome: Future[str] = Future()

    async def wait() -> str:
        begun.set()
        await gate.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return "answered"

    def run() -> None:
        try:
            outcome.set_result(thread.run(wait()))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            outcome.set_exception(error)

    threading.Thread(target=run).start()
    return outcome


def test_closing_lets_what_runs_end_first(thread: CallerThread) -> None:
    begun, gate = threading.Event(), asyncio.Event()
    outcome = wait_elsewhere(thread, begun, gate)
    assert begun.wait(10)

    async def open_gate() -> None:
        gate.set()

    thread.run(open_gate())
    thread.close()
    assert outcome.result(10) == "answered"


def test_what_does_not_end_is_cancelled(thread: CallerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_thread, "CLOSE_LIMIT_S", 0.001)
    begun = threading.Event()
    outcome = wait_elsewhere(thread, begun, asyncio.Event())
    assert begun.wait(10)
    thread.close()
    with pytest.raises(CancelledError):
        outcome.result(10)


def test_many_threads_may_close_it(thread: CallerThread) -> None:
    closing = [threading.Thread(target=thread.close) for _ in range(8)]
    for one in closing:
        one.start()
    for one in closing:
        one.join(10)
    assert not any(one.is_alive() for one in closing)
