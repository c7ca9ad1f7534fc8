"""What a piece of code left behind: threads, child processes, tasks. The suites compare before and after with it.

Child processes are seen on Linux only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

ENDING_S = 2.0
"""So long, in seconds, may a thread take to return once it has said that it is done."""


def run_and_find_leftovers(
    run: Callable[[], Coroutine[object, object, None]], limit_s: float, is_foreign: Callable[[str], bool]
) -> list[str]:
    """Run a coroutine in a loop of its own, for at most `limit_s` seconds, and name what it left.

    `is_foreign` says of a thread's name that it is not the code's own. Raises TimeoutError past the limit; a failure in
    a task group is raised as itself, so that a test says what went wrong.
    """
    threads, processes = set(threading.enumerate()), child_processes()
    left: list[str] = []

    async def run_within_limit() -> None:
        async with asyncio.timeout(limit_s):
            await run()
        left.extend(f"task {task.get_name()}" for task in asyncio.all_tasks() if task is not asyncio.current_task())

    try:
        asyncio.run(run_within_limit())
    except BaseExceptionGroup as group:
        raise _only_failure(group) from None
    for thread in set(threading.enumerate()) - threads:
        if not is_foreign(thread.name):
            thread.join(ENDING_S)
            left += [f"thread {thread.name}"] if thread.is_alive() else []
    left += [f"process {process}" for process in child_processes() - processes]
    return left


def _only_failure(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure


def child_processes() -> frozenset[int]:
    """The ids of this process's children that live, or that nobody has waited for."""
    children: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            children.update(map(int, listing.read_text().split()))
        except OSError:  # the thread has ended since it was listed
            continue
    return frozenset(children)
