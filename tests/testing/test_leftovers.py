"""What code leaves behind is found, and what it does not leave is not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from podium.testing import leftovers
from podium.testing.leftovers import child_processes, run_and_find_leftovers


def find(run: object, *, foreign: str = "") -> list[str]:
    assert callable(run)
    return run_and_find_leftovers(run, 20, lambda name: bool(foreign) and name.startswith(foreign))


def test_nothing_is_left() -> None:
    async def run() -> None:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

    assert find(run) == []


def test_a_task_is_found() -> None:
    async def run() -> None:
        group = asyncio.TaskGroup()
        await group.__aenter__()
        kept.append(group.create_task(asyncio.Event().wait(), name="forgotten"))

    kept: list[object] = []
    assert find(run) == ["task forgotten"]


def test_a_thread_is_found_unless_it_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ENDING_S", 0)
    gate = threading.Event()

    async def run() -> None:
        threading.Thread(target=gate.wait, args=(30,), name="library-1", daemon=True).start()

    try:
        assert find(run, foreign="library") == []
        assert find(run) == ["thread library-1"]
    finally:
        gate.set()


def test_a_thread_that_is_about_to_end_is_not_left() -> None:
    async def run() -> None:
        threading.Thread(target=gate.wait, args=(30,), daemon=True).start()
        asyncio.get_running_loop().call_soon(gate.set)

    gate = threading.Event()
    assert find(run) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are listed by Linux only")
def test_a_process_is_found() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

    async def run() -> None:
        start()

    left = find(run)
    (process,) = started
    assert left == [f"process {process.pid}"]
    assert process.pid in child_processes()
    process.communicate(b"\n")
    assert process.pid not in child_processes()


def test_a_failure_in_a_task_group_is_raised_as_itself() -> None:
    async def run() -> None:
        async with asyncio.TaskGroup():
            raise LookupError("the cause")

    with pytest.raises(LookupError, match="the cause"):
        find(run)


def test_what_takes_too_long_is_ended() -> None:
    async def run() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_and_find_leftovers(run, 0, lambda _name: False)
