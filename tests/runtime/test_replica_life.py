"""Replicas of whole engines: what is lost comes back, and moves under traffic lose nothing."""

from __future__ import annotations

import asyncio

import pytest

from podium.core.identity import ReplicaKey
from podium.errors import EngineStoppedError, InvalidRequestError, StageUnavailableError, StartError, WaitTimeoutError
from podium.payloads import Text
from podium.runtime import async_omni_engine
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.omni_engine import OmniEngine
from podium.runtime.replica_slot import RestartLimits, SlotPhase
from podium.testing.fake_backend import FakeOptions, Loading
from tests.support.core_world import make_stage, streaming
from tests.support.shell_world import (
    ONE_STAGE,
    ShellWorld,
    WatchedBackend,
    catch,
    failure_of,
    nothing_left,
    serving,
    settled,
    until,
)

SOON = RestartLimits(backoff_s=0.001, max_backoff_s=0.001)
HOURS = RestartLimits(backoff_s=9999.0, max_backoff_s=9999.0)


async def phase_of(engine: AsyncOmniEngine, slot: int = 0) -> SlotPhase:
    return (await engine.statistics()).slots[slot].phase


async def ready(engine: AsyncOmniEngine) -> None:
    while not (await engine.check_health()).is_ready:
        pass


@pytest.mark.rule("ORCH-INV-202", "ORCH-INV-306")
@pytest.mark.case("B042")
async def test_a_lost_replica_comes_back_and_serves() -> None:
    world = ShellWorld(restart=SOON)
    async with serving(world) as engine:
        await failure_of(engine.generate("die"))
        await ready(engine)
        assert (await engine.generate("again").collect()).outputs["text"] == Text("again")
        slot = (await engine.statistics()).slots[0]
        assert (slot.generation, slot.restarts, slot.phase) == (1, 1, SlotPhase.SERVING)


@pytest.mark.rule("ORCH-INV-202", "ORCH-INV-305")
@pytest.mark.case("B042", "B044")
async def test_until_it_is_back_requests_fail_fast_and_health_says_so() -> None:
    async with serving(ShellWorld(restart=HOURS)) as engine:
        await failure_of(engine.generate("die"))
        while await phase_of(engine) is not SlotPhase.BACKING_OFF:
            pass
        health = await engine.check_health()
        assert health.reason == "no live replica of stage 'solo' (replica 0 of stage 'solo' will start again soon)"
        assert health.restarting_stages == ("solo",)
        assert isinstance(await failure_of(engine.generate("no")), StageUnavailableError)


@pytest.mark.rule("ORCH-INV-305")
@pytest.mark.case("B044", "B001")
async def test_with_another_replica_the_engine_is_ready_all_the_time() -> None:
    async with serving(ShellWorld(restart=HOURS, replicas=2)) as engine:
        await failure_of(engine.generate("die"))
        health = await engine.check_health()
        assert (health.is_ready, health.reason, health.restarting_stages) == (True, "", ("solo",))
        assert (await engine.generate("yes").collect()).outputs["text"] == Text("yes")


@pytest.mark.rule("ORCH-INV-306")
async def test_a_rolling_restart_under_traffic_loses_nothing() -> None:
    world = ShellWorld(make_stage("a"), make_stage("b", streaming("a"), output="text"), replicas=2)
    async with serving(world) as engine:
        served: list[object] = []
        is_over = False

        async def call(caller: int) -> None:
            number = 0
            while not is_over:
                number += 1
                served.append((await engine.generate(f"{caller}.{number}").collect()).outputs["text"])

        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(call(caller)) for caller in range(4)]
            await until(lambda: len(served) > 4)
            for stage in ("a", "b"):
                await engine.restart(stage)
            count = len(served)
            await until(lambda: len(served) > count + 4)
            is_over = True
        assert len(callers) == 4
        assert {key.generation for key in world.backends} == {0, 1}
        core = await settled(engine)
        assert core.counters.failed == core.counters.refused == 0
        assert [replica.generation for replica in core.stages["a"].replicas] == [1, 1]


@pytest.mark.rule("ORCH-INV-306")
async def test_with_one_replica_requests_wait_for_the_next_life() -> None:
    world = ShellWorld(by_hand=["solo"])
    async with serving(world) as engine:
        running = engine.generate("old")
        await world.of("solo").wait_jobs()
        async with asyncio.TaskGroup() as group:
            restarting = group.create_task(engine.restart("solo"))
            while not (await engine.statistics()).core.stages["solo"].returning:
                pass
            waiting = engine.generate("new")
            await world.of("solo").finish_all(Text("old"))
            assert (await running.collect()).outputs["text"] == Text("old")
            await restarting
            await world.of("solo", generation=1).wait_jobs()
            await world.of("solo", generation=1).finish_all(Text("new"))
            assert (await waiting.collect()).outputs["text"] == Text("new")


class OneLife(WatchedBackend):
    """Starts the first time only."""

    lives = 0

    def __init__(self, stage: str, options: FakeOptions) -> None:
        OneLife.lives += 1
        super().__init__(stage, FakeOptions(load=Loading.FAIL) if OneLife.lives > 1 else options)


@pytest.mark.rule("ORCH-INV-306", "ORCH-INV-202")
async def test_a_restart_that_fails_is_told_and_what_waited_for_it_fails_fast() -> None:
    OneLife.lives = 0
    world = ShellWorld(by_hand=["solo"], make_backend={"solo": OneLife})
    async with serving(world) as engine:
        running = engine.generate("old")
        await world.of("solo").wait_jobs()
        async with asyncio.TaskGroup() as group:
            restarting = group.create_task(_restart_in_vain(engine))
            while not (await engine.statistics()).core.stages["solo"].returning:
                pass
            waiting = engine.generate("new")
            await world.of("solo").finish_all()
            assert isinstance(await failure_of(waiting), StageUnavailableError)
            await restarting
        await running.collect()
        with pytest.raises(StartError, match="stage 'solo' did not start"):
            await engine.add_replica("solo")


async def _restart_in_vain(engine: AsyncOmniEngine) -> None:
    with pytest.raises(StartError, match="stage 'solo' did not start"):
        await engine.restart("solo")


@pytest.mark.rule("ORCH-INV-306")
async def test_replicas_are_drained_and_added() -> None:
    world = ShellWorld(by_hand=["solo"], replicas=2)
    async with serving(world) as engine:
        running = [engine.generate(name) for name in "ab"]
        for slot in (0, 1):
            await world.of("solo", slot).wait_jobs()
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(engine.drain("solo", 0))
            while (await engine.statistics()).core.stages["solo"].replicas[0].takes_work:
                pass
            await world.of("solo", 0).finish_all()
            await draining
        assert [replica.slot for replica in (await engine.statistics()).core.stages["solo"].replicas] == [1]
        assert await engine.add_replica("solo") == 0
        running.append(engine.generate("c"))
        await world.of("solo", 0, generation=1).wait_jobs()
        for key in (ReplicaKey("solo", 1, 0), ReplicaKey("solo", 0, 1)):
            await world.of(key.stage, key.slot, key.generation).finish_all()
        for stream in running:
            await stream.collect()


async def test_moves_that_make_no_sense_are_refused() -> None:
    async with serving(ShellWorld()) as engine:
        with pytest.raises(InvalidRequestError, match="there is no stage 'sold'"):
            await engine.restart("sold")
        with pytest.raises(InvalidRequestError, match="replica: True is no whole number"):
            await engine.drain("solo", True)
        with pytest.raises(InvalidRequestError, match="has no replica 7"):
            await engine.drain("solo", 7)
        with pytest.raises(InvalidRequestError, match="timeout_s: 0"):
            await engine.add_replica("solo", timeout_s=0)
    with pytest.raises(EngineStoppedError):
        await engine.restart("solo")
    with pytest.raises(EngineStoppedError):
        await AsyncOmniEngine(ShellWorld().parts()).restart("solo")


@pytest.mark.rule("ORCH-INV-204")
async def test_moves_have_a_limit() -> None:
    world = ShellWorld(by_hand=["solo"])
    async with serving(world) as engine:
        running = engine.generate("long")
        await world.of("solo").wait_jobs()
        error = await catch(engine.drain("solo", 0, timeout_s=0.001))
        assert isinstance(error, WaitTimeoutError)
        assert error.record.awaited == "the end of the jobs of replica 0 of stage 'solo'"
        await world.of("solo").finish_all()
        await running.collect()


async def test_a_loop_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(ShellWorld()) as engine:

        async def sleep_on(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(async_omni_engine, "ANSWER_GRACE_S", 0.001)
        moves = engine._host._moves
        assert moves is not None
        monkeypatch.setattr(moves, "restart", sleep_on)
        assert isinstance(await catch(engine.restart("solo", timeout_s=0.001)), WaitTimeoutError)


@pytest.mark.rule("ORCH-INV-302", "ORCH-INV-304")
async def test_the_shutdown_ends_restarts_and_those_who_wait_for_one() -> None:
    world = ShellWorld(by_hand=["solo"], restart=HOURS, replicas=2)
    async with serving(world) as engine:
        stream = engine.generate("long")
        await world.of("solo").wait_jobs()
        async with asyncio.TaskGroup() as group:
            group.create_task(_restart_until_the_end(engine))
            while (await engine.statistics()).core.stages["solo"].replicas[0].takes_work:
                pass
            await engine.shutdown()
        await failure_of(stream)
    assert {key.generation for key in world.backends} == {0}


async def _restart_until_the_end(engine: AsyncOmniEngine) -> None:
    with pytest.raises(EngineStoppedError):
        await engine.restart("solo")


def test_the_synchronous_engine_has_the_same() -> None:
    with nothing_left(), OmniEngine(AsyncOmniEngine(ShellWorld(*ONE_STAGE).parts())) as engine:
        engine.restart("solo")
        assert engine.add_replica("solo") == 1
        engine.drain("solo", 0)
        assert [slot.phase for slot in engine.statistics().slots] == [SlotPhase.EMPTY, SlotPhase.SERVING]
        assert engine.generate(["x"], progress=False)[0].outputs["text"] == Text("x")
