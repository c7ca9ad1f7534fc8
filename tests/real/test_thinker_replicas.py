"""Two replicas of a real thinker, killed one after the other under load, with pauses in the middle, and a shutdown.

One engine serves all tests; the last one shuts it down. A replica runs two jobs at a time, and two more wait in it. If
it is killed, those that have shown something fail, and those that have not run again elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TypeVar

import pytest

from podium.bootstrap import AsyncOmniEngine
from podium.core.effects import Outcome
from podium.core.lifecycle import ReplicaState
from podium.core.statistics import ReplicaStatistics
from podium.errors import ControlError, ErrorKind, RequestError, Scope, StageUnavailableError
from podium.runtime.config import StageParams
from podium.runtime.replica_slot import SlotPhase, SlotStatistics
from tests.real.processes import descendants, still_running, title_of
from tests.real.shared_loop import SharedLoop
from tests.real.test_voice_faults import Reader

RUNNING, CREDITS = 2, 4
PIPELINE = f"""
name: thinkers
stages:
  thinker:
    kind: autoregressive
    produces: text
    output: text
    backend: vllm
    options:
      model: podium.pipelines.voice:prepare_smollm2
      chat: true
      dtype: float32
      max_model_len: 512
      max_num_seqs: {RUNNING}
      kv_cache_gib: 1
      enforce_eager: true
      threads: 1
    params:
      temperature: 0.0
      ignore_eos: true
    replicas: 2
    rerun: true
    restart:
      backoff_s: 0.5
    limits:
      max_inflight: {CREDITS}
      max_queued: 64
      first_output_timeout_s: 120
      start_timeout_s: 300
"""
QUESTION = "Why is the sky blue?"
LENGTH = 48
SHORT: StageParams = {"thinker": {"max_tokens": 12}}
LONG: StageParams = {"thinker": {"max_tokens": LENGTH}}
ENDLESS: StageParams = {"thinker": {"max_tokens": 400}}
RETURN_LIMIT_S = 300.0
SILENCE_LIMIT_S = 15.0
"""How long nothing may come of the survivor, while another engine starts beside it on the same cores."""
T = TypeVar("T")

pytestmark = pytest.mark.timeout(600)


class Thinkers:
    """The engine of this module, in a loop of its own."""

    def __init__(self) -> None:
        self.processes_before = descendants()
        self.threads_before = {thread.name for thread in threading.enumerate()}
        self.loop = SharedLoop()
        self.engine = AsyncOmniEngine.from_pipeline(PIPELINE)

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.loop.run(work, timeout_s=500)

    def processes(self) -> dict[int, str]:
        """What runs now, and did not before the engine was made."""
        return {process: title for process, title in descendants().items() if process not in self.processes_before}

    async def kill(self, slot: int) -> float:
        """Kill the engine process of a replica, which says itself which one that is; returns when."""
        report = await self.engine.collective_rpc("tests.real.processes:engine_process_of")
        (processes,) = [record.value for record in report.records if record.replica == slot]
        assert isinstance(processes, list)
        (process,) = processes  # of the one worker
        assert isinstance(process, int)
        assert "EngineCore" in title_of(process)
        os.kill(process, signal.SIGKILL)
        return time.monotonic()

    async def slot(self, number: int) -> SlotStatistics:
        (found,) = [slot for slot in (await self.engine.statistics()).slots if slot.slot == number]
        return found

    async def replicas(self) -> dict[int, ReplicaStatistics]:
        """The replicas that the core knows, by slot."""
        stage = (await self.engine.statistics()).core.stages["thinker"]
        return {replica.slot: replica for replica in stage.replicas}

    async def inflight(self) -> dict[int, int]:
        return {slot: replica.inflight for slot, replica in (await self.replicas()).items()}

    async def wait_return(self, slot: int, generation: int) -> None:
        async def serves() -> bool:
            now = await self.slot(slot)
            assert now.failure is None
            return (now.phase, now.generation) == (SlotPhase.SERVING, generation) and slot in await self.replicas()

        await wait_until(serves, RETURN_LIMIT_S)

    async def check_both_serve(self) -> None:
        """Each of them answers, and both the same."""
        readers = [Reader(self.engine.generate(QUESTION, params=LONG)) for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.run())
            await wait_until(lambda: self.has_inflight({0: 1, 1: 1}))
        assert [reader.error for reader in readers] == [None, None]
        assert len({reader.text for reader in readers}) == 1

    async def has_inflight(self, expected: dict[int, int]) -> bool:
        return await self.inflight() == expected

    async def begin(self, group: asyncio.TaskGroup, params: StageParams) -> list[Reader]:
        """As many requests as there are credits; as many of them as can run at a time have shown something."""
        readers = [Reader(self.engine.generate(QUESTION, params=params)) for _ in range(2 * CREDITS)]
        for reader in readers:
            group.create_task(reader.run())

        async def have_begun() -> bool:
            return sum(bool(reader.items) for reader in readers) == 2 * RUNNING

        await wait_until(have_begun)
        assert await self.inflight() == {0: CREDITS, 1: CREDITS}
        return readers

    async def ask_held(self, group: asyncio.TaskGroup) -> Reader:
        """A request that came when the stage was paused."""
        held = Reader(self.engine.generate(QUESTION, params=SHORT))
        group.create_task(held.run())

        async def is_held() -> bool:
            return (await self.engine.statistics()).core.held == 1

        await wait_until(is_held)
        return held


async def wait_until(is_so: Callable[[], Awaitable[bool]], limit_s: float = 100.0) -> None:
    """Ask until it is so; raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while not await is_so():  # noqa: ASYNC110 - a real engine, and there is nothing to be told by
            await asyncio.sleep(0.05)


@asynccontextmanager
async def callers(engine: AsyncOmniEngine, count: int) -> AsyncIterator[list[Reader]]:
    """Callers that ask one short question after another, until the block ends or one of their requests fails."""
    readers: list[Reader] = []
    is_over = asyncio.Event()

    async def ask_on() -> None:
        while not is_over.is_set():
            reader = Reader(engine.generate(QUESTION, params=SHORT))
            readers.append(reader)
            await reader.run()
            if reader.error is not None:
                break

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(ask_on())
        try:
            yield readers
        finally:
            is_over.set()


def is_lost_with(reader: Reader, slot: int) -> bool:
    """Whether a request ended with its replica, and says so."""
    if reader.error is None:
        return False
    record = reader.error.record
    assert isinstance(reader.error, StageUnavailableError), reader.error
    assert (record.kind, record.scope, record.status) == (ErrorKind.REPLICA_LOST, Scope.REPLICA, 503)
    assert (record.stage, record.replica, record.request_id) == ("thinker", slot, reader.stream.request_id)
    assert not any(item.request_finished for item in reader.items)
    return True


def check_complete(readers: list[Reader], tokens: int) -> None:
    for reader in readers:
        assert reader.error is None
        assert reader.items[-1].request_finished
        assert reader.items[-1].usage["completion_tokens"] == tokens
        assert [item.sequence for item in reader.items] == list(range(len(reader.items)))


@pytest.fixture(scope="module")
def thinkers() -> Iterator[Thinkers]:
    """An engine that lives until the last test shuts it down."""
    thinkers = Thinkers()
    try:
        thinkers.run(thinkers.engine.start())
        yield thinkers
    finally:
        thinkers.run(thinkers.engine.shutdown())
        thinkers.loop.close()


@pytest.mark.rule("ORCH-INV-202", "ORCH-INV-215", "ORCH-INV-306", "ORCH-INV-305")
@pytest.mark.case("B001", "B044")
def test_one_is_killed_under_load_and_comes_back(thinkers: Thinkers) -> None:
    """What it had shown fails by name, what it had not runs again, the other one never falls silent."""
    engine, victim = thinkers.engine, 1

    async def test() -> None:
        lives = (await thinkers.slot(victim)).generation
        async with asyncio.TaskGroup() as group:
            readers = await thinkers.begin(group, LONG)
            killed_at = await thinkers.kill(victim)
            restarting: set[str] = set()
            async with callers(engine, 2) as later:

                async def is_back() -> bool:
                    health = await engine.check_health()
                    assert (health.is_live, health.is_ready, health.unavailable_stages) == (True, True, ())
                    restarting.update(health.restarting_stages)
                    now = await thinkers.slot(victim)
                    return (now.phase, now.generation) == (SlotPhase.SERVING, lives + 1)

                await wait_until(is_back, RETURN_LIMIT_S)
                returned_at = time.monotonic()

        lost = [reader for reader in readers if is_lost_with(reader, victim)]
        assert len(lost) == RUNNING
        assert all(reader.items and reader.ended_at - killed_at < 5.0 for reader in lost)
        check_complete([reader for reader in readers if reader not in lost], LENGTH)
        check_complete(later, 12)
        assert (await engine.statistics()).core.counters.reruns >= CREDITS - RUNNING
        survivors = [reader for reader in readers + later if reader not in lost]
        shown_at = sorted(item.at for reader in survivors for item in reader.items if killed_at < item.at < returned_at)
        silences = [after - before for before, after in pairwise([killed_at, *shown_at, returned_at])]
        assert max(silences) < SILENCE_LIMIT_S
        assert sum(reader.ended_at < returned_at for reader in survivors) > 2 * CREDITS - RUNNING

        assert restarting == {"thinker"}
        assert (await engine.check_health()).restarting_stages == ()
        assert (await thinkers.slot(victim)).restarts == 1
        back = (await thinkers.replicas())[victim]
        assert (back.state, back.generation, back.takes_work) == (ReplicaState.LIVE, lives + 1, True)
        await thinkers.check_both_serve()

    thinkers.run(test())


async def pause(engine: AsyncOmniEngine, mode: str, victim: int) -> None:
    """Pause; when that fails it is by the name of the replica that was killed, and a repetition mends it."""
    try:
        await engine.pause_generation(mode, timeout_s=120)
    except ControlError as error:
        if (error.record.stage, error.record.replica) != ("thinker", victim):
            raise
        await engine.pause_generation(mode, timeout_s=120)
    assert await engine.is_paused()


@pytest.mark.rule("ORCH-INV-231", "ORCH-INV-232", "ORCH-INV-202", "ORCH-INV-236", "ORCH-INV-306")
@pytest.mark.parametrize(("victim", "at_once", "later"), [(0, "wait", "abort"), (1, "abort", "wait")])
def test_pauses_while_one_is_down_and_coming_back(thinkers: Thinkers, victim: int, at_once: str, later: str) -> None:
    """The first comes with the death, the second lasts beyond the return; what is held is answered after each."""
    engine = thinkers.engine

    async def test() -> None:
        lives = (await thinkers.slot(victim)).generation
        async with asyncio.TaskGroup() as group:
            readers = await thinkers.begin(group, LONG if at_once == "wait" else ENDLESS)
            await thinkers.kill(victim)
            await pause(engine, at_once, victim)
        check_ends(readers, at_once, victim)
        assert (await thinkers.inflight()).get(1 - victim) == 0
        async with asyncio.TaskGroup() as group:
            held = await thinkers.ask_held(group)
            assert held.items == []
            await engine.resume_generation()
        check_complete([held], 12)

        async with asyncio.TaskGroup() as group:
            running = Reader(engine.generate(QUESTION, params=LONG if later == "wait" else ENDLESS))
            group.create_task(running.run())
            await wait_until(lambda: has_shown(running))
            await pause(engine, later, victim)
        check_ends([running], later, victim)
        async with asyncio.TaskGroup() as group:
            held = await thinkers.ask_held(group)
            await thinkers.wait_return(victim, lives + 1)
            assert await engine.is_paused()
            assert (held.items, await thinkers.inflight()) == ([], {0: 0, 1: 0})
            await engine.resume_generation()
        check_complete([held], 12)
        await thinkers.check_both_serve()

    thinkers.run(test())


async def has_shown(reader: Reader) -> bool:
    return bool(reader.items)


def check_ends(readers: list[Reader], mode: str, victim: int) -> None:
    """Each request has ended once: lost with its replica, or as the mode of the pause says."""
    others = [reader for reader in readers if not is_lost_with(reader, victim)]
    assert len(readers) - len(others) <= RUNNING
    if mode == "wait":
        check_complete(others, LENGTH)
    for reader in others:
        assert reader.stream.outcome is (Outcome.COMPLETED if mode == "wait" else Outcome.ABORTED)
        assert reader.items[-1].finish_reason == ("length" if mode == "wait" else "abort")


@pytest.mark.rule("ORCH-INV-302", "ORCH-INV-306")
def test_a_shutdown_while_one_comes_back_leaves_no_process(thinkers: Thinkers) -> None:
    engine, victim = thinkers.engine, 0
    known = thinkers.processes()

    async def test() -> list[RequestError | None]:
        async with asyncio.TaskGroup() as group:
            readers = await thinkers.begin(group, ENDLESS)
            await thinkers.kill(victim)

            async def has_new_process() -> bool:
                is_starting = (await thinkers.slot(victim)).phase is SlotPhase.STARTING
                return is_starting and bool(thinkers.processes().keys() - known)

            await wait_until(has_new_process)
            known.update(thinkers.processes())
            began_at = time.monotonic()
            await engine.shutdown()
            assert time.monotonic() - began_at < 15.0
        return [reader.error for reader in readers]

    errors = thinkers.run(test())
    kinds = [error.record.kind for error in errors if error is not None]
    assert sorted(kinds) == [ErrorKind.ENGINE_STOPPED] * (2 * CREDITS - RUNNING) + [ErrorKind.REPLICA_LOST] * RUNNING
    assert still_running(known) == {}
    assert thinkers.processes() == {}
    names = {thread.name for thread in threading.enumerate()} - thinkers.threads_before
    assert {name for name in names if name.startswith(("podium", "vllm"))} == set()
