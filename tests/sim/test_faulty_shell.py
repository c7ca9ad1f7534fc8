"""Whole engines in threads of their own, and stages in theirs, over backends that do everything wrong.

Scripts that fail, raise, hang and die; stops that fail or never return; outputs cut, repeated, reordered, and of
nobody; callers that leave, abort, run out of time or shut the engine down. Whatever happens, each request gets one
terminal, in time, and nothing is left. Threads and timers are real: a seed gives the same plan, not the same order.
What needs no threads is in test_simulation.py.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import ClassVar

import pytest

from podium.core.events import JobOutput
from podium.core.graph import EmptyPolicy, Limits, Modality, Stage
from podium.core.identity import MAIN, JobKey, Payload, ReplicaKey
from podium.core.lifecycle import ReplicaState
from podium.errors import EngineStoppedError, ErrorKind, RequestError, StopUnconfirmedError
from podium.payloads import SegmentEnd, Text
from podium.ports.input_processor import InputStream
from podium.ports.stage_backend import BackendOutput, Placement
from podium.ports.stage_client import StageClient
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.request_stream import RequestStream
from podium.testing.fake_backend import FakeOptions, Script, Then
from podium.testing.fake_processor import At, Trouble
from podium.testing.simulation.ledger import Ledger
from podium.transports.in_process import in_process_client
from tests.support.core_world import complete, make_stage, streaming
from tests.support.shell_world import (
    ScriptedProcessor,
    ScriptedStream,
    ShellWorld,
    ThreadBackend,
    WatchedBackend,
    serving,
    settled,
    turns,
)

SEEDS = 160
BLOCKS = 8
BOUND_S = 10.0
"""For a whole world. Its limits are in milliseconds; the rest is for a machine that is busy."""
LIMITS = {ErrorKind.WAIT_TIMEOUT, ErrorKind.DEADLINE_EXCEEDED, ErrorKind.OVERLOADED, "abort unconfirmed"}
"""Outcomes that come of limits only."""
GHOST = JobKey("ghost", "stage", MAIN, 10**9)


# What goes wrong in the stages


class FaultyBackend(WatchedBackend):
    """A fake that delivers what it has cut, repeated and out of order, in several batches."""

    def __init__(self, stage: str, options: FakeOptions, draw: random.Random) -> None:
        super().__init__(stage, options)
        self._draw = draw
        self._held: list[BackendOutput] = []

    async def next_outputs(self) -> Sequence[BackendOutput]:
        if not self._held:
            self._held = [part for output in await super().next_outputs() for part in self._spoilt(output)]
            if self._draw.random() < 0.5:
                self._draw.shuffle(self._held)
        count = self._draw.randint(1, len(self._held))
        batch, self._held = self._held[:count], self._held[count:]
        return batch

    def _spoilt(self, output: BackendOutput) -> list[BackendOutput]:
        parts: list[BackendOutput] = [output]
        if isinstance(output, JobOutput):
            cut = self._draw.randint(0, len(output.payloads))
            parts = [
                JobOutput(output.job, output.sequence, output.payloads[:cut]),
                JobOutput(output.job, output.sequence + cut, output.payloads[cut:], output.finish),
            ]
        if self._draw.random() < 0.3:
            parts += parts
        if self._draw.random() < 0.1:
            parts.append(JobOutput(GHOST, 0, (Text("of nobody"),)))
        return parts


class FaultyThreadBackend(FaultyBackend):
    """The same in a thread of its own."""

    capabilities = ThreadBackend.capabilities


class FaultyProcessor(ScriptedProcessor):
    """Looks prompts up, and raises where an item says so, in whichever stage the item arrives."""

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.LOOP

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> InputStream:
        return FaultyStream(self._scripts)


class FaultyStream(ScriptedStream):
    def __init__(self, scripts: Mapping[str, tuple[Payload, ...]]) -> None:
        super().__init__(scripts)
        self._trouble: Trouble | None = None

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:
        items = super().feed(source, payloads)
        for item in items:
            if isinstance(item, Trouble) and item.at is At.FEED:
                item.cause()
            elif isinstance(item, Trouble):
                self._trouble = item
        return [item for item in items if not isinstance(item, Trouble | SegmentEnd)]

    def end(self, source: str) -> Sequence[Payload]:
        if self._trouble is not None:
            self._trouble.cause()
        return ()


class Manner(StrEnum):
    """How a caller treats a request."""

    READ = "read"
    LEAVE = "leave"
    CANCEL = "cancel"


class FaultyWorld(ShellWorld):
    """The stages, scripts and limits of a seed.

    In a patient one no limit comes up within a test, and only requests whose caller is cancelled hang: what ends there
    has ended for its own reason.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(seed)
        self.is_patient = self.draw.random() < 0.4
        self.deaths = self.draw.random() < 0.3
        self.hard_stops = not self.is_patient and self.draw.random() < 0.4
        self.manners: list[Manner] = self.draw.choices(list(Manner), (6, 1, 2), k=self.draw.randint(3, 10))
        self.prompts = {f"prompt {number}": self._items(manner) for number, manner in enumerate(self.manners)}
        stages = draw_stages(self.draw, self.is_patient)
        super().__init__(*stages, replicas=self.draw.choice((1, 1, 2)), scripts=self.prompts)

    def _items(self, manner: Manner, depth: int = 0) -> tuple[Payload, ...]:
        """What a stage gets: words, scripts whose outputs are for the next stage, and troubles."""
        return tuple(self._item(manner, depth) for _ in range(self.draw.randint(0, 4)))

    def _item(self, manner: Manner, depth: int) -> Payload:
        kind = self.draw.choices(("text", "script", "trouble", "segment"), (50, 25 if depth < 3 else 0, 5, 3))[0]
        if kind == "text":
            return Text(f"word{self.draw.randrange(1000)} ")
        if kind == "trouble":
            return Trouble(self.draw.choice(list(At)), is_clients_fault=self.draw.random() < 0.5)
        if kind == "segment":
            return SegmentEnd()
        may_hang = not self.is_patient or manner is Manner.CANCEL
        weights = (40, 15, 12 if may_hang else 0, 8, 4, 4, 6 if self.deaths else 0)
        return Script(
            outputs=self._items(manner, depth + 1),
            then=self.draw.choices(list(Then), weights)[0],
            announce=self.draw.random() < 0.3,
            stop_failures=0 if self.is_patient else self.draw.choice((0, 0, 0, 1, 2)),
            hang_stop=self.hard_stops and self.draw.random() < 0.3,
        )

    def _make_client(self, stage: Stage, replica: ReplicaKey) -> StageClient:
        make = self.draw.choice((FaultyBackend, FaultyBackend, FaultyThreadBackend))
        backend = self.backends[replica] = make(stage.name, FakeOptions(), random.Random(f"{replica} {self.seed}"))
        return in_process_client(
            replica,
            lambda: backend,
            lambda: FaultyProcessor(self.prompts),
            {source.stage: Modality.TEXT for source in stage.sources},
            backend.capabilities.placement,
        )


def draw_stages(draw: random.Random, is_patient: bool) -> list[Stage]:
    """One of a few graphs, with limits of milliseconds, or of many seconds."""
    limits = (
        Limits()
        if is_patient
        else Limits(
            max_inflight=draw.choice((1, 2, 64)),
            max_queued=draw.choice((2, 64)),
            queue_timeout_s=draw.choice((0.02, 0.1)),
            dispatch_timeout_s=0.1,
            first_output_timeout_s=draw.choice((0.01, 0.05)),
            chunk_timeout_s=draw.choice((0.01, 0.05)),
            stop_timeout_s=draw.choice((0.005, 0.03)),
            stuck_timeout_s=draw.choice((0.02, 0.05)),
        )
    )
    edge = draw.choice((streaming, complete))
    stage = partial(
        make_stage,
        limits=limits,
        prewarm=draw.random() < 0.2,
        rerun=draw.random() < 0.3,
        on_empty=draw.choice(list(EmptyPolicy)),
    )
    graphs = (
        [stage("a", output="text")],
        [stage("a", output="text"), stage("b", edge("a"), output="speech")],
        [stage("a", output="text"), stage("b", edge("a")), stage("c", streaming("b"), output="speech")],
        [
            stage("a"),
            stage("b"),
            stage("c", edge("a"), streaming("b"), output="text"),
            stage("d", streaming("a"), output="speech"),
        ],
    )
    return draw.choice(graphs)


# What callers do


class Callers:
    """Everybody who uses one engine, and what came of their requests."""

    def __init__(self, world: FaultyWorld, engine: AsyncOmniEngine, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._world = world
        self._engine = engine
        self._draw = random.Random(f"callers {seed}")
        self._ids: list[str] = []

    async def run(self, *, shut_down: bool) -> None:
        async with asyncio.TaskGroup() as group:
            for number, prompt in enumerate(self._world.prompts):
                group.create_task(self._ask(number, prompt))
                await turns(self._draw.randint(0, 3))
            for _ in range(self._draw.randint(0, 3)):
                group.create_task(self._abort())
                await turns(self._draw.randint(0, 6))
            if shut_down:
                await turns(self._draw.randint(0, 40))
                await self._engine.shutdown(timeout_s=BOUND_S)

    async def _ask(self, number: int, prompt: str) -> None:
        request_id = f"r{number}" if self._draw.random() < 0.9 else "r0"
        self._ids.append(request_id)
        outputs = None if self._draw.random() < 0.6 else [self._draw.choice(self._engine.outputs)]
        deadline_s = None if self._world.is_patient else self._draw.choice((None, None, 0.003, 0.02))
        try:
            stream = self._engine.generate(prompt, outputs=outputs, request_id=request_id, deadline_s=deadline_s)
        except EngineStoppedError:
            self.outcomes["not taken"] += 1
            return
        match self._world.manners[number]:
            case Manner.READ:
                await self._read(stream)
            case Manner.LEAVE:
                await self._leave(stream, self._draw.randint(0, 2))
            case Manner.CANCEL:
                await self._cancel(stream, self._draw.randint(0, 20))

    async def _read(self, stream: RequestStream) -> None:
        """To the end: in order, then one terminal, and nothing after it."""
        count, raised = 0, None
        try:
            async for item in stream:
                assert item.sequence == count
                count += 1
        except RequestError as error:
            raised = error.record
        assert stream.error == raised
        assert stream.outcome is not None
        self.outcomes[stream.outcome] += 1
        self.outcomes[raised.kind if raised is not None else "no error"] += 1
        assert [item async for item in stream] == []

    async def _leave(self, stream: RequestStream, count: int) -> None:
        try:
            async with stream:
                async for item in stream:
                    if item.sequence >= count:
                        break
        except RequestError as error:
            self.outcomes[error.record.kind] += 1
        self.outcomes["left"] += 1

    async def _cancel(self, stream: RequestStream, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(stream))
            await turns(count)
            reading.cancel()
        self.outcomes["cancelled"] += 1

    async def _abort(self) -> None:
        ids = self._draw.sample(self._ids, k=self._draw.randint(0, len(self._ids)))
        wait = self._draw.choice(("accepted", "stopped"))
        try:
            report = await self._engine.abort(
                [*ids, "unknown"],
                wait=wait,
                timeout_s=BOUND_S if self._world.is_patient else self._draw.choice((0.002, 0.05)),
            )
        except StopUnconfirmedError as error:
            self.outcomes["abort unconfirmed" if set(error.unconfirmed) <= set(ids) else "abort of others"] += 1
        except EngineStoppedError:
            self.outcomes["abort not taken"] += 1
        else:
            assert [record.request_id for record in report.records] == [*dict.fromkeys([*ids, "unknown"])]
            self.outcomes["abort answered"] += 1


async def run_world(seed: int) -> Counter[str]:
    """One engine from start to end."""
    world, ledger = FaultyWorld(seed), Ledger(lateness_s=BOUND_S)
    engine = AsyncOmniEngine(world.parts(), observers=[ledger])
    callers = Callers(world, engine, seed)
    shut_down = world.draw.random() < 0.25
    async with asyncio.timeout(BOUND_S), serving(world, engine):
        await callers.run(shut_down=shut_down)
        if not shut_down:
            await check_nothing_kept(world, engine, callers.outcomes)
    ledger.check_end()
    assert ledger.violations == []
    if world.is_patient and not shut_down:
        assert LIMITS.isdisjoint(callers.outcomes), callers.outcomes
    return callers.outcomes


async def check_nothing_kept(world: FaultyWorld, engine: AsyncOmniEngine, outcomes: Counter[str]) -> None:
    """The engine is alive and idle; and where it has a replica of each stage, it still works."""
    core = await settled(engine)
    figures = await engine.statistics()
    assert (figures.streams, figures.open_calls, core.held, core.aborting) == (0, 0, 0, 0)
    for name, stage in core.stages.items():
        for replica in stage.replicas:
            if replica.state is ReplicaState.LIVE:
                assert await left_jobs(world.of(name, replica.slot)) == []
    counters = core.counters
    ended = counters.completed + counters.aborted + counters.cancelled + counters.failed
    assert counters.submitted == counters.refused + ended
    health = await engine.check_health()
    assert health.is_live
    if health.is_ready:
        result = await engine.generate("a good one", request_id="r0").collect()
        texts = [whole.text for whole in result.outputs.values() if isinstance(whole, Text)]
        assert texts == ["a good one" * copies_of(world.stages, output) for output in result.outputs]
        outcomes["worked on"] += 1


def copies_of(stages: Sequence[Stage], output: str) -> int:
    """How often the prompt arrives in an output, where every stage gives back what its sources gave."""
    copies: dict[str, int] = {}
    for stage in stages:
        copies[stage.name] = sum(copies[source.stage] for source in stage.sources) or 1
    return next(copies[stage.name] for stage in stages if stage.output == output)


async def left_jobs(backend: WatchedBackend) -> list[JobKey]:
    """What a backend has not forgotten."""
    return await backend.at(lambda: list(backend.tasks))


@pytest.mark.rule(
    "ORCH-INV-101", "ORCH-INV-201", "ORCH-INV-202", "ORCH-INV-203", "ORCH-INV-204", "ORCH-INV-207", "ORCH-INV-213"
)
@pytest.mark.case("B002", "B028", "B032", "B068", "B079")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_happens_each_request_ends_once_and_nothing_is_left(block: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(block, SEEDS, BLOCKS):
        try:
            outcomes += asyncio.run(run_world(seed))
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
    assert outcomes["worked on"] > 5, "most worlds end before they tell anything"
    expected = {"completed", "failed", "aborted", ErrorKind.STAGE_FAILED, "left", "cancelled", "abort answered"}
    assert expected <= outcomes.keys(), outcomes
    assert "abort of others" not in outcomes
