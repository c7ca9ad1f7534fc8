"""Both clients of this process pass the suite for transports."""

from __future__ import annotations

from typing import ClassVar

from podium.ports.stage_backend import Placement
from podium.ports.stage_client import StageClient
from podium.testing.transport_conformance import ReplicaSetup, TransportConformance
from podium.transports.in_process import ThreadClient, in_process_client


class TestOnTheLoop(TransportConformance):
    def make_client(self, setup: ReplicaSetup) -> StageClient:
        return in_process_client(*setup, Placement.LOOP)


class TestInAThread(TransportConformance):
    outbox_limit: ClassVar[int | None] = 256

    def make_client(self, setup: ReplicaSetup) -> StageClient:
        client = in_process_client(*setup, Placement.THREAD)
        assert isinstance(client, ThreadClient)
        assert self.outbox_limit is not None
        return ThreadClient(client._life, self.outbox_limit)
