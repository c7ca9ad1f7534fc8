"""A replica in the engine's own process: on the driver's loop, or in a thread with a loop of its own.

Which of the two is what the backend declares it needs. On the loop a command is a call; into a thread it goes through a
bounded outbox, and events come back through the driver's inbox.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future

from podium.core.effects import CallReplica, StopJob
from podium.core.events import Event
from podium.core.graph import Modality
from podium.core.identity import ReplicaKey
from podium.ports.input_processor import Processor
from podium.ports.stage_backend import Placement, StageBackend
from podium.ports.stage_client import EventSink, OutboxFullError, StageClient, StageCommand
from podium.tasks import CLOSE_LIMIT_S, OwnedTask, follow
from podium.transports.worker import StageWorker

OUTBOX_LIMIT = 65536
"""Commands that may wait for a replica's thread."""
JOIN_LIMIT_S = 1.0
"""How long a thread may take to be gone after its last word."""


def in_process_client(
    replica: ReplicaKey,
    make_backend: Callable[[], StageBackend],
    make_processor: Callable[[], Processor],
    sources: Mapping[str, Modality],
    placement: Placement,
    outbox_limit: int = OUTBOX_LIMIT,
) -> StageClient:
    """The client for a replica in this process, placed as its backend needs it; a thread has an outbox."""
    life = _Life(replica, make_backend, make_processor, sources)
    return LoopClient(life) if placement is Placement.LOOP else ThreadClient(life, outbox_limit)


class _Life:
    """One backend from load to close, on the loop that it lives on."""

    def __init__(
        self,
        replica: ReplicaKey,
        make_backend: Callable[[], StageBackend],
        make_processor: Callable[[], Processor],
        sources: Mapping[str, Modality],
    ) -> None:
        self.replica = replica
        self._make_backend = make_backend
        self._make_processor = make_processor
        self._sources = sources
        self._backend: StageBackend | None = None
        self._delivery = OwnedTask(f"outputs of {replica}", self._fail)
        self._sink: EventSink = _nowhere
        self._is_closed = False
        self.worker: StageWorker | None = None

    async def open(self, sink: EventSink) -> None:
        """Load the backend and begin to deliver."""
        self._sink = sink
        self._backend = self._make_backend()
        await self._backend.load()
        if self._is_closed:  # while the backend was loaded, without heeding its cancellation
            await self._backend.close()
            return
        self.worker = StageWorker(self.replica, self._backend, self._make_processor(), self._sources, self._push)
        self._delivery.start(self.worker.run())

    async def close(self) -> None:
        """End the backend; nothing is delivered any more. Idempotent."""
        self._is_closed = True
        self._sink = _nowhere
        self.worker = None
        await self._delivery.close()
        if self._backend is not None:
            await self._backend.close()

    def _push(self, event: Event) -> None:
        self._sink(event)

    def _fail(self, failure: BaseException) -> None:
        if self.worker is not None:
            self.worker.lose(failure)


class LoopClient:
    """A replica on the driver's loop: commands are calls."""

    def __init__(self, life: _Life) -> None:
        self.replica = life.replica
        self._life = life

    def __repr__(self) -> str:
        return f"<LoopClient {self.replica}>"

    async def start(self, sink: EventSink) -> None:
        """Load the backend here."""
        await self._life.open(sink)

    def post(self, command: StageCommand) -> None:
        """Give a command to the worker at once."""
        if self._life.worker is not None:
            self._life.worker.take(command)

    async def close(self) -> None:
        """Close the backend here."""
        await self._life.close()


class ThreadClient:
    """A replica in a thread of its own, which may compute without holding the driver."""

    def __init__(self, life: _Life, outbox_limit: int) -> None:
        self.replica = life.replica
        self._life = life
        self._outbox: deque[StageCommand] = deque()
        self._outbox_limit = outbox_limit
        self._is_scheduled = False
        self._is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()

    def __repr__(self) -> str:
        return f"<ThreadClient {self.replica}, {len(self._outbox)} commands wait>"

    async def start(self, sink: EventSink) -> None:
        """Start the thread, and load the backend there."""
        self._loop = asyncio.new_event_loop()
        name = f"podium {self.replica.stage}[{self.replica.slot}]"
        self._thread = threading.Thread(target=_serve, args=(self._loop, self._ended), name=name, daemon=True)
        self._thread.start()
        await self._call(self._life.open(sink))

    def post(self, command: StageCommand) -> None:
        """Put a command into the outbox, and wake the thread if it sleeps."""
        if len(self._outbox) >= self._outbox_limit and not isinstance(command, StopJob | CallReplica):
            raise OutboxFullError(f"{self._outbox_limit} commands wait for {self.replica}")
        self._outbox.append(command)
        if not self._is_scheduled and self._loop is not None and not self._loop.is_closed():
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._drain)

    async def close(self) -> None:
        """Close the backend in its thread, and end the thread, which ends even when the backend does not in time."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if not self._is_closing:
            self._is_closing = True
            try:
                await self._call(self._life.close())
            finally:
                loop.call_soon_threadsafe(loop.stop)
        await asyncio.wrap_future(follow(self._ended))
        thread.join(JOIN_LIMIT_S)

    def _drain(self) -> None:
        self._is_scheduled = False
        for _ in range(len(self._outbox)):
            command = self._outbox.popleft()
            if self._life.worker is not None:
                self._life.worker.take(command)

    async def _call(self, work: Coroutine[object, object, None]) -> None:
        assert self._loop is not None
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        await asyncio.wrap_future(future)


def _serve(loop: asyncio.AbstractEventLoop, ended: Future[None]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_LIMIT_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        ended.set_result(None)


def _nowhere(event: Event) -> None:
    """Take the events of a replica that is closed."""
