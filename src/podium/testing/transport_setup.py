"""What the tests of the transport conformance suite share: a client with a fake behind it, and what it pushes.

It holds no tests.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from podium.core.effects import CallReplica, EndInput, FeedJob, SourceInput, StartJob, StopJob
from podium.core.events import FinishReason
from podium.core.graph import Modality
from podium.core.identity import MAIN, JobKey, Payload, ReplicaKey
from podium.payloads import Text
from podium.ports.input_processor import Processor
from podium.ports.stage_backend import StageBackend
from podium.ports.stage_client import StageClient
from podium.testing.event_log import EventLog
from podium.testing.fake_backend import CallScript, FakeBackend, FakeOptions, Loading, Script, Then
from podium.testing.fake_processor import FakeProcessor
from podium.testing.leftovers import run_and_find_leftovers

REPLICA = ReplicaKey("fake", 0, 3)
SOURCE = "source"
NO_CALLS: Mapping[str, CallScript] = MappingProxyType({})
HANGING = Script(then=Then.HANG)


class ReplicaSetup(NamedTuple):
    """What a client shall bring up. The two factories can be pickled."""

    replica: ReplicaKey
    make_backend: Callable[[], StageBackend]
    make_processor: Callable[[], Processor]
    sources: Mapping[str, Modality]


class Rig(NamedTuple):
    """A client that was started, with what it pushes; and how commands are posted."""

    client: StageClient
    log: EventLog

    def start(self, number: int, *items: Payload, input_open: bool = False) -> JobKey:
        """Start the job with this number."""
        job = key(number)
        finish = None if input_open else FinishReason.STOP
        inputs = (SourceInput(SOURCE, 0, items, finish),) if items or finish else ()
        command = StartJob(
            replica=REPLICA,
            job=job,
            prompt=None,
            params=None,
            inputs=inputs,
            input_open=input_open,
            priority=0,
            deadline=None,
        )
        self.client.post(command)
        return job

    def feed(self, job: JobKey, sequence: int, *items: Payload) -> None:
        """Give a job more of its source."""
        self.client.post(FeedJob(REPLICA, job, SOURCE, sequence, items))

    def end(self, job: JobKey) -> None:
        """End the source of a job."""
        self.client.post(EndInput(REPLICA, job, SOURCE, FinishReason.STOP))

    def stop(self, job: JobKey) -> None:
        """Stop a job."""
        self.client.post(StopJob(REPLICA, job))

    def call(self, number: int, method: str, /, **arguments: Payload) -> None:
        """Call a method of the backend."""
        self.client.post(CallReplica(REPLICA, number, method, arguments))

    async def check_alive(self) -> None:
        """Another job is served; whatever was underway before has arrived when this returns."""
        job = self.start(len(self.log.events) + 100_000, Text("alive"))
        await self.log.wait_finish(job)
        assert self.log.payloads(job) == [Text("alive")]


def key(number: int) -> JobKey:
    """The key of the job with this number."""
    return JobKey(f"request-{number}", "fake", MAIN, number)


class TransportSetup(ABC):
    """What a test class says of its client, and what the tests use. `limit_s` is for each test, in seconds."""

    limit_s: ClassVar[float] = 30.0
    outbox_limit: ClassVar[int | None] = None
    """What `make_client` sets as the limit of the outbox, at least 256; None when a command never waits in one."""

    many: ClassVar[int] = 1000
    """So many jobs must leave nothing behind."""

    @abstractmethod
    def make_client(self, setup: ReplicaSetup) -> StageClient:
        """A new client, not started."""

    def count_jobs(self, client: StageClient) -> int:  # noqa: ARG002 - for those who override it
        """How many jobs the client keeps anything of; override it if that can be told."""
        return 0

    # What the tests use.

    def run(self, test: Callable[[Rig], Coroutine[object, object, None]], **calls: CallScript) -> None:
        """Run `test` with a client that was started; nothing may be left of it, nor be pushed after its end.

        `calls` says what the first call of a method does.
        """

        async def run() -> None:
            async with self.started(**calls) as rig:
                await test(rig)

        self.check_nothing_left(run)

    def check_nothing_left(self, run: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a coroutine; no task, thread or process of it may be left."""
        left = run_and_find_leftovers(run, self.limit_s, lambda _name: False)
        assert not left, f"left behind: {left}"

    @asynccontextmanager
    async def started(self, **calls: CallScript) -> AsyncIterator[Rig]:
        """A client that was started; closed at the end, whatever happens."""
        client, log = self.new(calls=calls), EventLog()
        try:
            await client.start(log.sink)
            yield Rig(client, log)
        finally:
            await client.close()
            log.close()
        for _ in range(3):
            await asyncio.sleep(0)
        await client.close()
        assert not log.late, f"pushed after close: {log.late}"

    def new(self, load: Loading = Loading.SUCCEED, calls: Mapping[str, CallScript] = NO_CALLS) -> StageClient:
        """A new client with a fake behind it."""
        options = FakeOptions(load=load, calls={method: (script,) for method, script in calls.items()})
        make_backend = partial(FakeBackend, "fake", options)
        return self.make_client(ReplicaSetup(REPLICA, make_backend, FakeProcessor, {SOURCE: Modality.TEXT}))
