"""The backend of the benchmarks is a backend like any other, and gives one output for each job and step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from podium.core.events import JobOutput
from podium.core.identity import MAIN, JobKey
from podium.payloads import Text
from podium.ports.stage_backend import BackendDead, StageBackend, StageTask
from podium.testing.backend_conformance import BackendConformance, SampleJob
from podium.testing.instant_backend import FINISH, HANG, HOLD, PIECE, InstantBackend, InstantOptions

FIRST, SECOND = (JobKey(name, "stage", MAIN, 0) for name in ("r1", "r2"))


def task(job: JobKey, *inputs: object, input_open: bool = False) -> StageTask:
    return StageTask(job=job, inputs=inputs, params=None, input_open=input_open, priority=0, deadline=None)


class TestConformance(BackendConformance):
    def make_backend(self) -> InstantBackend:
        return InstantBackend(options=self.options())

    def options(self) -> InstantOptions:
        return InstantOptions(outputs=0)

    def sample(self, number: int) -> SampleJob:
        items = number % 5 + 1
        return SampleJob((Text("word"),) * items, Text(PIECE.text * items))

    def long_sample(self) -> SampleJob:
        return SampleJob((Text("a"), Text("b"), HOLD))

    def failing_sample(self) -> None:
        return None

    def count_jobs(self, backend: StageBackend) -> int:
        assert isinstance(backend, InstantBackend)
        return backend.jobs


async def test_each_step_has_one_output_of_each_job() -> None:
    backend = InstantBackend(options=InstantOptions(outputs=2))
    backend.submit(task(FIRST, "prompt"))
    backend.submit(task(SECOND, "prompt"))
    assert await backend.next_outputs() == [JobOutput(FIRST, 0, (PIECE,)), JobOutput(SECOND, 0, (PIECE,))]
    assert await backend.next_outputs() == [
        JobOutput(FIRST, 1, (PIECE,), FINISH),
        JobOutput(SECOND, 1, (PIECE,), FINISH),
    ]
    assert (backend.given, backend.steps, backend.jobs) == (4, 2, 0)


async def test_behind_a_stream_it_gives_one_output_for_each_item() -> None:
    backend = InstantBackend(options=InstantOptions(outputs=0))
    backend.submit(task(FIRST, "a", input_open=True))
    assert await backend.next_outputs() == [JobOutput(FIRST, 0, (PIECE,))]
    backend.feed(FIRST, ("b", "c"))
    backend.end_input(FIRST)
    assert await backend.next_outputs() == [JobOutput(FIRST, 1, (PIECE,))]
    assert await backend.next_outputs() == [JobOutput(FIRST, 2, (PIECE,), FINISH)]


async def test_an_end_behind_the_last_output_is_a_finish_of_its_own() -> None:
    backend = InstantBackend(options=InstantOptions(outputs=0))
    backend.submit(task(FIRST, "a", input_open=True))
    assert await backend.next_outputs() == [JobOutput(FIRST, 0, (PIECE,))]
    backend.end_input(FIRST)
    assert await backend.next_outputs() == [JobOutput(FIRST, 1, (), FINISH)]


async def test_a_fixed_number_of_outputs_comes_when_the_input_is_complete() -> None:
    backend = InstantBackend(options=InstantOptions(outputs=1))
    backend.submit(task(FIRST, "a", input_open=True))
    backend.feed(FIRST, ("b",))
    backend.submit(task(SECOND, "a"))
    assert await backend.next_outputs() == [JobOutput(SECOND, 0, (PIECE,), FINISH)]
    backend.end_input(FIRST)
    assert await backend.next_outputs() == [JobOutput(FIRST, 0, (PIECE,), FINISH)]


async def test_a_held_job_gives_nothing_whatever_comes_for_it() -> None:
    backend = InstantBackend(options=InstantOptions(outputs=0))
    backend.submit(task(FIRST, HOLD, "b", input_open=True))
    backend.feed(FIRST, ("c",))
    backend.end_input(FIRST)
    backend.submit(task(SECOND, "a"))
    assert await backend.next_outputs() == [JobOutput(SECOND, 0, (PIECE,), FINISH)]
    assert backend.jobs == 1
    assert await backend.stop(FIRST) is None
    assert backend.jobs == 0


@pytest.mark.rule("ORCH-INV-230")
async def test_a_call_hangs_for_ever_and_others_do_not() -> None:
    backend = InstantBackend()
    async with asyncio.TaskGroup() as group:
        hanging = group.create_task(_raised(backend.call("collective_rpc", {"method": HANG})))
        assert await backend.call("collective_rpc", {"method": "any"}) == ["any"]
        assert not hanging.done()
        await backend.close()
    assert isinstance(hanging.result(), BackendDead)


async def _raised(call: Coroutine[object, object, object]) -> object:
    (result,) = await asyncio.gather(call, return_exceptions=True)
    return result
