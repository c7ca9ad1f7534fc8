"""Where a stage runs: the protocol between the driver and one replica.

A client carries messages and a life cycle. It never chooses a stage, a replica or an error's scope, and it never makes
the driver wait: `post` returns at once, and whatever comes of it is pushed into the sink as an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from podium.core.effects import CallReplica, EndInput, FeedJob, StartJob, StopJob
from podium.core.events import Event
from podium.core.identity import ReplicaKey

JobCommand: TypeAlias = StartJob | FeedJob | EndInput | StopJob
StageCommand: TypeAlias = JobCommand | CallReplica

EventSink: TypeAlias = Callable[[Event], None]
"""Takes an event into the driver's inbox. Safe from any thread; never waits; never raises."""


class OutboxFullError(Exception):
    """A replica's outbox is full: it does not take commands as fast as they are posted."""


class StageClient(Protocol):
    """One replica of one stage, as the driver sees it."""

    replica: ReplicaKey

    async def start(self, sink: EventSink) -> None:
        """Bring the replica up; return when it serves. Raises what kept it from that; the fleet limits the time.

        After this, the loss of the replica is pushed as ReplicaLost, once.
        """
        ...

    def post(self, command: StageCommand) -> None:
        """Send a command, without waiting, behind those that were posted before.

        Raises OutboxFullError when the replica's outbox is full. StopJob and CallReplica are always taken: data never
        keeps them from leaving. The answer of a call is pushed as CallReturned, whatever other work there is.
        """
        ...

    async def close(self) -> None:
        """End the replica and everything it started; nothing is pushed afterwards.

        Idempotent; the fleet limits the time.
        """
        ...
