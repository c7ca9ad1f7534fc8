"""One hosted callable at work on one job: inline or as a coroutine on the loop (for threads see `function_threads`).

Each way shares how outputs leave (`Run`, `RunTable`) and how foreign exceptions become one failed job. What is hosted,
and the life of the backend, is not known here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from enum import Enum, auto
from types import AsyncGeneratorType, CoroutineType
from typing import cast

import msgspec

from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.identity import JobKey, Payload
from podium.errors import ErrorKind, ErrorRecord, InvalidRequestError, Scope
from podium.payloads import Label, join
from podium.ports.stage_backend import BackendDead, BackendOutput, JobFailed

logger = logging.getLogger("podium")

Serve = Callable[[Payload], object]
"""The hosted callable with the job's parameters bound: item in; output, iterator or awaitable out."""


class Style(Enum):
    """What calling the hosted callable gives."""

    PLAIN = auto()
    """An output, None, or an iterator over outputs."""

    COROUTINE = auto()
    ASYNC_GENERATOR = auto()


def style_of(function: Callable[..., object]) -> Style:
    """How `function`, or the `__call__` of an instance, was defined."""
    defined = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(defined):
        return Style.COROUTINE
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(defined):
        return Style.ASYNC_GENERATOR
    return Style.PLAIN


class RunTable:
    """The runs of one backend, and what left them: it waits here for `take`, as one batch for each run."""

    def __init__(self, note_change: Callable[[], None]) -> None:
        """`note_change` is called whenever a run comes to rest, is taken or is forgotten."""
        self.note_change = note_change
        self._runs: dict[JobKey, Run] = {}
        self._listed: list[Run] = []
        self._is_ready = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    @property
    def is_at_rest(self) -> bool:
        """Whether no step runs, and all outputs were taken."""
        return not self._listed and all(run.is_resting for run in self._runs.values())

    def add(self, run: Run) -> None:
        """Keep `run` until its end was taken, or it is removed."""
        self._runs[run.job] = run

    def find(self, job: JobKey) -> Run | None:
        """The run of `job`, unless it is unknown or forgotten."""
        return self._runs.get(job)

    def remove(self, job: JobKey) -> None:
        """Forget `job`."""
        self._runs.pop(job, None)
        self.note_change()

    def list(self, run: Run) -> None:
        """Have `run` in the next batch."""
        self._listed.append(run)
        self._is_ready.set()

    async def take(self) -> Sequence[BackendOutput]:
        """Wait for outputs, and take all that there are. Raises BackendDead once closed."""
        while not self._listed:
            if self._is_closed:
                raise BackendDead("the backend is closed")
            self._is_ready.clear()
            await self._is_ready.wait()
        outputs = self._take_listed()
        self.note_change()
        return outputs

    def _take_listed(self) -> Sequence[BackendOutput]:
        listed, self._listed = self._listed, []
        outputs: list[BackendOutput] = []
        for run in listed:
            outputs += run.take()
            if run.has_ended:
                self.remove(run.job)
        return outputs

    async def close(self) -> None:
        """End every run, drop what was not taken, and let nobody wait any longer. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(run.halt() for run in self._runs.values()))
        self._take_listed()
        self._runs.clear()
        self._is_ready.set()
        self.note_change()


class Run(ABC):
    """One job. Everything here happens on the loop, except where a subclass says otherwise."""

    def __init__(self, stage: str, job: JobKey, serve: Serve, table: RunTable, max_buffered: int) -> None:
        self.job = job
        self._stage = stage
        self._serve = serve
        self._table = table
        self._max_buffered = max_buffered
        self._items: deque[Payload] = deque()
        self._input_ended = False
        self._is_held = False
        self._is_stopping = False
        self._served = 0
        self._outputs: list[Payload] = []
        self._handed_over: list[Payload] = []
        self._sequence = 0
        self._label: str | None = None
        self._doom: Finish | ErrorRecord | None = None  # what the end will be, once no step runs
        self._end: Finish | ErrorRecord | None = None
        self._is_listed = False
        self._taken = asyncio.Event()

    def __repr__(self) -> str:
        state = "ended" if self.has_ended else "stopping" if self._is_stopping else "running"
        return f"<{type(self).__name__} {self.job} {state} waiting={len(self._items)} outputs={self._sequence}>"

    @property
    def has_ended(self) -> bool:
        """Whether the job finished or failed."""
        return self._end is not None

    @property
    def everything(self) -> Payload:
        """All that the job made so far, joined; None when it made nothing."""
        return join([*self._handed_over, *self._outputs])

    def feed(self, items: Sequence[Payload]) -> None:
        """Take more input. Past `max_buffered` waiting items the job fails: nothing may grow without limit."""
        if self._is_over:
            return
        if len(self._items) + len(items) > self._max_buffered:
            self._overflow(f"{len(self._items) + len(items)} input items are waiting")
            return
        self._items.extend(items)
        self._advance()

    def end_input(self) -> None:
        """Take the end of the input."""
        self._input_ended = True
        if not self._is_over:
            self._advance()

    async def stop(self) -> None:
        """Return once no step runs or will start, and what was complete has been taken. May be repeated."""
        await self.halt()
        await self._wait_taken()

    async def halt(self) -> None:
        """Return once no step runs or will start. May be repeated."""
        self._is_stopping = True
        self._interrupt()
        await self._wait_rest()

    def hold(self) -> None:
        """Start no step until `release`; one that runs is the last."""
        self._is_held = True

    def release(self) -> None:
        """Go on, if it was held."""
        if self._is_held:
            self._is_held = False
            if not self._is_over:
                self._advance()

    def abort(self) -> None:
        """End with what there is, as soon as no step runs."""
        if not self._is_over:
            self._doom = Finish(FinishReason.ABORT, {"items": self._served})
            self._interrupt()

    @property
    @abstractmethod
    def is_resting(self) -> bool:
        """Whether no step runs, nor will one that has not been allowed since."""

    @property
    def _is_over(self) -> bool:
        return self._is_stopping or self._doom is not None or self.has_ended

    @abstractmethod
    def _advance(self) -> None:
        """Go on: there is new input or its end, or room for outputs."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Come to rest as soon as possible, and call `_come_to_rest` then. May be repeated."""

    @abstractmethod
    async def _wait_rest(self) -> None:
        """Return once no step runs or will start."""

    def _come_to_rest(self) -> None:
        self._items.clear()
        if self._doom is not None and not (self._is_stopping or self.has_ended):
            self._end = self._doom
            self._list()
        self._table.note_change()

    def take(self) -> list[BackendOutput]:
        """Hand over everything that is complete, in order."""
        taken: list[BackendOutput] = []
        finish = self._end if isinstance(self._end, Finish) else None
        if self._outputs or finish is not None:
            taken.append(JobOutput(self.job, self._sequence, tuple(self._outputs), finish))
            self._sequence += len(self._outputs)
            self._handed_over += self._outputs
            self._outputs = []
        if isinstance(self._end, ErrorRecord):
            taken.append(JobFailed(self.job, self._end))
        self._is_listed = False
        self._taken.set()
        if not self._is_over:
            self._advance()
        return taken

    async def _wait_taken(self) -> None:
        while self._is_listed:
            self._taken.clear()
            await self._taken.wait()

    def _list(self) -> None:
        if not self._is_listed:
            self._is_listed = True
            self._table.list(self)

    def _emit(self, output: Payload) -> None:
        if isinstance(output, Label):
            self._label = output.label
        elif output is not None and not self.has_ended:
            self._outputs.append(output)
            self._list()

    def _finish(self) -> None:
        self._end = Finish(FinishReason.STOP, {"items": self._served}, self._label)
        self._list()

    def _overflow(self, what: str) -> None:
        message = f"stage '{self._stage}': {what}, the limit is {self._max_buffered}; raise the option max_buffered"
        self._doom = self._error(ErrorKind.BUFFER_OVERFLOW, message)
        self._interrupt()

    def _fail(self, error: BaseException) -> None:
        """End the job with what foreign code raised: the client's fault as it is, anything else by its type only."""
        if isinstance(error, InvalidRequestError) and not self._is_stopping:
            self._end = msgspec.structs.replace(error.record, request_id=self.job.request, stage=self._stage)
            self._list()
            return
        request = self.job.request
        extra = {"request_id": request}
        logger.error("stage '%s' failed request '%s'", self._stage, request, exc_info=error, extra=extra)
        if not self._is_stopping:
            self._end = self._error(ErrorKind.STAGE_FAILED, f"stage '{self._stage}' raised {type(error).__name__}")
            self._list()

    def _error(self, kind: ErrorKind, message: str) -> ErrorRecord:
        return ErrorRecord(
            kind=kind, scope=Scope.REQUEST, message=message, request_id=self.job.request, stage=self._stage
        )


class InlineRun(Run):
    """Calls the function where the input arrives: for code that returns at once."""

    def _advance(self) -> None:
        while self._items and not (self._is_over or self._is_held):
            self._serve_item(self._items.popleft())
        if self._input_ended and not (self._is_over or self._is_held):
            self._finish()

    @property
    def is_resting(self) -> bool:
        return True  # a call ends where it began

    def _serve_item(self, item: Payload) -> None:
        try:
            result = check_plain(self._serve(item))
            if not isinstance(result, Iterator):
                self._emit(result)
            else:
                for output in result:
                    self._emit(output)
                    if len(self._outputs) > self._max_buffered:
                        self._overflow("more outputs are waiting than")
                        break
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - hosted code may raise anything
            self._fail(error)
        self._served += 1

    def _interrupt(self) -> None:
        self._come_to_rest()

    async def _wait_rest(self) -> None:
        return  # nothing runs between two calls


class LoopRun(Run):
    """Serves a coroutine function or an async generator, in one task for the whole job."""

    def __init__(
        self,
        stage: str,
        job: JobKey,
        serve: Serve,
        table: RunTable,
        max_buffered: int,
        *,
        group: asyncio.TaskGroup,
        style: Style,
    ) -> None:
        super().__init__(stage, job, serve, table, max_buffered)
        self._style = style
        self._wake = asyncio.Event()
        self._is_waiting = True
        self._task = group.create_task(self._serve_items(), name=f"{stage} {job}")
        self._task.add_done_callback(lambda _task: self._come_to_rest())

    def _advance(self) -> None:
        self._wake.set()

    @property
    def is_resting(self) -> bool:
        return self._task.done() or self._is_waiting

    async def _wait_wake(self) -> None:
        self._wake.clear()
        self._is_waiting = True
        self._table.note_change()
        await self._wake.wait()
        self._is_waiting = False

    async def _may_go_on(self) -> bool:
        """Wait while it is held; whether there is still something to do."""
        while self._is_held and not self._is_over:
            await self._wait_wake()
        return not self._is_over

    async def _serve_items(self) -> None:
        try:
            self._is_waiting = False
            while await self._may_go_on():
                if self._items:
                    await self._serve_item(self._items.popleft())
                    self._served += 1
                elif self._input_ended:
                    self._finish()
                else:
                    await self._wait_wake()
        except asyncio.CancelledError as error:
            if not self._is_over:
                self._fail(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - hosted code may raise anything; it fails its own job
            self._fail(error)

    async def _serve_item(self, item: Payload) -> None:
        if self._style is Style.COROUTINE:
            self._emit(await cast("Awaitable[Payload]", self._serve(item)))
            return
        async with aclosing(cast("AsyncGenerator[Payload, None]", self._serve(item))) as outputs:
            async for output in outputs:
                self._emit(output)
                if len(self._outputs) >= self._max_buffered and not self._is_over:
                    await self._wait_taken()
                if not await self._may_go_on():
                    return

    def _interrupt(self) -> None:
        self._task.cancel()

    async def _wait_rest(self) -> None:
        if not self._task.done():
            await asyncio.wait({self._task})


def check_plain(result: object) -> object:
    """`result`, unless it would have to be awaited: then what was hosted hides that it is async."""
    if isinstance(result, CoroutineType | AsyncGeneratorType):
        if isinstance(result, CoroutineType):
            result.close()
        raise TypeError(f"the function gave a {type(result).__name__}: define it with `async def` itself")
    return result
