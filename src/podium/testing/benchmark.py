"""Measures what an engine costs by itself: engines whose stages answer at once, under load, idle, and full.

Every run is checked by its counts; a wrong count raises. Figures are for comparing within one run on one machine, which
is why each comes with that of the bare floor.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import platform
import resource
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from podium.core.admission import EngineLimits
from podium.core.graph import Modality
from podium.core.identity import Payload, ReplicaKey
from podium.ports.stage_client import StageClient
from podium.processors.passthrough import PassthroughProcessor
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.parts import EngineParts, StageParts
from podium.runtime.request_stream import RequestStream
from podium.testing.bare_floor import Echo, loop_in_thread, open_floor
from podium.testing.benchmark_shape import Shape, stage_name
from podium.testing.instant_backend import HOLD, InstantBackend, InstantOptions
from podium.transports.in_process import in_process_client

Answer = TypeVar("Answer")
Call = Callable[[], Coroutine[object, object, int]]

WARM_UP_S = 0.15
PROMPT = "prompt"
QUESTIONS = 100_000
"""How often the engine is asked whether it has come to where a measurement can begin."""
AT_A_TIME = 256
"""Requests that are opened, or left, before the engine is asked whether it is that far: it keeps answering."""


class BenchmarkError(Exception):
    """A run gave other counts than its shape says: the figures would mean nothing."""


class Spread(msgspec.Struct, frozen=True):
    """A figure that was measured several times."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError when there is no value."""
        if not values:
            raise ValueError("there is nothing to summarise")
        return cls(statistics.median(values), min(values), max(values))

    @property
    def relative(self) -> float:
        """How far apart the values lie, as a share of the median."""
        return (self.highest - self.lowest) / self.median if self.median else 0.0


class Load(msgspec.Struct, frozen=True):
    """One run under load: counts, seconds of wall time, and of processor time on both sides of the crossing."""

    requests: int
    outputs: int
    seconds: float
    engine_cpu_s: float
    caller_cpu_s: float


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """One shape, measured several times beside the bare floor. Rates are per second, costs in µs of processor time.

    `outputs_per_s` counts the outputs of all stages. `floor_share` is the part of the floor's rate that is reached.
    """

    shape: str
    repetitions: int
    requests: int
    requests_per_s: Spread
    outputs_per_s: Spread
    engine_us_per_request: Spread
    caller_us_per_request: Spread
    floor_requests_per_s: Spread
    floor_share: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """From submission to the last output at one request at a time, in µs; beside it the floor and the bare crossing.

    The crossing goes from a task to a task in the other thread and back; `callback_us` to a callback only.
    """

    shape: str
    request_us: Spread
    crossing_us: Spread
    callback_us: Spread
    floor_us: Spread
    times_crossing: float


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that nobody talks to. `cpu_share` is of one core; `wakeups_per_s` are those of its thread, on Linux."""

    open_requests: int
    seconds: float
    cpu_share: float
    wakeups_per_s: float | None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What an open request takes in Python objects, its stream included; and what is left of it after its end."""

    open_requests: int
    bytes_per_request: float
    left_bytes_per_request: float


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The processor time of one output of the same load, at different numbers of something else (`of`)."""

    of: str
    shape: str
    at: tuple[int, ...]
    us_per_output: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The highest cost by the one at the smallest number."""
        return max(self.us_per_output) / self.us_per_output[0]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when it was measured. `spin_us` is a fixed piece of Python, timed now and then: its spread is the noise
    of the machine, and figures that lie closer together than that are equal."""

    python: str
    system: str
    cpus: int
    load_before: float
    load_after: float
    spin_us: Spread


class Noise:
    """Watches the machine during a run: `look` now and then, `machine` at the end."""

    def __init__(self) -> None:
        self._load_before = os.getloadavg()[0]
        self._spins: list[float] = []
        self.look()

    def look(self) -> None:
        """Time a fixed piece of Python."""
        self._spins.append(_spin_us())

    def machine(self) -> Machine:
        """What was seen."""
        return Machine(
            python=f"{platform.python_implementation()} {platform.python_version()}",
            system=f"{platform.system()} {platform.machine()}",
            cpus=os.cpu_count() or 1,
            load_before=self._load_before,
            load_after=os.getloadavg()[0],
            spin_us=Spread.of(self._spins),
        )


class InstantEngine:
    """An engine of instant backends, with a way to look from inside its thread."""

    def __init__(self, shape: Shape, max_remembered: int) -> None:
        self.shape = shape
        self._max_remembered = max_remembered
        self.backends: list[InstantBackend] = []
        self.engine = AsyncOmniEngine(self._parts())

    @property
    def given(self) -> int:
        """Outputs that the stages gave so far."""
        return sum(backend.given for backend in self.backends)

    async def call(self) -> int:
        """One request, read to its end; returns the number of its items."""
        items = 0
        async for _ in self.engine.generate(PROMPT):
            items += 1
        return items

    async def hold(self, count: int) -> list[RequestStream]:
        """Open requests that stay open until they are left, each with a job at a stage. Nobody reads them."""
        streams: list[RequestStream] = []
        while len(streams) < count:
            streams += [self.engine.generate(HOLD) for _ in range(min(count - len(streams), AT_A_TIME))]
            await self.wait_held(len(streams))
        return streams

    async def leave(self, streams: list[RequestStream]) -> None:
        """Leave requests that are held, and forget them; return when every stage has stopped its jobs."""
        while streams:
            for stream in streams[-AT_A_TIME:]:
                await stream.aclose()
            del streams[-AT_A_TIME:], stream
            await self.wait_held(len(streams))

    async def wait_held(self, count: int) -> None:
        """Wait until exactly `count` requests are open, and every stage without sources has as many jobs.

        Raises BenchmarkError when that does not come.
        """
        first_stages = sum(not self.shape.sources(stage) for stage in range(self.shape.stages))
        for _ in range(QUESTIONS):
            core = (await self.engine.statistics()).core
            jobs = sum(replica.inflight for stage in core.stages.values() for replica in stage.replicas)
            if core.requests == count and jobs == count * first_stages:
                return
        raise BenchmarkError(f"the core does not come to {count} open requests")

    async def ask(self, question: Callable[[], Answer]) -> Answer:
        """Run something in the engine's thread."""

        async def answer() -> Answer:
            return question()

        loop = self.backends[0].loop
        assert loop is not None, "the engine is up"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), loop))

    def _parts(self) -> EngineParts:
        limits = EngineLimits(max_requests=self.shape.requests_at_most, max_remembered=self._max_remembered)
        stages = {stage_name(stage): self._stage_parts(stage) for stage in range(self.shape.stages)}
        return EngineParts(self.shape.graph(), stages, {}, limits)

    def _stage_parts(self, stage: int) -> StageParts:
        outputs = 0 if self.shape.gives_per_item(stage) else self.shape.outputs
        options = InstantOptions(outputs=outputs)
        sources = {stage_name(source): Modality.TEXT for source in self.shape.sources(stage)}

        def make_client(replica: ReplicaKey) -> StageClient:
            return in_process_client(
                replica,
                lambda: self._backend(replica.stage, options),
                lambda: PassthroughProcessor(None),
                sources,
                InstantBackend.capabilities.placement,
            )

        return StageParts(InstantBackend.capabilities, _no_params, make_client, self.shape.replicas)

    def _backend(self, stage: str, options: InstantOptions) -> InstantBackend:
        backend = InstantBackend(stage, options)
        self.backends.append(backend)
        return backend


def _no_params(values: Mapping[str, object]) -> Payload:
    return InstantBackend.parse_params(InstantOptions(), values)


@asynccontextmanager
async def open_engine(shape: Shape, max_remembered: int = 4096) -> AsyncIterator[InstantEngine]:
    """A running engine of that shape, which remembers the ids of so many ended requests."""
    instant = InstantEngine(shape, max_remembered)
    async with instant.engine:
        yield instant


async def run_load(instant: InstantEngine, seconds: float) -> Load:
    """Put the shape's load on the engine for about `seconds`. Raises BenchmarkError when counts are wrong."""
    shape = instant.shape
    given = instant.given
    engine_cpu = await instant.ask(time.thread_time)
    caller_cpu, began = time.thread_time(), time.perf_counter()
    requests = await _call_for(instant.call, shape.concurrent, began + seconds, shape.items_per_request)
    elapsed, caller_cpu = time.perf_counter() - began, time.thread_time() - caller_cpu
    engine_cpu = await instant.ask(time.thread_time) - engine_cpu
    outputs = instant.given - given
    if outputs != requests * shape.outputs_per_request:
        raise BenchmarkError(f"{shape}: {requests} requests gave {outputs} outputs")
    return Load(requests, outputs, elapsed, engine_cpu, caller_cpu)


async def measure_throughput(shape: Shape, repetitions: int, seconds: float) -> Throughput:
    """Measure a shape and its floor in turns, `repetitions` times for about `seconds` each (half of that the floor)."""
    loads: list[Load] = []
    floors: list[float] = []
    async with open_engine(shape) as instant, open_floor(shape) as floor:
        await run_load(instant, min(WARM_UP_S, seconds))
        for _ in range(repetitions):
            gc.collect()
            loads.append(await run_load(instant, seconds))
            began = time.perf_counter()
            items = shape.items_per_request - _finals(shape)
            requests = await _call_for(floor.call, shape.concurrent, began + seconds / 2, items)
            floors.append(requests / (time.perf_counter() - began))
    rates = Spread.of([load.requests / load.seconds for load in loads])
    floor_rates = Spread.of(floors)
    return Throughput(
        shape=str(shape),
        repetitions=repetitions,
        requests=sum(load.requests for load in loads),
        requests_per_s=rates,
        outputs_per_s=Spread.of([load.outputs / load.seconds for load in loads]),
        engine_us_per_request=Spread.of([1e6 * load.engine_cpu_s / load.requests for load in loads]),
        caller_us_per_request=Spread.of([1e6 * load.caller_cpu_s / load.requests for load in loads]),
        floor_requests_per_s=floor_rates,
        floor_share=rates.median / floor_rates.median,
    )


async def measure_latency(shape: Shape, repetitions: int, calls: int) -> Latency:
    """Measure single requests, the bare crossing and the floor in turns; a value is the median of `calls`."""
    requests: list[float] = []
    crossings: list[float] = []
    callbacks: list[float] = []
    floors: list[float] = []
    async with open_engine(shape) as instant, open_floor(shape) as floor:
        with loop_in_thread() as inner:
            echo = Echo(inner)
            await _median_us(instant.call, calls)
            for _ in range(repetitions):
                requests.append(await _median_us(instant.call, calls))
                crossings.append(await _median_us(echo.call, calls))
                callbacks.append(await _median_us(echo.call_without_task, calls))
                floors.append(await _median_us(floor.call, calls))
    return Latency(
        shape=str(shape),
        request_us=Spread.of(requests),
        crossing_us=Spread.of(crossings),
        callback_us=Spread.of(callbacks),
        floor_us=Spread.of(floors),
        times_crossing=statistics.median(requests) / statistics.median(crossings),
    )


async def measure_idle(shape: Shape, seconds: float, open_requests: int = 0) -> Idle:
    """Let an engine stand still for `seconds`, with so many requests open that wait for a stage."""
    async with open_engine(shape) as instant:
        streams = await instant.hold(open_requests)
        cpu, wakeups = await instant.ask(_thread_use)
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        elapsed = time.perf_counter() - began
        cpu_after, wakeups_after = await instant.ask(_thread_use)
        await instant.leave(streams)
    return Idle(
        open_requests=open_requests,
        seconds=elapsed,
        cpu_share=(cpu_after - cpu) / elapsed,
        wakeups_per_s=None if math.isnan(wakeups) else (wakeups_after - wakeups) / elapsed,
    )


async def measure_memory(shape: Shape, open_requests: int) -> Memory:
    """Count the objects of so many open requests, which wait for a stage; nothing is remembered of ended ones."""
    tracemalloc.start()
    try:
        async with open_engine(shape, max_remembered=1) as instant:
            await instant.leave(await instant.hold(open_requests))
            before = _object_bytes()
            streams = await instant.hold(open_requests)
            held = _object_bytes()
            await instant.leave(streams)
            left = _object_bytes()
    finally:
        tracemalloc.stop()
    return Memory(
        open_requests=open_requests,
        bytes_per_request=(held - before) / open_requests,
        left_bytes_per_request=(left - before) / open_requests,
    )


async def measure_open_requests(shape: Shape, at: Sequence[int], seconds: float) -> Growth:
    """The cost of an output of the same load, with so many other requests open."""
    costs: list[float] = []
    for count in at:
        async with open_engine(shape) as instant:
            streams = await instant.hold(count)
            await run_load(instant, min(WARM_UP_S, seconds))
            costs.append(_us_per_output([await run_load(instant, seconds / 3) for _ in range(3)]))
            await instant.leave(streams)
    return Growth(of="open requests", shape=str(shape), at=tuple(at), us_per_output=tuple(costs))


async def measure_replicas(shape: Shape, at: Sequence[int], seconds: float) -> Growth:
    """The cost of an output with so many replicas of each stage, each with the load of one."""
    costs: list[float] = []
    for count in at:
        scaled = msgspec.structs.replace(shape, replicas=count, concurrent=shape.concurrent * count)
        async with open_engine(scaled) as instant:
            await run_load(instant, min(WARM_UP_S, seconds))
            costs.append(_us_per_output([await run_load(instant, seconds / 3) for _ in range(3)]))
    return Growth(of="replicas", shape=str(shape), at=tuple(at), us_per_output=tuple(costs))


def _spin_us() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(20_000):
        total += number & 7
    return 1e6 * (time.perf_counter() - began)


async def _call_for(call: Call, concurrent: int, until: float, items: int) -> int:
    """Let `concurrent` tasks call again and again until the time comes; each at least once. Returns the calls."""

    async def call_again() -> int:
        calls = 0
        while True:
            arrived = await call()
            if arrived != items:
                raise BenchmarkError(f"a request gave {arrived} items where {items} are due")
            calls += 1
            if time.perf_counter() >= until:
                return calls

    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(call_again()) for _ in range(concurrent)]
    return sum(caller.result() for caller in callers)


async def _median_us(call: Callable[[], Coroutine[object, object, object]], calls: int) -> float:
    times: list[float] = []
    for _ in range(calls):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def _us_per_output(loads: Sequence[Load]) -> float:
    return statistics.median(1e6 * (load.engine_cpu_s + load.caller_cpu_s) / load.outputs for load in loads)


def _finals(shape: Shape) -> int:
    return sum(shape.is_final(stage) for stage in range(shape.stages))


def _thread_use() -> tuple[float, float]:
    """Processor time, and how often the thread waited; the latter is counted on Linux only."""
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if sys.platform == "linux" else math.nan
    return time.thread_time(), waits


def _object_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
