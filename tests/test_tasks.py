"""Tasks that have an owner, and futures that can be shared."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future

import pytest

from podium import tasks
from podium.tasks import OwnedTask, follow


def no_failure(failure: BaseException) -> None:
    pytest.fail(f"not expected: {failure!r}")


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_task_is_cancelled_and_awaited_on_close() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    task = OwnedTask("example", no_failure)
    assert repr(task) == "<OwnedTask example, not running>"
    task.start(work())
    await asyncio.sleep(0)
    assert task.is_running
    assert repr(task) == "<OwnedTask example>"
    await task.close()
    assert repr(task) == "<OwnedTask example, not running>"
    assert ended == ["cleaned up"]
    await task.close()


async def test_closing_before_the_first_step_leaves_no_coroutine_unawaited() -> None:
    task = OwnedTask("example", no_failure)
    task.start(for_ever())
    await task.close()
    assert not task.is_running


async def test_closing_what_was_never_started_is_harmless() -> None:
    task = OwnedTask("example", no_failure)
    await task.close()
    await task.wait()


async def test_the_owner_hears_of_a_failure() -> None:
    failures: list[BaseException] = []

    async def work() -> None:
        raise ValueError("it broke")

    task = OwnedTask("example", failures.append)
    task.start(work())
    await task.wait()
    assert [str(failure) for failure in failures] == ["it broke"]


async def test_it_can_be_started_again_once_it_has_ended_but_not_before() -> None:
    task = OwnedTask("example", no_failure)
    task.start(for_ever())
    with pytest.raises(RuntimeError, match="example is running already"):
        task.start(for_ever())
    await task.close()
    task.start(asyncio.sleep(0))
    await task.wait()
    assert not task.is_running


async def test_a_task_that_closes_its_owner_does_not_wait_for_itself() -> None:
    task = OwnedTask("example", no_failure)
    task.start(task.close())
    async with asyncio.timeout(10):
        await task.wait()


@pytest.mark.rule("ORCH-INV-204")
async def test_a_task_that_does_not_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "CLOSE_LIMIT_S", 0.001)
    gate = asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    task = OwnedTask("stubborn", no_failure)
    task.start(stubborn())
    await asyncio.sleep(0)
    await task.close()
    assert "stubborn did not end within 0.001 s" in caplog.text
    gate.set()
    await task.wait()


def test_a_follower_ends_as_the_followed() -> None:
    followed: Future[int] = Future()
    followers = [follow(followed) for _ in range(2)]
    followed.set_result(7)
    assert [follower.result(0) for follower in followers] == [7, 7]
    assert follow(followed).result(0) == 7


def test_a_follower_has_the_exception_of_the_followed() -> None:
    followed: Future[int] = Future()
    follower = follow(followed)
    followed.set_exception(ValueError("it broke"))
    with pytest.raises(ValueError, match="it broke"):
        follower.result(0)


def test_giving_up_a_follower_leaves_the_followed_and_other_followers() -> None:
    followed: Future[int] = Future()
    given_up, other = follow(followed), follow(followed)
    assert given_up.cancel()
    followed.set_result(1)
    assert other.result(0) == 1
    assert given_up.cancelled()


def test_a_cancelled_future_cancels_its_followers() -> None:
    followed: Future[int] = Future()
    follower = follow(followed)
    assert followed.cancel()
    with pytest.raises(CancelledError):
        follower.result(0)


def test_a_follower_can_be_waited_for_in_another_thread() -> None:
    followed: Future[str] = Future()
    follower = follow(followed)
    thread = threading.Thread(target=followed.set_result, args=("there",))
    thread.start()
    assert follower.result(10) == "there"
    thread.join()
