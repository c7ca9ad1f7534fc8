"""The vLLM backend's own work, on a stand-in for the engine: order, batches, stops that are confirmed, death, close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence

import msgspec
import pytest

from podium.backends.vllm import VllmBackend, VllmOptions, VllmParams
from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.identity import MAIN, JobKey
from podium.errors import ErrorKind, InvalidRequestError, StartError, StopUnconfirmedError
from podium.payloads import Text, join
from podium.ports.stage_backend import BackendDead, BackendOutput, JobFailed, LoadReport, StageBackend, StageTask
from podium.testing.backend_conformance import BackendConformance, SampleJob
from tests.backends.fake_vllm import FakeEngine, FakeStart, Plan

OPTIONS = VllmOptions(model="somewhere")
FIRST, SECOND = JobKey("r1", "thinker", MAIN, 1), JobKey("r2", "thinker", MAIN, 2)
ENDLESS = Plan(None)


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every backend of this module gets a FakeEngine."""

    class Start(FakeStart):
        def run(self) -> FakeEngine:
            self.engine = FakeEngine()
            return super().run()

    monkeypatch.setattr("podium.backends.vllm.backend.Start", Start)
    monkeypatch.setattr("podium.backends.vllm.backend.client_errors", lambda: (ValueError,))


class TestConformance(BackendConformance):
    def make_backend(self) -> VllmBackend:
        return VllmBackend("thinker", OPTIONS)

    def options(self) -> VllmOptions:
        return OPTIONS

    def sample(self, number: int) -> SampleJob:
        return SampleJob((Plan((f"<{number}", ",", ">")),), Text(f"<{number},>"))

    def long_sample(self) -> SampleJob:
        return SampleJob((ENDLESS,))

    def failing_sample(self) -> SampleJob:
        return SampleJob((Plan(("a", "b"), finish="error"),))

    def count_jobs(self, backend: StageBackend) -> int:
        assert isinstance(backend, VllmBackend)
        return backend.job_count


class TestRefusingConformance(TestConformance):
    def failing_sample(self) -> SampleJob:
        return SampleJob((Plan(()),))


def task(job: JobKey, plan: object, params: VllmParams | None = None) -> StageTask:
    return StageTask(job=job, inputs=(plan,), params=params, input_open=False, priority=0, deadline=None)


async def loaded(monkeypatch: pytest.MonkeyPatch, options: VllmOptions = OPTIONS) -> tuple[VllmBackend, FakeEngine]:
    engine = FakeEngine()

    class Start(FakeStart):
        def run(self) -> FakeEngine:
            return engine

    monkeypatch.setattr("podium.backends.vllm.backend.Start", Start)
    backend = VllmBackend("thinker", options)
    await backend.load()
    return backend, engine


async def read_until_end(backend: VllmBackend, job: JobKey) -> list[BackendOutput]:
    seen: list[BackendOutput] = []
    while True:
        for output in await backend.next_outputs():
            if not isinstance(output, LoadReport) and output.job == job:
                seen.append(output)
                if isinstance(output, JobFailed) or (isinstance(output, JobOutput) and output.finish):
                    return seen


def pieces_of(outputs: Sequence[BackendOutput], job: JobKey) -> list[object]:
    return [
        piece for output in outputs if isinstance(output, JobOutput) and output.job == job for piece in output.payloads
    ]


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.rule("ORCH-INV-103", "ORCH-INV-106")
async def test_a_job_ends_with_its_reason_and_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = await loaded(monkeypatch)
    backend.submit(task(FIRST, Plan(("Hello", " you"), finish="length")))
    outputs = await read_until_end(backend, FIRST)
    last = outputs[-1]
    assert isinstance(last, JobOutput)
    assert last.finish == Finish(FinishReason.LENGTH, {"prompt_tokens": 3, "completion_tokens": 9})
    whole = join(pieces_of(outputs, FIRST))
    assert whole == Text("Hello you", tuple(map(ord, "Hello you")))
    await backend.close()


async def test_steps_that_nobody_took_yet_come_as_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    backend.submit(task(FIRST, Plan(("a", "b", "c"))))
    await settle()
    assert engine.received == 3
    (output,) = await backend.next_outputs()
    assert isinstance(output, JobOutput)
    assert [piece.text for piece in output.payloads if isinstance(piece, Text)] == ["a", "b", "c"]
    await backend.close()


async def test_tokens_without_text_come_with_the_text_they_become(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = await loaded(monkeypatch)
    backend.submit(task(FIRST, Plan(("", "é", ""))))
    outputs = await read_until_end(backend, FIRST)
    assert pieces_of(outputs, FIRST) == [Text("é", (0, 233)), Text("", (0,))]
    await backend.close()


@pytest.mark.rule("ORCH-INV-201", "ORCH-INV-004")
async def test_a_prompt_that_vllm_refuses_is_its_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    with pytest.raises(InvalidRequestError, match="cannot tokenize 42") as caught:
        backend.submit(task(FIRST, 42))
    assert caught.value.status == 400
    assert backend.job_count == 0
    assert not engine.registered
    backend.submit(task(SECOND, Plan(("ok",))))
    await read_until_end(backend, SECOND)
    await backend.close()


async def test_input_in_pieces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = await loaded(monkeypatch)
    open_task = StageTask(job=FIRST, inputs=(), params=None, input_open=True, priority=0, deadline=None)
    with pytest.raises(InvalidRequestError, match="as a whole"):
        backend.submit(open_task)
    backend.submit(task(FIRST, ENDLESS))
    with pytest.raises(ValueError, match="takes no more input"):
        backend.feed(FIRST, ("more",))
    with pytest.raises(ValueError, match="runs already"):
        backend.submit(task(FIRST, ENDLESS))
    await backend.close()


@pytest.mark.rule("ORCH-INV-206", "ORCH-INV-205")
@pytest.mark.case("B015")
async def test_a_stop_commits_only_once_the_engine_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    backend.submit(task(FIRST, ENDLESS))
    streamed = pieces_of(await backend.next_outputs(), FIRST)
    engine.hold_confirmations()
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(backend.stop(FIRST))
        await settle()
        assert engine.sent == [f"add {FIRST}", f"abort {FIRST}"]
        assert not stop.done()
        assert list(engine.registered) == [f"{FIRST}-internal"], "forgotten before the stop was confirmed"
        engine.confirm_all()
        streamed += pieces_of(await backend.next_outputs(), FIRST)
    assert not engine.registered
    assert stop.result() == join(streamed)
    assert backend.job_count == 0
    assert await backend.stop(FIRST) is None
    await backend.close()


@pytest.mark.rule("ORCH-INV-206")
async def test_a_stop_that_failed_can_be_repeated_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    backend.submit(task(FIRST, ENDLESS))
    streamed = pieces_of(await backend.next_outputs(), FIRST)
    engine.unconfirmable = RuntimeError("the worker does not answer")
    with pytest.raises(RuntimeError, match="does not answer"):
        await backend.stop(FIRST)
    assert list(engine.registered) == [f"{FIRST}-internal"]
    assert backend.job_count == 1
    engine.unconfirmable = None
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(backend.stop(FIRST))
        await settle()
        if not stop.done():
            streamed += pieces_of(await backend.next_outputs(), FIRST)
    assert stop.result() == join(streamed)
    assert backend.job_count == 0
    await backend.close()


@pytest.mark.rule("ORCH-INV-204", "ORCH-INV-206")
async def test_a_stop_that_is_not_confirmed_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch, VllmOptions(model="somewhere", stop_timeout_s=1e-9))
    backend.submit(task(FIRST, ENDLESS))
    engine.hold_confirmations()
    with pytest.raises(StopUnconfirmedError, match=r"did not confirm within 1e-09 s that it stopped 'r1'") as caught:
        await backend.stop(FIRST)
    assert caught.value.record.awaited == "stop confirmation"
    assert caught.value.unconfirmed == ("r1",)
    assert backend.job_count == 1
    await backend.close()


async def test_a_stop_returns_the_text_that_was_held_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    engine.may_step = False
    engine.held_back[f"{FIRST}-internal"] = ("held", (7,))
    backend.submit(task(FIRST, ENDLESS))
    assert await backend.stop(FIRST) == Text("held", (7,))
    await backend.close()


@pytest.mark.rule("ORCH-INV-100")
async def test_a_job_that_ends_while_it_is_stopped_keeps_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    engine.may_step = False
    backend.submit(task(FIRST, Plan(("all", " of", " it"))))
    engine.hold_confirmations()
    plan = engine.registered[f"{FIRST}-internal"]
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(backend.stop(FIRST))
        await settle()
        engine.core[f"{FIRST}-internal"] = (plan, 0)  # what was in flight when the abort came
        engine.step()
        outputs = await read_until_end(backend, FIRST)
        engine.confirm_all()
    assert isinstance(outputs[-1], JobOutput)
    assert outputs[-1].finish is not None
    assert outputs[-1].finish.reason is FinishReason.STOP
    whole = join(pieces_of(outputs, FIRST))
    assert stop.result() == whole
    assert isinstance(whole, Text)
    assert whole.text == "all of it"
    assert backend.job_count == 0
    await backend.close()


@pytest.mark.rule("ORCH-INV-210")
async def test_a_stop_right_after_the_submission_leaves_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    engine.may_step = False
    for job in (FIRST, SECOND):
        backend.submit(task(job, ENDLESS))
    await asyncio.gather(backend.stop(SECOND), backend.stop(FIRST))
    assert engine.sent == [f"add {FIRST}", f"add {SECOND}", f"abort {SECOND}", f"abort {FIRST}"]
    assert not engine.core
    await backend.close()


async def test_a_stop_text_that_only_the_output_processor_saw_is_aborted_in_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, engine = await loaded(monkeypatch)
    backend.submit(task(FIRST, Plan(("a", "b"), meets_stop_text=True)))
    await read_until_end(backend, FIRST)
    await settle()
    assert engine.sent == [f"add {FIRST}", f"abort {FIRST}"]
    assert not engine.core
    await backend.close()


@pytest.mark.rule("ORCH-INV-201")
async def test_a_request_that_cannot_be_sent_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    engine.unsendable.add(str(FIRST))
    backend.submit(task(FIRST, ENDLESS))
    (failed,) = await read_until_end(backend, FIRST)
    assert isinstance(failed, JobFailed)
    assert failed.error.kind is ErrorKind.STAGE_FAILED
    assert failed.error.message == "the prompt could not be sent to vLLM: the pipe is full"
    assert not engine.registered
    backend.submit(task(SECOND, Plan(("ok",))))
    await read_until_end(backend, SECOND)
    await backend.close()


@pytest.mark.rule("ORCH-INV-202", "ORCH-INV-304")
async def test_death_reaches_everybody_after_the_last_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    backend.submit(task(FIRST, Plan(("last",))))
    await settle()
    backend.submit(task(SECOND, ENDLESS))
    engine.may_step = False
    engine.hold_confirmations()
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(_outcome(backend.stop(SECOND)))
        await settle()
        engine.die(ConnectionError("EngineCore is gone"))
    assert isinstance(stop.result(), BackendDead)
    outputs = await backend.next_outputs()
    assert [output.job for output in outputs if isinstance(output, JobOutput)] == [FIRST]
    with pytest.raises(BackendDead, match="stage 'thinker' died: EngineCore is gone"):
        await backend.next_outputs()
    with pytest.raises(BackendDead):
        backend.submit(task(FIRST, ENDLESS))
    with pytest.raises(BackendDead):
        await backend.call("check_health", {})
    await backend.close()
    assert engine.is_shut_down


async def _outcome(stop: Coroutine[object, object, Text | None]) -> Text | BaseException | None:
    outcomes = await asyncio.gather(stop, return_exceptions=True)
    return outcomes[0]


async def test_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = await loaded(monkeypatch)
    assert await backend.call("check_health", {}) is True
    assert await backend.call("reset_prefix_cache", {}) is True
    with pytest.raises(InvalidRequestError, match=r"check_health\.a: is unknown"):
        await backend.call("check_health", {"a": 1})
    await backend.close()


@pytest.mark.rule("ORCH-INV-302")
async def test_a_cancelled_load_abandons_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned = threading.Event()

    class Start(FakeStart):
        hangs = True

        def abandon(self) -> float:
            abandoned.set()
            return super().abandon()

    monkeypatch.setattr("podium.backends.vllm.backend.Start", Start)
    backend = VllmBackend("thinker", OPTIONS)
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(backend.load())
        await settle()
        loading.cancel()
    assert loading.cancelled()
    assert abandoned.is_set()
    with pytest.raises(BackendDead):
        await backend.next_outputs()
    await backend.close()


@pytest.mark.rule("ORCH-INV-301")
async def test_a_failed_load_says_why_and_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Start(FakeStart):
        def run(self) -> FakeEngine:
            raise StartError("thinker", "vLLM is not installed; install it")

    monkeypatch.setattr("podium.backends.vllm.backend.Start", Start)
    backend = VllmBackend("thinker", OPTIONS)
    with pytest.raises(StartError, match="stage 'thinker' did not start: vLLM is not installed; install it"):
        await backend.load()
    await backend.close()
    with pytest.raises(BackendDead, match="started or closed before"):
        await backend.load()


async def test_close_shuts_the_engine_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    assert backend.process_ids == (1234,)
    assert repr(backend) == "<VllmBackend thinker up jobs=0 ready=0>"
    await asyncio.gather(backend.close(), backend.close())
    assert engine.is_shut_down
    assert repr(backend) == "<VllmBackend thinker dead jobs=0 ready=0>"


@pytest.mark.rule("ORCH-INV-114")
async def test_each_sample_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, engine = await loaded(monkeypatch)
    for number, sibling in enumerate(["main", "0", "1", "1.negative"]):
        job = JobKey("r1", "thinker", sibling, number)
        backend.submit(msgspec.structs.replace(task(job, Plan(("a",))), params=VllmParams(seed=7)))
    backend.submit(msgspec.structs.replace(task(JobKey("r2", "thinker", "1", 9), Plan(("a",))), params=VllmParams()))
    assert engine.seeds == [7, 7, 8, 8, None]
    await backend.close()
