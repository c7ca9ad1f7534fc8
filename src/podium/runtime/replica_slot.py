"""One place of a stage for a replica, and the lives that replicas have there, one after another.

It closes a life, waits, starts the next one and says so; all in the background, each with a limit. It knows nothing of
requests, and decides nothing about them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from podium.core.events import Event, ReplicaJoined, ReplicaLost
from podium.core.identity import ReplicaKey
from podium.errors import ErrorKind, ErrorRecord, Scope, StartError
from podium.ports.environment import Clock
from podium.ports.stage_client import EventSink, StageClient
from podium.tasks import OwnedTask

_log = logging.getLogger("podium.fleet")

Progress = Callable[[str, str], None]
"""Hears of a stage's start: the stage, and a few words."""


class RestartLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How a lost replica comes back: at most `attempts` times in any `window_s` seconds (0: never), after a pause of
    `backoff_s` seconds that doubles each time, up to `max_backoff_s`.
    """

    attempts: int = 5
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    window_s: float = 600.0

    def pause_s(self, former: int) -> float | None:
        """How long to wait after so many restarts within the window; None when there were too many."""
        if former >= self.attempts:
            return None
        return min(self.backoff_s * 2.0 ** min(former, 62), self.max_backoff_s)


NO_RESTART = RestartLimits(attempts=0)


class ReplicaSpec(NamedTuple):
    """One replica to start: how to make its client, how long its start may take (seconds), and how it comes back."""

    key: ReplicaKey
    make_client: Callable[[ReplicaKey], StageClient]
    start_timeout_s: float
    restart: RestartLimits = NO_RESTART


class SlotPhase(StrEnum):
    """What happens at a slot."""

    EMPTY = "empty"
    """Nothing, and nothing will by itself."""

    STARTING = "starting"
    SERVING = "serving"
    CLOSING = "closing"
    BACKING_OFF = "backing_off"
    """The next start is due in a while."""

    GIVEN_UP = "given_up"
    """It was lost too often; a restart by hand begins anew."""


class SlotStatistics(msgspec.Struct, frozen=True):
    """One slot: its newest life, and what happens to it.

    `is_coming` says that a replica will serve there, unless its start fails. `restarts` counts the lives that followed
    a loss, or a failed start; `next_start_at` is on the engine's clock, in seconds; `failure` is why the newest start
    failed.
    """

    stage: str
    slot: int
    generation: int
    phase: SlotPhase
    is_coming: bool = False
    restarts: int = 0
    next_start_at: float | None = None
    failure: str | None = None


@dataclass
class FleetCommons:
    """What the slots of one engine share: the clients that are up, where events go, time, and the limit of a close."""

    clients: dict[ReplicaKey, StageClient]
    sink: EventSink
    on_progress: Progress
    clock: Clock
    close_timeout_s: float


class ReplicaSlot:
    """One slot. All of it belongs to the engine's loop, but for `statistics`.

    `joined`, `failed` and `closed` are the newest generations that came to serve, did not start, and are closed.
    """

    def __init__(self, spec: ReplicaSpec, commons: FleetCommons) -> None:
        self.key = spec.key
        self.phase = SlotPhase.EMPTY
        self.joined = self.failed = self.closed = -1
        self.failure: StartError | None = None
        self.is_leaving = False
        self._make_client = spec.make_client
        self._start_timeout_s = spec.start_timeout_s
        self._limits = spec.restart
        self._commons = commons
        self._is_wanted_now = False
        self._comes_back = True
        self._restarts = 0
        self._restarted_at: deque[float] = deque()
        self._next_start_at: float | None = None
        self._task = OwnedTask(f"replica {spec.key.slot} of stage '{spec.key.stage}'", self._note_failure)
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ReplicaSlot {self.key} {self.phase}>"

    @property
    def successor(self) -> ReplicaKey:
        """The life that comes next."""
        return ReplicaKey(self.key.stage, self.key.slot, self.key.generation + 1)

    def statistics(self) -> SlotStatistics:
        """It as it is now; may be asked from any thread."""
        return SlotStatistics(
            stage=self.key.stage,
            slot=self.key.slot,
            generation=self.key.generation,
            phase=self.phase,
            is_coming=self._comes_back and not self.is_leaving and self.phase in _COMING,
            restarts=self._restarts,
            next_start_at=self._next_start_at,
            failure=None if self.failure is None else str(self.failure),
        )

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so that only ever becomes so; it is asked whenever the phase changes."""
        while not is_so():
            await self._changed.wait()

    async def start(self) -> None:
        """Bring up the first life, which the core knows already. Raises StartError."""
        await self._start_life(self._commons.sink)
        self._serve()

    def open(self) -> None:
        """Begin another life at an empty slot, in the background, and only once."""
        self.is_leaving, self._comes_back = False, True
        self._enter(SlotPhase.STARTING)
        self._task.start(self._open())

    def retire(self, client: StageClient, *, is_lost: bool) -> None:
        """Close the present life in the background; the next follows when it was lost, or when one is wanted."""
        self._comes_back = self._is_wanted_now or (is_lost and self._limits.attempts > 0)
        self._enter(SlotPhase.CLOSING)
        self._task.start(self._live_on(client, is_lost=is_lost))

    def leave(self) -> None:
        """Have no life after the present one."""
        self.is_leaving = True
        if self.phase is SlotPhase.GIVEN_UP:
            self._enter(SlotPhase.EMPTY)
        else:
            self._wake()

    def want_next(self) -> None:
        """Begin the next life as soon as the present one is closed; what was counted against restarts is forgotten."""
        self._is_wanted_now = self._comes_back = True
        self._restarted_at.clear()
        if self.phase is SlotPhase.GIVEN_UP:
            self._task.start(self._begin_lives())
        else:
            self._wake()

    async def close(self) -> None:
        """End whatever there is, within the limit. Idempotent."""
        self.is_leaving = True
        client = self._commons.clients.pop(self.key, None)
        if self.phase is SlotPhase.CLOSING:
            await self._end_retiring()
        elif self._task.is_running:
            await self._task.close()
        if client is not None:
            self._enter(SlotPhase.CLOSING)
            await self._close_client(client)
        self._enter(SlotPhase.EMPTY)

    # One life after another

    async def _live_on(self, former: StageClient, *, is_lost: bool) -> None:
        await self._close_client(former)
        if is_lost or self._is_wanted_now:
            await self._begin_lives()
        else:
            self._enter(SlotPhase.EMPTY)

    async def _open(self) -> None:
        if not await self._begin_next():
            self._enter(SlotPhase.EMPTY)

    async def _begin_lives(self) -> None:
        """Start until one serves, or it was tried too often."""
        while not self.is_leaving:
            if not self._is_wanted_now and not await self._back_off():
                return
            self._is_wanted_now = False
            if await self._begin_next():
                return
        self._enter(SlotPhase.EMPTY)

    async def _back_off(self) -> bool:
        """Wait until the next start is due, or wanted; False when there were too many, or none is wanted any more."""
        now = self._commons.clock.now()
        while self._restarted_at and self._restarted_at[0] <= now - self._limits.window_s:
            self._restarted_at.popleft()
        pause_s = self._limits.pause_s(len(self._restarted_at))
        if pause_s is None:
            self._give_up()
            return False
        self._next_start_at = now + pause_s
        self._enter(SlotPhase.BACKING_OFF)
        self._commons.on_progress(self.key.stage, f"replica {self.key.slot} starts again in {pause_s:g} s")
        try:
            async with asyncio.timeout(pause_s):
                await self.wait_until(lambda: self._is_wanted_now or self.is_leaving)
        except TimeoutError:
            self._restarts += 1
            self._restarted_at.append(self._commons.clock.now())
        self._next_start_at = None
        if self.is_leaving:
            self._enter(SlotPhase.EMPTY)
        return not self.is_leaving

    def _give_up(self) -> None:
        if self._limits.attempts:
            _log.error(
                "%s is given up: it was restarted %d times within %g s (restart.attempts)",
                self.key, self._limits.attempts, self._limits.window_s,
            )  # fmt: skip
        self._enter(SlotPhase.GIVEN_UP)

    async def _begin_next(self) -> bool:
        """Start the next life and let it join; False when it does not start."""
        self.key = self.successor
        newborn = _Newborn(self._commons.sink)
        try:
            await self._start_life(newborn)
        except StartError as failure:
            _log.warning("%s: %s", self.key, failure)
            await self._end_unborn(failure)
            return False
        self._commons.sink(ReplicaJoined(self.key))
        if newborn.loss is not None:  # it came before the core knew the replica
            self._commons.sink(newborn.loss)
        self._serve()
        return True

    async def _end_unborn(self, failure: StartError) -> None:
        self.failure = failure
        client = self._commons.clients.pop(self.key, None)
        if client is not None:
            self._enter(SlotPhase.CLOSING)
            await self._close_client(client)
        self.failed = self.key.generation
        self._commons.sink(ReplicaLost(self.key, _not_started(self.key, failure)))  # no work waits for it any more
        self._wake()

    async def _start_life(self, sink: EventSink) -> None:
        stage = self.key.stage
        self._enter(SlotPhase.STARTING)
        self._commons.on_progress(stage, "starting")
        limit = asyncio.timeout(self._start_timeout_s)
        try:
            client = self._commons.clients[self.key] = self._make_client(self.key)
            async with limit:
                await client.start(sink)
        except StartError:
            raise
        except Exception as error:  # foreign code; whatever it raises, the start names the stage
            if isinstance(error, TimeoutError) and limit.expired():
                raise StartError(
                    stage, f"not ready after {self._start_timeout_s:g} s (limits.start_timeout_s)"
                ) from error
            raise StartError(stage, f"{type(error).__name__}: {error}") from error
        self._commons.on_progress(stage, "ready")

    def _serve(self) -> None:
        self.failure = None
        self.joined = self.key.generation
        self._enter(SlotPhase.SERVING)

    async def _close_client(self, client: StageClient) -> None:
        limit_s = self._commons.close_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await client.close()
        except TimeoutError:
            _log.error("%s did not close within %g s and is abandoned", client.replica, limit_s)
        except Exception:  # noqa: BLE001 - foreign code; closing the others goes on
            _log.exception("%s failed while it was closed", client.replica)
        self.closed = client.replica.generation

    async def _end_retiring(self) -> None:
        """Wait no longer for what was begun before than for what is closed now."""
        limit_s = self._commons.close_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._task.wait()
        except TimeoutError:
            _log.error("%s did not close within %g s more and is abandoned", self.key, limit_s)
            await self._task.close()

    def _enter(self, phase: SlotPhase) -> None:
        self.phase = phase
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _note_failure(self, failure: BaseException) -> None:
        _log.error("closing a replica, or starting the next, failed", exc_info=failure)
        self._enter(SlotPhase.GIVEN_UP)


_COMING = frozenset({SlotPhase.STARTING, SlotPhase.CLOSING, SlotPhase.BACKING_OFF})


class _Newborn:
    """The way of a life's events to the core, which remembers its loss: that may come before the life has joined."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self.loss: ReplicaLost | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, ReplicaLost):
            self.loss = event
        self._sink(event)


def _not_started(key: ReplicaKey, failure: StartError) -> ErrorRecord:
    return ErrorRecord(
        kind=ErrorKind.REPLICA_LOST,
        scope=Scope.REPLICA,
        stage=key.stage,
        replica=key.slot,
        message=f"replica {key.slot} of stage '{key.stage}' did not start again: {failure}",
    )
