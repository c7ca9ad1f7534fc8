"""The fake passes the suite that it helps to test others with, and does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.identity import MAIN, JobKey
from podium.core.operations import PauseMode
from podium.errors import InvalidRequestError, UnsupportedError
from podium.payloads import Text
from podium.ports.stage_backend import BackendDead, BackendOutput, JobFailed, JobStarted, StageBackend, StageTask
from podium.testing.backend_conformance import BackendConformance, SampleJob
from podium.testing.fake_backend import Answer, CallScript, FakeBackend, FakeOptions, Loading, Script, Then, Told

JOB = JobKey("r1", "fake", MAIN, 0)


def task(*inputs: object, job: JobKey = JOB, input_open: bool = False) -> StageTask:
    return StageTask(job=job, inputs=inputs, params=None, input_open=input_open, priority=0, deadline=None)


async def outcome(call: Awaitable[object]) -> object:
    """What a call returns, or the exception that it raises."""
    (result,) = await asyncio.gather(call, return_exceptions=True)
    return result


class TestConformance(BackendConformance):
    def make_backend(self) -> FakeBackend:
        return FakeBackend()

    def options(self) -> FakeOptions:
        return FakeOptions()

    def sample(self, number: int) -> SampleJob:
        return SampleJob((Text(f"<{number}"), Text(">")), Text(f"<{number}>"))

    def long_sample(self) -> SampleJob:
        return SampleJob((Text("a"), Script(outputs=(Text("b"), Text("c")), then=Then.HANG)))

    def failing_sample(self) -> SampleJob:
        return SampleJob((Text("a"), Script(then=Then.FAIL)))

    def count_jobs(self, backend: StageBackend) -> int:
        assert isinstance(backend, FakeBackend)
        return len(backend.tasks)


class TestRefusingConformance(TestConformance):
    def failing_sample(self) -> SampleJob:
        return SampleJob((Script(then=Then.REFUSE),))


async def test_by_hand_it_does_nothing_of_its_own() -> None:
    backend = FakeBackend(options=FakeOptions(by_hand=True))
    await backend.load()
    backend.submit(task(Text("ignored")))
    backend.announce(JOB)
    backend.produce(JOB, 1, 2)
    backend.produce(JOB, 3)
    backend.finish(JOB, FinishReason.LENGTH, 4)
    expected: list[BackendOutput] = [
        JobStarted(JOB),
        JobOutput(JOB, 0, (1, 2)),
        JobOutput(JOB, 2, (3,)),
        JobOutput(JOB, 3, (4,), Finish(FinishReason.LENGTH, {"outputs": 3})),
    ]
    assert await backend.next_outputs() == expected
    assert backend.tasks == {}


async def test_it_records_what_it_was_told() -> None:
    backend = FakeBackend()
    backend.submit(task(1, input_open=True))
    backend.feed(JOB, [2])
    backend.end_input(JOB)
    assert list(backend.told) == [Told("submit", JOB, (1,)), Told("feed", JOB, (2,)), Told("end_input", JOB)]


async def test_anything_can_be_delivered() -> None:
    backend = FakeBackend()
    late = JobOutput(JOB, 7, ("again",))
    backend.put(late)
    backend.put(late)
    assert await backend.next_outputs() == [late, late]


async def test_a_stop_fails_as_often_as_told_then_returns_the_same() -> None:
    backend = FakeBackend()
    backend.submit(task(Script(outputs=("a",), then=Then.HANG, stop_failures=2)))
    await backend.next_outputs()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not to stop"):
            await backend.stop(JOB)
        backend.produce(JOB, "nothing comes after the first attempt")
    assert await backend.stop(JOB) == "a"
    assert await backend.stop(JOB) is None


async def test_a_hanging_stop_can_be_released() -> None:
    backend = FakeBackend()
    backend.submit(task(Script(then=Then.HANG, hang_stop=True)))
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(backend.stop(JOB))
        await backend.wait_until(lambda: Told("stop", JOB) in backend.told)
        await asyncio.sleep(0)
        assert not stop.done()
        backend.release_stops()


async def test_a_stop_waits_until_what_there_is_was_taken() -> None:
    backend = FakeBackend()
    backend.submit(task(Script(outputs=("a",), then=Then.HANG)))
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(backend.stop(JOB))
        await asyncio.sleep(0)
        assert not stop.done()
        assert await backend.next_outputs() == [JobOutput(JOB, 0, ("a",))]
    assert stop.result() == "a"


async def test_death_is_for_good() -> None:
    backend = FakeBackend()
    backend.submit(task(Script(outputs=("lost",), then=Then.HANG, hang_stop=True)))
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(outcome(backend.stop(JOB)))
        await backend.wait_until(lambda: Told("stop", JOB) in backend.told)
        backend.die("gone")
    assert str(stop.result()) == "gone"
    with pytest.raises(BackendDead, match="gone"):
        await backend.next_outputs()
    with pytest.raises(BackendDead, match="gone"):
        backend.submit(task())


async def test_a_script_can_take_the_backend_down() -> None:
    backend = FakeBackend()
    backend.submit(task(Script(then=Then.DIE)))
    with pytest.raises(BackendDead):
        await backend.next_outputs()


@pytest.mark.parametrize(("then", "raised"), [(Then.REFUSE, InvalidRequestError), (Then.RAISE, ValueError)])
async def test_a_script_can_make_submit_raise(then: Then, raised: type[Exception]) -> None:
    backend = FakeBackend()
    with pytest.raises(raised):
        backend.submit(task(Script(outputs=("not delivered",), then=then)))
    backend.submit(task("next"))
    first, _ = await backend.next_outputs()
    assert first == JobOutput(JOB, 0, ("next",))


async def test_a_failing_load() -> None:
    with pytest.raises(RuntimeError, match="not to load"):
        await FakeBackend(options=FakeOptions(load=Loading.FAIL)).load()


async def test_a_hanging_load_ends_with_close() -> None:
    backend = FakeBackend(options=FakeOptions(load=Loading.HANG))
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(outcome(backend.load()))
        await asyncio.sleep(0)
        assert not loading.done()
        await backend.close()
    assert isinstance(loading.result(), BackendDead)


async def test_calls() -> None:
    backend = FakeBackend()
    backend.methods["double"] = lambda arguments: arguments["value"]
    assert await backend.call("double", {"value": 4}) == 4


async def test_a_failed_job_says_so() -> None:
    backend = FakeBackend()
    backend.submit(task("a", Script(then=Then.FAIL), "not reached"))
    first, failed = await backend.next_outputs()
    assert first == JobOutput(JOB, 0, ("a",))
    assert isinstance(failed, JobFailed)
    assert (failed.error.request_id, failed.error.stage) == ("r1", "fake")


@pytest.mark.rule("ORCH-INV-231")
async def test_calls_do_what_their_scripts_say_one_after_the_other() -> None:
    """Then what they do without one."""
    scripts = (
        CallScript(then=Answer.FAIL),
        CallScript(then=Answer.UNSUPPORTED),
        CallScript(value="other", turns=3),
        CallScript(),
    )
    backend = FakeBackend(options=FakeOptions(calls={"reset_prefix_cache": scripts}))
    assert isinstance(await outcome(backend.call("reset_prefix_cache", {})), RuntimeError)
    assert isinstance(await outcome(backend.call("reset_prefix_cache", {})), UnsupportedError)
    assert await backend.call("reset_prefix_cache", {}) == "other"
    assert await backend.call("reset_prefix_cache", {}) is True
    assert await backend.call("reset_prefix_cache", {}) is True
    assert backend.told[-1] == Told("call reset_prefix_cache", inputs=({},))


async def test_a_call_hangs_until_it_is_released_or_the_backend_dies() -> None:
    backend = FakeBackend()
    backend.script_calls("list_loras", CallScript(then=Answer.HANG), CallScript(then=Answer.HANG))
    backend.script_calls("add_lora", CallScript(then=Answer.DIE))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(outcome(backend.call("list_loras", {})))
        await backend.wait_until(lambda: len(backend.told) == 1)
        backend.release_calls()
    assert first.result() == []
    async with asyncio.TaskGroup() as group:
        second = group.create_task(outcome(backend.call("list_loras", {})))
        await backend.wait_until(lambda: len(backend.told) == 2)
        assert isinstance(await outcome(backend.call("add_lora", {})), BackendDead)
    assert isinstance(second.result(), BackendDead)


@pytest.mark.rule("ORCH-INV-233")
async def test_what_was_confirmed_can_be_looked_at() -> None:
    backend = FakeBackend()
    assert (backend.paused, backend.asleep, backend.loras) == (None, frozenset(), {})
    await backend.call("pause", {"mode": PauseMode.KEEP})
    assert backend.paused is PauseMode.KEEP
    await backend.call("sleep", {"level": 1, "tags": ("weights",)})
    await backend.call("sleep", {"level": 1, "tags": ("cache",)})
    assert backend.asleep == {"weights", "cache"}
    await backend.call("wake_up", {"tags": ("cache",)})
    assert backend.asleep == {"weights"}
    await backend.call("wake_up", {})
    assert backend.asleep == frozenset()
    await backend.call("resume", {})
    assert repr(backend.paused) == "None"
    await backend.call("add_lora", {"name": "a", "path": "somewhere"})
    assert backend.loras == {"a": "somewhere"}
    assert await backend.call("list_loras", {}) == ["a"]
    await backend.call("remove_lora", {"name": "a"})
    assert await backend.call("update_weights", {"method": "m"}) == [{"method": "m"}]


async def test_what_a_held_job_is_refused_for_fails_it_after_the_resume() -> None:
    backend = FakeBackend()
    await backend.call("pause", {"mode": PauseMode.KEEP})
    backend.submit(task("a", Script(then=Then.REFUSE)))
    await backend.call("resume", {})
    _, failed = await backend.next_outputs()
    assert isinstance(failed, JobFailed)
