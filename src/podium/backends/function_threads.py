"""One hosted callable at work on one job, step by step in worker threads.

It is a `Run` like the others: what is hosted, and the life of the backend, is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import GeneratorType

from podium.backends.function_runs import Run, RunTable, Serve, check_plain
from podium.backends.worker_threads import WorkerThreads, post
from podium.core.identity import JobKey, Payload


class ThreadRun(Run):
    """Runs blocking code step by step in worker threads: one call, or one output of a generator.

    A job is in one thread at a time, and lets others have the thread between two steps. `_results` and the front of
    `_items` belong to the thread while `_is_scheduled`, to the loop otherwise.
    """

    def __init__(
        self, stage: str, job: JobKey, serve: Serve, table: RunTable, max_buffered: int, *, threads: WorkerThreads
    ) -> None:
        super().__init__(stage, job, serve, table, max_buffered)
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._results: Iterator[Payload] | None = None
        self._is_scheduled = False
        self._rested = asyncio.Event()
        self._made = 0

    def _advance(self) -> None:
        if self._is_scheduled:
            return
        if self._can_step():
            self._is_scheduled = True
            self._threads.put(self._work)
        elif self._input_ended and self._results is None and not (self._items or self._is_held):
            self._finish()

    def hold(self) -> None:
        super().hold()
        if self._is_scheduled and not self._is_over and self._threads.discard(self._work):
            self._is_scheduled = False

    @property
    def is_resting(self) -> bool:
        return not self._is_scheduled

    def _can_step(self) -> bool:
        has_work = self._results is not None or bool(self._items)
        return has_work and not self._is_held and self._made - self._sequence < self._max_buffered

    def _work(self) -> None:
        """In a worker thread: steps, until there is nothing to do or another job waits for the thread."""
        while True:
            output, error = self._step()
            if error is not None or self._is_over or self._threads.is_contended or not self._can_step():
                post(self._loop, self._on_rest, output, error)
                return
            post(self._loop, self._emit, output)

    def _step(self) -> tuple[Payload, BaseException | None]:
        output: Payload = None
        try:
            if self._is_over:
                self._close_results()
            elif self._results is None:
                result = check_plain(self._serve(self._items.popleft()))
                if isinstance(result, Iterator):
                    self._results = result
                else:
                    output = result
            if self._results is not None:
                output = next(self._results, _EXHAUSTED)
        except BaseException as error:  # noqa: BLE001 - hosted code may raise anything; it fails its own job
            self._results = None
            return None, error
        if self._results is None or output is _EXHAUSTED:
            self._results = None
            self._served += 1
        if output is _EXHAUSTED:
            output = None
        self._made += output is not None
        return output, None

    def _close_results(self) -> None:
        results, self._results = self._results, None
        if isinstance(results, GeneratorType):
            results.close()

    def _on_rest(self, output: Payload, error: BaseException | None) -> None:
        self._emit(output)
        if error is not None:
            self._fail(error)
        self._is_scheduled = False
        if self._is_over:
            self._interrupt()
        else:
            self._advance()
        self._table.note_change()

    def _interrupt(self) -> None:
        """A step cannot be interrupted: it is the last one. A generator is closed in the thread, as its code runs."""
        if self._is_scheduled and self._threads.discard(self._work):
            self._is_scheduled = False
        if not self._is_scheduled and self._results is not None:
            self._is_scheduled = True
            self._threads.put(self._work, first=True)
        if not self._is_scheduled:
            self._come_to_rest()
            self._rested.set()

    async def _wait_rest(self) -> None:
        while self._is_scheduled:
            self._rested.clear()
            await self._rested.wait()


_EXHAUSTED = object()
