"""The life of an engine: its loop, its driver and its fleet, from start to end.

Callers reach it by posting events. It is the one place that knows in which order these parts start and stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import TypeVar

from podium.core.events import Event, ReplicaJoined, ShutdownRequested
from podium.core.orchestrator import Orchestrator
from podium.core.statistics import Statistics
from podium.errors import ErrorKind, ErrorRecord, Scope
from podium.ports.environment import Clock, Environment, Observer
from podium.runtime.clock import ReferenceStore
from podium.runtime.driver import Driver
from podium.runtime.fleet import Fleet
from podium.runtime.fleet_moves import FleetMoves
from podium.runtime.home import Home, ThreadHome
from podium.runtime.inbox import Inbox
from podium.runtime.observer import LoopObserver
from podium.runtime.outlet import CallerOutlet
from podium.runtime.replica_slot import Progress, ReplicaSpec, SlotStatistics
from podium.runtime.rpc_result_router import RpcResultRouter

_log = logging.getLogger("podium.engine")

Value = TypeVar("Value")

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
    """One engine, in a thread of its own unless given another `home`. `state` and `post` are for any thread."""

    def __init__(
        self,
        core: Orchestrator,
        specs: Sequence[ReplicaSpec],
        outlet: CallerOutlet,
        clock: Clock,
        observers: Sequence[Observer],
        on_progress: Progress,
        *,
        home: Home | None = None,
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
        self._lock = threading.Lock()
        self._home = home or ThreadHome("podium engine")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None
        self._driver: Driver | None = None
        self._fleet: Fleet | None = None
        self._moves: FleetMoves | None = None
        self._moving: set[asyncio.Task[object]] = set()
        self._questions: RpcResultRouter[Statistics] = RpcResultRouter()
        self.started: Future[None] = Future()
        self.ended: Future[None] = Future()

    def __repr__(self) -> str:
        return f"<EngineHost {self.state}, {len(self._inbox)} events wait>"

    @property
    def inbox_depth(self) -> int:
        """Events that wait for the loop."""
        return len(self._inbox)

    def start(self) -> None:
        """Start to live; `started` resolves when every replica is up, or with the StartError of one.

        Raises EngineStoppedError when it was started before.
        """
        if not self._try_move(HostState.STARTING, HostState.NEW):
            raise _stopped(f"an engine starts once; this one is {self.state}").to_exception()
        self._home.start(self._live, self._finish)

    def post(self, event: Event) -> None:
        """Give the core an event. Raises EngineStoppedError when nobody would handle it."""
        if self.state in (HostState.DEAD, HostState.STOPPED):
            raise self.error().to_exception()
        self._inbox.post(event)

    def read_statistics(self) -> Future[Statistics]:
        """Ask the loop, between two steps. Raises EngineStoppedError when there is none, or it ends."""
        loop = self._loop
        if loop is None:
            raise self.error().to_exception()
        call, answer = self._questions.open()
        try:
            loop.call_soon_threadsafe(self._answer, call)
        except RuntimeError:  # its loop is closed
            self._questions.forget(call)
            raise self.error().to_exception() from None
        return answer

    def slots(self) -> tuple[SlotStatistics, ...]:
        """What happens at each slot for a replica."""
        return () if self._fleet is None else self._fleet.statistics()

    def move(self, work: Callable[[FleetMoves], Coroutine[object, object, Value]]) -> Future[Value]:
        """Have replicas moved, on the loop. Raises EngineStoppedError when nobody would; so does the future."""
        loop, moves = self._loop, self._moves
        if loop is None or moves is None or self.state is not HostState.SERVING:
            raise self.error().to_exception()
        moving = self._move(work, moves)
        try:
            return asyncio.run_coroutine_threadsafe(moving, loop)
        except RuntimeError:  # its loop is closed
            moving.close()
            raise self.error().to_exception() from None

    def error(self) -> ErrorRecord:
        """Why it does not serve."""
        return _REASONS.get(self.state, STOPPED)

    def stop(self, close_timeout_s: float) -> None:
        """End every request, then the loop, then the stages. Returns at once; `ended` resolves when it is done."""
        self._close_timeout_s = close_timeout_s
        if self._try_move(HostState.STOPPED, HostState.NEW):
            self.ended.set_result(None)
        elif self._try_move(HostState.STOPPING, HostState.STARTING, HostState.SERVING) and self._loop is not None:
            self._inbox.post(ShutdownRequested(STOPPED))
            with contextlib.suppress(RuntimeError):  # it ended by itself, and its loop is closed
                self._loop.call_soon_threadsafe(self._stop_here)

    def join(self) -> None:
        """Once `ended` has resolved: let its home be gone, which is a matter of microseconds."""
        self._home.join()

    def _try_move(self, to: HostState, *sources: HostState) -> bool:
        with self._lock:
            is_possible = self.state in sources
            if is_possible:
                self.state = to
        return is_possible

    def _answer(self, call: int) -> None:
        self._questions.resolve(call, self._core.statistics())

    def _stop_here(self) -> None:
        if self._driver is not None:
            self._driver.close()
        elif self._starting is not None:
            self._starting.cancel()

    def _finish(self) -> None:
        self._try_move(HostState.DEAD, HostState.SERVING)
        self._try_move(HostState.STOPPED, HostState.STARTING, HostState.STOPPING)
        self._outlet.fail_everything(self.error())
        self._questions.fail_everything(self.error())
        if not self.started.done():
            self.started.set_exception(self.error().to_exception())
        self.ended.set_result(None)

    async def _live(self) -> None:
        self._inbox.bind()
        self._loop = asyncio.get_running_loop()
        if self.state is not HostState.STARTING:
            return
        fleet = Fleet(self._specs, self._inbox.post, self._on_progress, self._close_timeout_s, self._clock)
        self._fleet, self._moves = fleet, FleetMoves(fleet, self._inbox.post)
        try:
            if await self._bring_up(fleet):
                await self._drive(fleet)
        finally:
            await self._end_moves()
            fleet.close_timeout_s = self._close_timeout_s
            await fleet.close()

    async def _move(self, work: Callable[[FleetMoves], Coroutine[object, object, Value]], moves: FleetMoves) -> Value:
        task = asyncio.current_task()
        assert task is not None
        if self._moves is None:  # the engine went down before it began
            raise self.error().to_exception()
        self._moving.add(task)
        try:
            return await work(moves)
        except asyncio.CancelledError:
            if self._moves is None:
                raise self.error().to_exception() from None
            raise
        finally:
            self._moving.discard(task)

    async def _end_moves(self) -> None:
        """The engine goes down: whoever waits for a move hears of it."""
        self._moves = None
        for task in self._moving:
            task.cancel()
        if self._moving:
            await asyncio.wait(self._moving)

    async def _bring_up(self, fleet: Fleet) -> bool:
        for spec in self._specs:
            self._inbox.post(ReplicaJoined(spec.key))  # before anything can be said about its loss
        self._starting = asyncio.current_task()
        try:
            await fleet.start()
        except Exception as failure:  # noqa: BLE001 - handed to whoever waits for the start
            self.started.set_exception(failure)
            return False
        finally:
            self._starting = None
        return True

    async def _drive(self, fleet: Fleet) -> None:
        environment = Environment(self._clock, self.store, self.observer)
        self._driver = Driver(self._core, self._inbox, environment, self._outlet, fleet)
        try:
            await self._driver.run(self._serve)
        except Exception:  # noqa: BLE001 - whatever it is, the core cannot be trusted any more
            _log.critical("the engine's loop is broken", exc_info=True)
            self._try_move(HostState.DEAD, HostState.STARTING, HostState.SERVING, HostState.STOPPING)
            self._outlet.fail_everything(DEAD)

    def _serve(self) -> None:
        if self._try_move(HostState.SERVING, HostState.STARTING):
            self.started.set_result(None)


def _stopped(message: str) -> ErrorRecord:
    return ErrorRecord(kind=ErrorKind.ENGINE_STOPPED, scope=Scope.ENGINE, message=message)


NOT_STARTED = _stopped("the engine is not started; use it as a context manager, or call start()")
_REASONS = {
    HostState.NEW: NOT_STARTED,
    HostState.STARTING: _stopped("the engine is still starting; wait for start() to return"),
    HostState.DEAD: DEAD,
}
