"""Between the core and a replica: commands and events that are late, out of order, repeated, or lost; full outboxes.

A wrapper around any stage client. It keeps the port's promises: a StopJob is always taken, the loss of a replica is
told, and nothing is pushed after the close.
"""

from __future__ import annotations

import asyncio
from collections import deque

from podium.core.effects import CallReplica, EndInput, FeedJob, StartJob, StopJob
from podium.core.events import Event, ReplicaLost
from podium.errors import ErrorKind
from podium.ports.stage_client import EventSink, OutboxFullError, StageClient, StageCommand
from podium.testing.simulation.surroundings import Surroundings


class UnreliableClient:
    """A stage client in bad weather."""

    def __init__(self, client: StageClient, around: Surroundings) -> None:
        self.replica = client.replica
        self._client = client
        self._around = around
        self._draw = around.draw_for(f"network {client.replica}")
        self._is_fifo = not around.weather.reorder
        self._commands: deque[StageCommand] = deque()
        self._events: deque[Event] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self._sink: EventSink | None = None

    def __repr__(self) -> str:
        return f"<UnreliableClient of {self._client!r}>"

    async def start(self, sink: EventSink) -> None:
        """Start the replica."""
        self._sink = sink
        await self._client.start(self._hear)

    def post(self, command: StageCommand) -> None:
        """Send a command, now or a little later, behind those before."""
        if isinstance(command, StartJob):
            self._around.truth.note_start(command.job, command.prompt)
        if not isinstance(command, StopJob | CallReplica) and self._chance(self._around.weather.full):
            self._note_full(command)
            raise OutboxFullError("the seed says so")
        if not (self._delay_s or self._commands):
            self._client.post(command)
            return
        self._commands.append(command)
        self._later(self._send_one)

    async def close(self) -> None:
        """Say nothing any more, and close the replica."""
        self._sink = None
        for timer in self._timers:
            timer.cancel()
        await self._client.close()

    @property
    def _delay_s(self) -> float:
        return self._around.weather.delay_s

    def _send_one(self) -> None:
        self._client.post(self._commands.popleft())

    def _hear(self, event: Event) -> None:
        weather, truth = self._around.weather, self._around.truth
        if self._chance(weather.lose) and not isinstance(event, ReplicaLost):
            truth.see("lost", event)
            truth.causes_for_all |= {ErrorKind.WAIT_TIMEOUT, ErrorKind.REPLICA_LOST, ErrorKind.STAGE_UNAVAILABLE}
            return
        self._pass(event)
        if self._chance(weather.duplicate):
            truth.see("repeated")
            self._pass(event)

    def _pass(self, event: Event) -> None:
        if not (self._delay_s or self._events):
            self._push(event)
        elif self._is_fifo:
            self._events.append(event)
            self._later(self._push_one)
        else:
            self._timers.append(self._loop().call_later(self._some_delay_s(), self._push, event))

    def _push_one(self) -> None:
        self._push(self._events.popleft())

    def _push(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)

    def _later(self, do: object) -> None:
        assert callable(do)
        self._timers.append(self._loop().call_later(self._some_delay_s(), do))

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _some_delay_s(self) -> float:
        return self._delay_s * self._draw.random()

    def _chance(self, rate: float) -> bool:
        return rate > 0 and self._draw.random() < rate

    def _note_full(self, command: StartJob | FeedJob | EndInput) -> None:
        truth = self._around.truth
        truth.see("outbox full", command.job)
        truth.blame(command.job, ErrorKind.STAGE_UNAVAILABLE)
        truth.rejected.add(command.job)
