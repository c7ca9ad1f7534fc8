"""A few threads that work off a queue for code that blocks; they start on demand, and end with `close`.

They are daemons, so that code which never returns cannot keep a process from ending. Work must not raise; the number of
queued items is limited by whoever puts them (one per job, here).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Work: TypeAlias = Callable[[], None]


class WorkerThreads:
    """At most `size` threads. `put`, `discard` and `is_contended` are for any thread, the rest for the loop's."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._condition = threading.Condition()
        self._queue: deque[Work] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._alive = 0
        self._waiters: list[Callable[[], None]] = []
        self._closing = False

    def __repr__(self) -> str:
        return f"<WorkerThreads {self._name} {len(self._threads)}/{self._size} queued={len(self._queue)}>"

    @property
    def is_contended(self) -> bool:
        """Whether work is waiting for a thread."""
        return bool(self._queue)

    def put(self, work: Work, *, first: bool = False) -> None:
        """Queue `work`, before everything else with `first`. Raises RuntimeError once closed."""
        with self._condition:
            if self._closing:
                raise RuntimeError(f"the worker threads of {self._name} are closed")
            if first:
                self._queue.appendleft(work)
            else:
                self._queue.append(work)
            if len(self._queue) > self._idle and len(self._threads) < self._size:
                self._start_thread()
            else:
                self._condition.notify()

    def discard(self, work: Work) -> bool:
        """Take `work` out of the queue again; False when no thread has left it there."""
        with self._condition:
            try:
                self._queue.remove(work)
            except ValueError:
                return False
            return True

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run `function` in a thread; the future has what it returns or raises."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - foreign code; whatever it raises is handed to the waiter
                post(loop, _fail, outcome, error)
            else:
                post(loop, _resolve, outcome, result)

        self.put(work)
        return outcome

    async def close(self) -> None:
        """Finish what is queued, then end the threads, and wait for that. Idempotent."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            if self._alive:
                self._waiters.append(lambda: post(loop, ended.set))
            else:
                ended.set()
        await ended.wait()
        for thread in self._threads:
            thread.join()  # each has done everything but return

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work_until_closed, name=name, daemon=True)
        self._threads.append(thread)
        self._alive += 1
        thread.start()

    def _work_until_closed(self) -> None:
        while (work := self._take()) is not None:
            work()
            del work  # an idle thread keeps no job alive
        with self._condition:
            self._alive -= 1
            waiters = [] if self._alive else self._waiters
        for tell in waiters:
            tell()

    def _take(self) -> Work | None:
        with self._condition:
            self._idle += 1
            while not self._queue and not self._closing:
                self._condition.wait()
            self._idle -= 1
            return self._queue.popleft() if self._queue else None


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> None:
    """Run `callback` on `loop`, from any thread. Once the loop is closed nobody is there to be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def _resolve(outcome: asyncio.Future[T], result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[T], error: BaseException) -> None:
    if outcome.done():
        return
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        # A future cannot carry StopIteration, and SystemExit would end the loop that awaits it.
        cause = error
        error = RuntimeError(f"{type(cause).__name__}: {cause}")
        error.__cause__ = cause
    outcome.set_exception(error)
