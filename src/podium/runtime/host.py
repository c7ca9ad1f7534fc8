"""The thread that an engine lives in: its loop, its driver and its fleet, from start to end.

Callers reach it by posting events. It is the one place that knows in which order these parts start and stop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import TypeVar

from podium.core.events import Event, ReplicaJoined, ShutdownRequested
from podium.core.orchestrator import Orchestrator
from podium.errors import EngineStoppedError, ErrorKind, ErrorRecord, Scope
from podium.ports.environment import Clock, Environment, Observer
from podium.runtime.clock import ReferenceStore
from podium.runtime.driver import Driver
from podium.runtime.fleet import Fleet, Progress, ReplicaSpec
from podium.runtime.inbox import Inbox
from podium.runtime.observer import LoopObserver
from podium.runtime.outlet import CallerOutlet

_log = logging.getLogger("podium.engine")

Answer = TypeVar("Answer")

STOPPED = ErrorRecord(kind=ErrorKind.ENGINE_STOPPED, scope=Scope.ENGINE, message="the engine is shut down")
DEAD = ErrorRecord(
    kind=ErrorKind.ENGINE_DEAD, scope=Scope.ENGINE, message="the engine died of an internal error; see its log"
)


class HostState(StrEnum):
    """Where an engine stands."""

    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DEAD = "dead"


class EngineHost:
    """One engine's thread. `state` and `post` may be used from any thread."""

    def __init__(
        self,
        core: Orchestrator,
        specs: Sequence[ReplicaSpec],
        outlet: CallerOutlet,
        clock: Clock,
        observers: Sequence[Observer],
        on_progress: Progress,
    ) -> None:
        self.state = HostState.NEW
        self.observer = LoopObserver(clock, observers)
        self.store = ReferenceStore()
        self._core = core
        self._specs = specs
        self._outlet = outlet
        self._clock = clock
        self._inbox = Inbox(clock)
        self._on_progress = on_progress
        self._close_timeout_s = 10.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._driver: Driver | None = None
        self.started: Future[None] = Future()
        self.ended: Future[None] = Future()

    def __repr__(self) -> str:
        return f"<EngineHost {self.state}, {len(self._inbox)} events wait>"

    @property
    def inbox_depth(self) -> int:
        """Events that wait for the loop."""
        return len(self._inbox)

    def start(self) -> None:
        """Start the thread; `started` resolves when every replica is up, or with the StartError of one."""
        self.state = HostState.STARTING
        threading.Thread(target=self._run, name="podium engine", daemon=True).start()

    def post(self, event: Event) -> None:
        """Give the core an event. Raises EngineStoppedError when nobody would handle it."""
        if self.state in (HostState.DEAD, HostState.STOPPED):
            raise self.error().to_exception()
        self._inbox.post(event)

    def ask(self, question: Callable[[], Answer]) -> Future[Answer]:
        """Run a short question on the loop, between two steps. Raises EngineStoppedError when there is no loop."""
        loop = self._loop
        if loop is None or loop.is_closed():
            raise self.error().to_exception()
        answer: Future[Answer] = Future()
        loop.call_soon_threadsafe(_answer, question, answer)
        return answer

    def error(self) -> ErrorRecord:
        """Why it does not serve."""
        return DEAD if self.state is HostState.DEAD else STOPPED

    def stop(self, close_timeout_s: float) -> None:
        """End every request, then the loop, then the stages. Returns at once; `ended` resolves when it is done."""
        self._close_timeout_s = close_timeout_s
        loop = self._loop
        if self.state is HostState.NEW:
            self.state = HostState.STOPPED
            self.started.cancel()
            self.ended.set_result(None)
        elif self.state in (HostState.STARTING, HostState.SERVING) and loop is not None:
            self.state = HostState.STOPPING
            self._inbox.post(ShutdownRequested(STOPPED))
            loop.call_soon_threadsafe(self._stop_here)

    def _stop_here(self) -> None:
        if self._driver is not None:
            self._driver.close()
        elif self._main is not None:
            self._main.cancel()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except asyncio.CancelledError:
            _log.info("the start was cancelled")
        finally:
            self._finish()

    def _finish(self) -> None:
        if self.state is not HostState.DEAD:
            self.state = HostState.STOPPED
        self._outlet.fail_everything(self.error())
        if not self.started.done():
            self.started.set_exception(EngineStoppedError(STOPPED))
        self.ended.set_result(None)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._inbox.bind()
        fleet = Fleet(self._specs, self._inbox.post, self._on_progress, self._close_timeout_s)
        try:
            await fleet.start()
        except Exception as failure:  # noqa: BLE001 - handed to whoever waits for the start
            self.started.set_exception(failure)
            return
        for key in fleet.keys:
            self._inbox.post(ReplicaJoined(key))
        environment = Environment(self._clock, self.store, self.observer)
        self._driver = Driver(self._core, self._inbox, environment, self._outlet, fleet)
        self.state = HostState.SERVING
        self.started.set_result(None)
        try:
            await self._driver.run()
        except Exception:  # noqa: BLE001 - whatever it is, the core cannot be trusted any more
            _log.critical("the engine's loop is broken", exc_info=True)
            self.state = HostState.DEAD
            self._outlet.fail_everything(DEAD)
        finally:
            fleet.close_timeout_s = self._close_timeout_s
            await fleet.close()


def _answer(question: Callable[[], Answer], answer: Future[Answer]) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_result(question())
