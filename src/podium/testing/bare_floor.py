"""The bare floor under an engine: the same hops and thread crossings for the same outputs, and nothing else.

Messages go through plain queues; there is no state of requests, no check, no limit and no order to keep. What an engine
costs above it is what its orchestration costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from podium.core.graph import EdgeMode
from podium.testing.benchmark_shape import Shape

Item = TypeVar("Item")


class _Token:
    """One request: where its caller waits, and how many sources of each stage have not ended."""

    __slots__ = ("arrived", "missing")

    def __init__(self, shape: Shape) -> None:
        self.arrived: asyncio.Queue[bool] = asyncio.Queue()
        self.missing = [len(shape.sources(stage)) for stage in range(shape.stages)]


class Crossing(Generic[Item]):
    """One way from a thread into a loop of another: one wake-up for a whole burst."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Item], object]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[Item] = deque()
        self._is_scheduled = False

    def put(self, item: Item) -> None:
        """Send an item."""
        self._items.append(item)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_scheduled = False
        for _ in range(len(self._items)):
            self._take(self._items.popleft())


class BareFloor:
    """What takes the place of an engine. `call` is what a caller does; it returns how many items it got."""

    def __init__(self, shape: Shape, inner: asyncio.AbstractEventLoop, outer: asyncio.AbstractEventLoop) -> None:
        self._shape = shape
        self._consumers = [
            [other for other in range(shape.stages) if stage in shape.sources(other)] for stage in range(shape.stages)
        ]
        self._finals = [shape.is_final(stage) for stage in range(shape.stages)]
        self._expected = sum(shape.outputs_of(stage) for stage in range(shape.stages) if self._finals[stage])
        self._produced: asyncio.Queue[tuple[_Token, int, bool]] = asyncio.Queue()
        self._inputs: list[asyncio.Queue[tuple[_Token, bool]]] = [asyncio.Queue() for _ in range(shape.stages)]
        self._submit: Crossing[_Token] = Crossing(inner, self._begin)
        self._reply: Crossing[tuple[_Token, bool]] = Crossing(outer, _arrive)
        self.given = 0

    async def call(self) -> int:
        """Send one request through, and wait for all of its items."""
        token = _Token(self._shape)
        self._submit.put(token)
        for _ in range(self._expected):
            await token.arrived.get()
        return self._expected

    async def run(self) -> None:
        """The inner loop's side: a task that routes, and one for each stage; until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._route())
            for stage in range(self._shape.stages):
                group.create_task(self._serve(stage))

    def _begin(self, token: _Token) -> None:
        for stage in range(self._shape.stages):
            if not self._shape.sources(stage):
                self._inputs[stage].put_nowait((token, True))

    async def _route(self) -> None:
        is_streaming = self._shape.mode is EdgeMode.STREAMING
        while True:
            token, stage, is_last = await self._produced.get()
            for consumer in self._consumers[stage]:
                if is_last:
                    token.missing[consumer] -= 1
                if is_streaming or not token.missing[consumer]:
                    self._inputs[consumer].put_nowait((token, not token.missing[consumer]))
            if self._finals[stage]:
                self._reply.put((token, is_last))

    async def _serve(self, stage: int) -> None:
        """One output of each token that owes any, in each turn."""
        inputs = self._inputs[stage]
        per_item = 0 if self._shape.gives_per_item(stage) else self._shape.outputs
        owed: dict[_Token, int] = {}
        closed: set[_Token] = set()
        while True:
            if owed or not inputs.empty():
                await asyncio.sleep(0)
            else:
                _owe(owed, closed, await inputs.get(), per_item)
            for item in _drain(inputs):
                _owe(owed, closed, item, per_item)
            for token in tuple(owed):
                owed[token] -= 1
                self.given += 1
                is_last = not owed[token] and token in closed
                self._produced.put_nowait((token, stage, is_last))
                if not owed[token]:
                    del owed[token]
                    closed.discard(token)


@asynccontextmanager
async def open_floor(shape: Shape) -> AsyncIterator[BareFloor]:
    """A floor whose inner loop runs in a thread of its own, for callers on the running loop."""
    with loop_in_thread() as inner:
        floor = BareFloor(shape, inner, asyncio.get_running_loop())
        asyncio.run_coroutine_threadsafe(floor.run(), inner)
        yield floor


class Echo:
    """The bare crossing: from a task into a task on the loop of another thread, and back."""

    def __init__(self, inner: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._outer = asyncio.get_running_loop()
        self._calls: asyncio.Queue[None] = asyncio.Queue()
        self._answers: asyncio.Queue[None] = asyncio.Queue()
        asyncio.run_coroutine_threadsafe(self._answer(), inner)

    async def call(self) -> None:
        """There and back."""
        self._inner.call_soon_threadsafe(self._calls.put_nowait, None)
        await self._answers.get()

    async def call_without_task(self) -> None:
        """There and back, with nobody there but a callback: the least that a crossing can cost."""
        self._inner.call_soon_threadsafe(self._outer.call_soon_threadsafe, self._answers.put_nowait, None)
        await self._answers.get()

    async def _answer(self) -> None:
        while True:
            await self._calls.get()
            self._outer.call_soon_threadsafe(self._answers.put_nowait, None)


@contextlib.contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own; what still runs there at the end is cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run_loop, args=(loop,), name="bare floor", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


def _owe(owed: dict[_Token, int], closed: set[_Token], item: tuple[_Token, bool], outputs: int) -> None:
    token, is_closed = item
    owed[token] = owed.get(token, 0) + (outputs or 1)
    if is_closed:
        closed.add(token)


def _drain(queue: asyncio.Queue[Item]) -> list[Item]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


def _arrive(message: tuple[_Token, bool]) -> None:
    token, is_last = message
    token.arrived.put_nowait(is_last)
