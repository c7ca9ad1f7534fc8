"""A client that is polled keeps every promise of one that pushes; it only brings its events in larger batches."""

from __future__ import annotations

import asyncio

import pytest

from podium.core.effects import CallReplica, StartJob
from podium.core.events import Event, StageStarted
from podium.core.identity import JobKey, ReplicaKey
from podium.ports.stage_backend import Placement
from podium.ports.stage_client import EventSink, StageClient, StageCommand
from podium.testing.transport_conformance import ReplicaSetup, TransportConformance
from podium.transports.in_process import in_process_client
from podium.transports.polling import PollingClient

pytestmark = pytest.mark.rule("ORCH-INV-117")

REPLICA = ReplicaKey("thinker", 0, 0)


class TestPolledOnTheLoop(TransportConformance):
    def make_client(self, setup: ReplicaSetup) -> StageClient:
        return PollingClient(in_process_client(*setup, Placement.LOOP), 0.001)


class TestPolledInAThread(TransportConformance):
    def make_client(self, setup: ReplicaSetup) -> StageClient:
        return PollingClient(in_process_client(*setup, Placement.THREAD), 0.001)


class _Echo:
    """A client that answers each command with an event, at once."""

    def __init__(self) -> None:
        self.replica = REPLICA
        self._sink: EventSink | None = None

    async def start(self, sink: EventSink) -> None:
        self._sink = sink

    def post(self, command: StageCommand) -> None:
        assert self._sink is not None
        assert not isinstance(command, CallReplica)
        self._sink(StageStarted(REPLICA, command.job))

    async def close(self) -> None:
        self._sink = None


def _start(number: int) -> StartJob:
    job = JobKey(f"r{number}", "thinker", "main", number)
    return StartJob(
        replica=REPLICA, job=job, prompt="", params=None, inputs=(), input_open=False, priority=0, deadline=None
    )


def test_events_wait_for_the_poll_and_keep_their_order() -> None:
    async def run() -> None:
        picked_up: list[Event] = []
        client = PollingClient(_Echo(), 3600.0)
        await client.start(picked_up.append)
        await asyncio.sleep(0)
        for number in range(3):
            client.post(_start(number))
        assert picked_up == []
        assert repr(client).endswith("3 events wait>")
        client.poll()
        assert [event.job.attempt for event in picked_up if isinstance(event, StageStarted)] == [0, 1, 2]
        client.post(_start(3))
        await client.close()
        client.poll()
        assert len(picked_up) == 3

    asyncio.run(run())
