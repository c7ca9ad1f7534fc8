"""Real engines over fake backends: what tests of the shell are made of. Nothing here takes time.

A prompt is looked up in `scripts`; one that is not there is given back as text. Backends live on loops of their own, so
tests reach them with `at`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import ClassVar, TypeVar

import msgspec
import pytest

from podium.core.admission import EngineLimits
from podium.core.events import FinishReason
from podium.core.graph import Graph, Limits, Modality, Stage
from podium.core.identity import PROMPT, JobKey, Payload, ReplicaKey
from podium.core.statistics import Statistics
from podium.errors import RequestError
from podium.payloads import Text
from podium.ports.input_processor import InputStream
from podium.ports.stage_backend import Capabilities, Placement
from podium.ports.stage_client import StageClient
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.outputs import OmniOutput
from podium.runtime.parts import EngineParts, StageParts
from podium.runtime.replica_slot import NO_RESTART, RestartLimits
from podium.runtime.request_stream import RequestStream
from podium.testing.fake_backend import Answer, CallScript, FakeBackend, FakeOptions, Script, Then
from podium.testing.virtual_clock import VirtualClock
from podium.transports.in_process import in_process_client
from tests.support.broken_core import BrokenCore
from tests.support.core_world import make_stage, streaming

T = TypeVar("T")

GUARD_S = 30.0
"""A test that takes so long has failed. Nothing waits for it."""

HANG = (Script(then=Then.HANG),)
HALF = (Script(outputs=(Text("half "), Text("way")), then=Then.HANG),)
FAIL = (Script(then=Then.FAIL),)
CALL_HANGS = CallScript(then=Answer.HANG)
CALL_FAILS = CallScript(then=Answer.FAIL)
REFUSE = (Script(then=Then.REFUSE),)
RAISE = (Script(then=Then.RAISE),)
DIE = (Script(then=Then.DIE),)
SCRIPTS: Mapping[str, tuple[Payload, ...]] = {
    "hang": HANG,
    "half": HALF,
    "fail": FAIL,
    "refuse": REFUSE,
    "raise": RAISE,
    "die": DIE,
}


class WatchedBackend(FakeBackend):
    """A fake that says which loop it is on."""

    loop: asyncio.AbstractEventLoop

    async def load(self) -> None:
        self.loop = asyncio.get_running_loop()
        await super().load()

    async def at(self, do: Callable[[], T]) -> T:
        """Do something where the backend lives; from any loop."""

        async def there() -> T:
            return do()

        return await self._there(there())

    async def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so()`; it is asked after each call that the backend gets."""
        await self._there(self.wait_until(is_so))

    async def wait_told(self, method: str, count: int = 1) -> None:
        """Wait until a method was called so often."""
        await self.wait(lambda: self.times_told(method) >= count)

    async def wait_jobs(self, count: int = 1) -> list[JobKey]:
        """Wait until it has so many jobs, and return them."""
        await self.wait(lambda: len(self.tasks) >= count)
        return await self.at(lambda: list(self.tasks))

    def times_told(self, method: str) -> int:
        return sum(told.method == method for told in list(self.told))  # a copy: it grows in another thread

    async def produce_for(self, jobs: Sequence[JobKey], *payloads: Payload) -> None:
        """Let each of `jobs` give outputs, in one turn."""

        def do() -> None:
            for job in jobs:
                self.produce(job, *payloads)

        await self.at(do)

    async def script(self, method: str, *scripts: CallScript) -> None:
        """Say what the next calls of a method do."""
        await self.at(lambda: self.script_calls(method, *scripts))

    async def release(self) -> None:
        """Let the calls that hang return."""
        await self.at(self.release_calls)

    async def finish_all(self, *payloads: Payload) -> None:
        """Let every job finish, in one turn."""

        def do() -> None:
            for job in list(self.tasks):
                self.finish(job, FinishReason.STOP, *payloads)

        await self.at(do)

    async def _there(self, work: Awaitable[T]) -> T:
        if self.loop is asyncio.get_running_loop():
            return await work

        async def run() -> T:
            return await work

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self.loop))


class ThreadBackend(WatchedBackend):
    """The same in a thread of its own."""

    capabilities: ClassVar[Capabilities] = msgspec.structs.replace(FakeBackend.capabilities, placement=Placement.THREAD)


class ScriptedProcessor:
    """Looks prompts up; what comes of other stages is passed on."""

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.LOOP

    def __init__(self, scripts: Payload = None) -> None:
        assert isinstance(scripts, Mapping)
        self._scripts = scripts

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> Payload:
        return SCRIPTS

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:
        return ScriptedStream(self._scripts)


class ScriptedStream:
    def __init__(self, scripts: Mapping[str, tuple[Payload, ...]]) -> None:
        self._scripts = scripts

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if source != PROMPT:
            return payloads
        return [item for prompt in payloads for item in self._scripts.get(str(prompt), (Text(str(prompt)),))]

    def end(self, source: str) -> Sequence[Payload]:
        return ()


ONE_STAGE = (make_stage("solo", output="text"),)
CHAIN = (
    make_stage("thinker", output="text"),
    make_stage("talker", streaming("thinker")),
    make_stage("vocoder", streaming("talker"), output="speech"),
)


def limited(stage: Stage, **limits: float) -> Stage:
    """The stage with other limits."""
    return msgspec.structs.replace(stage, limits=msgspec.convert(limits, Limits))


class ShellWorld:
    """Stages, with what runs each. `backends` fills as replicas are made; `of` finds one.

    `capabilities` are what stages declare, when that is less than the fake can do.
    """

    def __init__(
        self,
        *stages: Stage,
        replicas: int = 1,
        by_hand: Sequence[str] = (),
        scripts: Mapping[str, tuple[Payload, ...]] = SCRIPTS,
        make_backend: Mapping[str, Callable[[str, FakeOptions], FakeBackend]] | None = None,
        limits: EngineLimits | None = None,
        params: Mapping[str, Mapping[str, object]] | None = None,
        restart: RestartLimits = NO_RESTART,
        capabilities: Mapping[str, Capabilities] | None = None,
    ) -> None:
        self.stages = stages or ONE_STAGE
        self.backends: dict[ReplicaKey, FakeBackend] = {}
        self._replicas = replicas
        self._by_hand = frozenset(by_hand)
        self._scripts = scripts
        self.make_backend = make_backend or {}
        self._limits = limits or EngineLimits()
        self._params = params or {}
        self._restart = restart
        self._capabilities = capabilities or {}

    def of(self, stage: str, slot: int = 0, generation: int = 0) -> WatchedBackend:
        found = self.backends[ReplicaKey(stage, slot, generation)]
        assert isinstance(found, WatchedBackend)
        return found

    def parts(self) -> EngineParts:
        return EngineParts(
            graph=Graph(self.stages),
            stages={
                stage.name: StageParts(
                    self._capabilities.get(stage.name, FakeBackend.capabilities),
                    partial(FakeBackend.parse_params, None),
                    partial(self._make_client, stage),
                    self._replicas,
                    self._restart,
                )
                for stage in self.stages
            },
            default_params={stage.name: self._params.get(stage.name, {}) for stage in self.stages},
            limits=self._limits,
        )

    def _make_client(self, stage: Stage, replica: ReplicaKey) -> StageClient:
        make = self.make_backend.get(stage.name, WatchedBackend)
        backend = self.backends[replica] = make(stage.name, FakeOptions(by_hand=stage.name in self._by_hand))
        return in_process_client(
            replica,
            lambda: backend,
            lambda: ScriptedProcessor(self._scripts),
            {source.stage: Modality.TEXT for source in stage.sources},
            backend.capabilities.placement,
        )


@asynccontextmanager
async def serving(world: ShellWorld, engine: AsyncOmniEngine | None = None) -> AsyncIterator[AsyncOmniEngine]:
    """An engine that was started, and is shut down; nothing of it may be left, and nobody may have complained."""
    with nothing_left():
        async with asyncio.timeout(GUARD_S), engine or AsyncOmniEngine(world.parts()) as started:
            yield started


@contextmanager
def nothing_left() -> Iterator[None]:
    """No thread may be left, and asyncio may have nothing to complain about."""
    before = set(threading.enumerate())
    with complaints("asyncio") as heard:
        yield
    left = [thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    assert left == []
    assert heard == []


@contextmanager
def complaints(logger: str) -> Iterator[list[str]]:
    """What is logged there as a warning or worse."""
    heard: list[str] = []
    handler = _Collector(heard)
    logging.getLogger(logger).addHandler(handler)
    try:
        yield heard
    finally:
        logging.getLogger(logger).removeHandler(handler)


class _Collector(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(self.format(record))


async def pass_time(engine: AsyncOmniEngine, clock: VirtualClock, seconds: float) -> None:
    """Let time pass, and the engine do what is due then."""
    clock.advance(seconds)
    await engine.abort([])


async def turns(count: int = 5) -> None:
    """Let others have their turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settled(engine: AsyncOmniEngine) -> Statistics:
    """The core once nothing lives in it; the test's own limit ends a wait that is in vain."""
    while True:
        figures = (await engine.statistics()).core
        if figures.is_idle:
            return figures


async def until(is_so: Callable[[], bool]) -> None:
    """Let others have their turn until `is_so()`; the test's own limit ends a wait that is in vain."""
    while not is_so():  # noqa: ASYNC110 - what is waited for happens in another thread
        await asyncio.sleep(0)


async def failure_of(stream: RequestStream) -> RequestError:
    """The error that a stream ends with."""
    with pytest.raises(RequestError) as caught:
        async for _ in stream:
            pass
    return caught.value


async def catch(work: object) -> RequestError:
    assert asyncio.iscoroutine(work)
    with pytest.raises(RequestError) as caught:
        await work
    return caught.value


def texts(outputs: Sequence[OmniOutput], output: str = "text") -> list[str]:
    return [item.delta.text for item in outputs if item.output == output and isinstance(item.delta, Text)]


def finishes(outputs: Sequence[OmniOutput]) -> dict[str, FinishReason]:
    return {item.output: item.finish_reason for item in outputs if item.finish_reason is not None}


def break_core(engine: AsyncOmniEngine) -> None:
    """Plant a broken invariant: the next step raises InternalError."""
    for owner in (engine._host, engine._host._driver):
        if owner is not None:
            vars(owner)["_core"] = BrokenCore(engine._core)
