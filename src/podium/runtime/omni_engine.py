"""The same engine for synchronous callers: lists in, results out in input order, one failed item failing alone.

It adds a thread to wait in, and nothing that the asynchronous engine does not do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self, TypeVar

from rich.console import Console
from rich.progress import Progress

from podium.core.effects import Outcome
from podium.errors import InvalidRequestError, RequestError, StageUnavailableError
from podium.runtime.async_omni_engine import MOVE_TIMEOUT_S, AsyncOmniEngine
from podium.runtime.caller_thread import CallerThread, CallerThreadClosedError
from podium.runtime.config import StageParams
from podium.runtime.host import NOT_STARTED, STOPPED
from podium.runtime.omni_control import OmniControl
from podium.runtime.orchestrator_monitor import EngineStatistics, Health
from podium.runtime.outputs import AbortReport, OmniResult
from podium.runtime.preparation import checked_affinity, checked_limit_s

Value = TypeVar("Value")


class OmniEngine(OmniControl):
    """Wraps an AsyncOmniEngine; safe from any thread that runs no event loop of its own."""

    _engine: AsyncOmniEngine

    def __init__(self, engine: AsyncOmniEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._thread: CallerThread | None = None

    def __repr__(self) -> str:
        return f"<OmniEngine of {self._engine!r}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def start(self) -> None:
        """Bring up every replica, or none.

        Raises StartError that names the stage, and EngineStoppedError when it was started before.
        """
        with self._lock:
            is_first = self._thread is None
            thread = self._thread = self._thread or CallerThread()
        try:
            self._run(self._engine.start())
        except BaseException:  # an interrupt of the user too
            if is_first:
                thread.close()
            raise

    def generate(
        self,
        prompts: Sequence[object],
        *,
        outputs: Sequence[str] | None = None,
        params: StageParams | Sequence[StageParams | None] | None = None,
        n: int = 1,
        group: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        affinity: str | None = None,
        max_concurrency: int = 256,
        progress: bool | None = None,
    ) -> list[OmniResult]:
        """Run a list of prompts and return their results in input order.

        `params` is for all of them, or a list with one entry each. With `n` each has so many samples, in its result's
        `samples`. `group` and `affinity` are those of all of them. An item that fails has its `error` set, with what
        arrived before; the others go on. At most `max_concurrency` run at a time. `progress` shows a bar on standard
        error (None: when that is a terminal). Raises InvalidRequestError when the call makes no sense as a whole, and
        StageUnavailableError when every item failed because a stage has no replica left.
        """
        items = _listed(prompts)
        each = _spread(params, len(items))
        _check_concurrency(max_concurrency)
        shared = params if isinstance(params, Mapping) else None
        common = _Common(outputs, n, group, priority, deadline_s, checked_affinity(affinity))
        self._engine.check(outputs=outputs, params=shared, n=n, group=group, priority=priority, deadline_s=deadline_s)
        with _progress_bar(len(items), shown=progress) as advance:
            batch = _Batch(self._engine, common, max_concurrency, advance)
            results = self._run(batch.run(list(zip(items, each, strict=True))))
        errors = [result.error for result in results]
        if errors and all(isinstance(error, StageUnavailableError) for error in errors) and errors[0] is not None:
            raise errors[0]
        return results

    def abort(
        self,
        request_ids: str | Sequence[str] | None,
        *,
        group: str | None = None,
        samples: Sequence[int] | None = None,
        wait: str = "stopped",
        timeout_s: float = 30.0,
    ) -> AbortReport:
        """As AsyncOmniEngine.abort."""
        return self._run(self._engine.abort(request_ids, group=group, samples=samples, wait=wait, timeout_s=timeout_s))

    def check_health(self) -> Health:
        """As AsyncOmniEngine.check_health."""
        return self._run(self._engine.check_health())

    def statistics(self) -> EngineStatistics:
        """As AsyncOmniEngine.statistics."""
        return self._run(self._engine.statistics())

    def drain(self, stage: str, replica: int, *, timeout_s: float = MOVE_TIMEOUT_S) -> None:
        """As AsyncOmniEngine.drain."""
        self._run(self._engine.drain(stage, replica, timeout_s=timeout_s))

    def restart(self, stage: str, *, timeout_s: float = MOVE_TIMEOUT_S) -> None:
        """As AsyncOmniEngine.restart."""
        self._run(self._engine.restart(stage, timeout_s=timeout_s))

    def add_replica(self, stage: str, *, timeout_s: float = MOVE_TIMEOUT_S) -> int:
        """As AsyncOmniEngine.add_replica."""
        return self._run(self._engine.add_replica(stage, timeout_s=timeout_s))

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """As AsyncOmniEngine.shutdown."""
        checked_limit_s(timeout_s, "timeout_s")
        with self._lock:
            thread = self._thread = self._thread or CallerThread()
        try:
            with suppress(CallerThreadClosedError):
                thread.run(self._engine.shutdown(timeout_s))
        finally:
            thread.close()

    def _run(self, work: Coroutine[object, object, Value]) -> Value:
        thread = self._thread
        if thread is None:
            work.close()
            raise NOT_STARTED.to_exception()
        try:
            return thread.run(work)
        except CallerThreadClosedError:
            raise STOPPED.to_exception() from None


class _Common(NamedTuple):
    """What all requests of one call have in common, as `AsyncOmniEngine.generate` takes it."""

    outputs: Sequence[str] | None
    n: int
    group: str | None
    priority: int
    deadline_s: float | None
    affinity: str | None


class _Batch:
    """One call of `generate`: every item is its own request."""

    def __init__(
        self,
        engine: AsyncOmniEngine,
        common: _Common,
        max_concurrency: int,
        advance: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._common = common
        self._slots = asyncio.Semaphore(max_concurrency)
        self._advance = advance

    async def run(self, items: Sequence[tuple[object, StageParams | None]]) -> list[OmniResult]:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._run_one(prompt, params)) for prompt, params in items]
        return [task.result() for task in running]

    async def _run_one(self, prompt: object, params: StageParams | None) -> OmniResult:
        async with self._slots:
            try:
                stream = self._engine.generate(
                    prompt,
                    outputs=self._common.outputs,
                    params=params,
                    n=self._common.n,
                    group=self._common.group,
                    priority=self._common.priority,
                    deadline_s=self._common.deadline_s,
                    affinity=self._common.affinity,
                )
                result = await stream.collect_whatever()
            except RequestError as error:
                result = _refused(error)
        self._advance()
        return result


def _refused(error: RequestError) -> OmniResult:
    return OmniResult(
        request_id=error.request_id or "",
        outputs={},
        finish_reasons={},
        usage={},
        timeline={},
        outcome=Outcome.FAILED,
        error=error,
    )


def _listed(prompts: Sequence[object]) -> list[object]:
    if not isinstance(prompts, list | tuple):
        raise InvalidRequestError.because(
            f"prompts: is a {type(prompts).__name__}; pass a list, with one prompt (text or messages) for each request"
        )
    return list(prompts)


def _check_concurrency(value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise InvalidRequestError.because(
            f"max_concurrency: {value!r} makes no sense; it must be a whole number, 1 or more"
        )


def _spread(params: StageParams | Sequence[StageParams | None] | None, count: int) -> list[StageParams | None]:
    if params is None or isinstance(params, Mapping):
        return [params] * count
    if not isinstance(params, Sequence):
        raise InvalidRequestError.because(
            f"params: is of type {type(params).__name__}; pass one mapping, or a list with one entry for each prompt"
        )
    if len(params) != count:
        raise InvalidRequestError.because(
            f"params: there are {len(params)} entries for {count} prompts; pass one mapping, or one entry for each"
        )
    return list(params)


@contextmanager
def _progress_bar(total: int, *, shown: bool | None) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    with Progress(console=console, disable=not (console.is_terminal if shown is None else shown)) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda: bar.advance(task)
