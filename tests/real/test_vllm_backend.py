"""The vLLM backend on the real engine: the conformance suite, batches, stops, seeds, death, and what is left behind.

One engine serves the tests that leave it alive; those that kill or abandon one start their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import msgspec
import pytest

from podium.backends.vllm import VllmBackend, VllmOptions, VllmParams
from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.identity import MAIN, JobKey
from podium.errors import InvalidRequestError
from podium.payloads import Text, join
from podium.ports.stage_backend import BackendDead, StageBackend, StageTask
from podium.testing.backend_conformance import BackendConformance, SampleJob
from podium.testing.backend_watch import BackendWatch
from podium.testing.leftovers import child_processes
from tests.real.shared_loop import SharedLoop

OPTIONS = VllmBackend.parse_options(
    {
        "model": "podium.pipelines.voice:prepare_smollm2",
        "chat": True,
        "system_prompt": "You are a helpful assistant. Explain in two or three short sentences.",
        "dtype": "float32",
        "max_model_len": 1024,
        "kv_cache_gib": 1,
        "enforce_eager": True,
        "threads": 2,
    },
)
QUESTION = "Why is the sky blue?"
GREEDY = VllmParams(temperature=0.0, max_tokens=12)
ENDLESS = VllmParams(temperature=0.0, max_tokens=900, ignore_eos=True)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[SharedLoop, VllmBackend]]:
    """An engine that lives as long as this module's tests."""
    loop = SharedLoop()
    backend = VllmBackend("thinker", OPTIONS)
    try:
        loop.run(backend.load(), timeout_s=240)
        yield loop, backend
    finally:
        loop.run(backend.close())
        loop.close()
        assert backend.process_ids == ()


class Numbers:
    """Attempts are never used twice, not even by different tests of one engine."""

    last = 0

    @classmethod
    def key(cls) -> JobKey:
        """A job that there never was."""
        cls.last += 1
        return JobKey(f"real-{cls.last}", "thinker", MAIN, cls.last)


def ask(question: object = QUESTION, params: VllmParams = GREEDY) -> StageTask:
    return StageTask(job=Numbers.key(), inputs=(question,), params=params, input_open=False, priority=0, deadline=None)


@contextlib.asynccontextmanager
async def watched(backend: VllmBackend) -> AsyncIterator[BackendWatch]:
    """Read what `backend` delivers; no fault may be seen and no job be left."""
    watch = BackendWatch(backend)
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(watch.run())
        try:
            yield watch
        finally:
            reader.cancel()
    assert watch.faults == []
    assert backend.job_count == 0


async def answer_all(backend: VllmBackend, tasks: list[StageTask]) -> list[Text]:
    """The whole answers, from one batch."""
    async with watched(backend) as watch:
        for task in tasks:
            backend.submit(task)
        await watch.wait_end(*(task.job for task in tasks))
        assert all(isinstance(watch.ends[task.job], Finish) for task in tasks)
        wholes = [join(watch.outputs[task.job]) for task in tasks]
    return [whole for whole in wholes if isinstance(whole, Text)]


class TestConformance(BackendConformance):
    """The suite, but for load and close: those have tests of their own below."""

    limit_s = 100.0
    many = 32

    @pytest.fixture(autouse=True)
    def use(self, shared: tuple[SharedLoop, VllmBackend]) -> None:
        self.loop, self.backend = shared
        self.first = Numbers.last + 1
        Numbers.last += 100

    def make_backend(self) -> VllmBackend:
        return self.backend

    def options(self) -> VllmOptions:
        return OPTIONS

    def key(self, number: int, *, sibling: str = MAIN, attempt: int = 0) -> JobKey:
        return JobKey(f"request-{number}", "thinker", sibling, self.first + attempt)

    def sample(self, number: int) -> SampleJob:
        return SampleJob((Text(f"What is {number} and"), f" {number}?"), None, GREEDY)

    def long_sample(self) -> SampleJob:
        return SampleJob((QUESTION,), None, ENDLESS)

    def failing_sample(self) -> SampleJob:
        return SampleJob((Text("   "),))

    def count_jobs(self, backend: StageBackend) -> int:
        assert isinstance(backend, VllmBackend)
        return backend.job_count

    def check_nothing_left(self, run: Callable[[], Coroutine[object, object, None]]) -> None:
        self.loop.run(run(), self.limit_s)

    @contextlib.asynccontextmanager
    async def loaded(self) -> AsyncIterator[tuple[StageBackend, BackendWatch]]:
        async with watched(self.backend) as watch:
            yield self.backend, watch

    async def settle(self) -> None:
        await asyncio.sleep(0.3)  # several steps of this engine

    def test_close_ends_calls_that_wait(self) -> None:
        pytest.skip("this engine is shared")

    def test_close_ends_running_jobs_and_may_be_repeated(self) -> None:
        pytest.skip("this engine is shared")

    def test_close_is_safe_before_and_during_load(self) -> None:
        pytest.skip("this engine is shared")

    def test_close_is_safe_after_a_cancelled_load(self) -> None:
        pytest.skip("this engine is shared")


def test_the_answer_is_about_the_question(shared: tuple[SharedLoop, VllmBackend]) -> None:
    loop, backend = shared
    (answer,) = loop.run(answer_all(backend, [ask(params=VllmParams(temperature=0.0, max_tokens=30))]))
    assert "sky" in answer.text.lower()
    assert len(answer.token_ids) <= 30


@pytest.mark.rule("ORCH-INV-103")
def test_sixteen_at_once_get_what_each_gets_alone(shared: tuple[SharedLoop, VllmBackend]) -> None:
    loop, backend = shared
    questions = [f"What is the number {number} good for?" for number in range(16)]
    together = loop.run(answer_all(backend, [ask(question) for question in questions]))
    assert len({answer.text for answer in together}) > 8
    for number in (3, 11):
        assert loop.run(answer_all(backend, [ask(questions[number])])) == [together[number]]


def test_a_seed_gives_the_same_text_again(shared: tuple[SharedLoop, VllmBackend]) -> None:
    loop, backend = shared

    def sampled(seed: int) -> VllmParams:
        return VllmParams(temperature=1.0, max_tokens=16, seed=seed)

    first, other = loop.run(answer_all(backend, [ask(params=sampled(1)), ask(params=sampled(2))]))
    (again,) = loop.run(answer_all(backend, [ask(params=sampled(1))]))
    assert first == again
    assert first != other


def test_messages_and_token_ids_are_prompts_too(shared: tuple[SharedLoop, VllmBackend]) -> None:
    """The system prompt of the options stands before messages that have none; token ids are taken as they are."""
    loop, backend = shared
    system = {"role": "system", "content": OPTIONS.system_prompt}
    user = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    plain, chat, whole_chat, tokens = loop.run(
        answer_all(backend, [ask(), ask([user]), ask((system, user)), ask((4898, 314, 260, 6376))]),
    )
    assert plain == chat == whole_chat
    assert tokens.text
    assert tokens != plain


def test_a_stop_text_ends_the_answer_before_it(shared: tuple[SharedLoop, VllmBackend]) -> None:
    loop, backend = shared

    async def test() -> None:
        async with watched(backend) as watch:
            task = ask(params=VllmParams(temperature=0.0, max_tokens=60, stop="blue"))
            backend.submit(task)
            await watch.wait_end(task.job)
            end = watch.ends[task.job]
            assert isinstance(end, Finish)
            assert end.reason is FinishReason.STOP
            whole = join(watch.outputs[task.job])
            assert isinstance(whole, Text)
            assert "sky" in whole.text
            assert "blue" not in whole.text

    loop.run(test())


@pytest.mark.rule("ORCH-INV-206", "ORCH-INV-205")
@pytest.mark.case("B015")
def test_a_stop_mid_answer_returns_the_prefix_of_the_whole(shared: tuple[SharedLoop, VllmBackend]) -> None:
    """Also while text is held back because it may become a stop text; and the engine has really stopped."""
    loop, backend = shared
    params = VllmParams(temperature=0.0, max_tokens=30, stop="a text that does not come")

    async def test() -> Text:
        async with watched(backend) as watch:
            task = ask(params=params)
            backend.submit(task)
            await watch.wait_outputs(task.job, 8)
            assert task.job not in watch.ends
            partial = await watch.stop(task.job)
            assert await backend.stop(task.job) is None
            assert isinstance(partial, Text)
            delivered = join(watch.outputs[task.job])
            assert isinstance(delivered, Text)
            assert partial.text.startswith(delivered.text)
            assert len(partial.text) > len(delivered.text), "what was held back is missing"
            assert partial.token_ids[: len(delivered.token_ids)] == delivered.token_ids
            return partial

    partial = loop.run(test())
    (whole,) = loop.run(answer_all(backend, [ask(params=params)]))
    assert whole.text.startswith(partial.text)
    assert whole.token_ids[: len(partial.token_ids)] == partial.token_ids


def test_sixteen_stops_at_once(shared: tuple[SharedLoop, VllmBackend]) -> None:
    loop, backend = shared

    async def test() -> None:
        async with watched(backend) as watch:
            tasks = [ask(f"Tell me about {number}.", ENDLESS) for number in range(16)]
            for task in tasks:
                backend.submit(task)
            await watch.wait_outputs(tasks[-1].job, 3)
            partials = await asyncio.gather(*(watch.stop(task.job) for task in tasks))
            for task, partial in zip(tasks, partials, strict=True):
                assert isinstance(partial, Text)
                delivered = join(watch.outputs[task.job])
                assert delivered is None or (isinstance(delivered, Text) and partial.text.startswith(delivered.text))
            assert await backend.call("check_health", {}) is True

    loop.run(test())


@pytest.mark.rule("ORCH-INV-201")
def test_what_the_model_cannot_take_is_its_clients_fault(shared: tuple[SharedLoop, VllmBackend]) -> None:
    loop, backend = shared

    async def refuse(task: StageTask) -> InvalidRequestError:
        with pytest.raises(InvalidRequestError) as caught:
            backend.submit(task)
        assert caught.value.status == 400
        return caught.value

    long = loop.run(refuse(ask("word " * 2000)))
    assert "tokens; this model takes at most 1023" in str(long)
    assert "takes at most 1023 tokens" in str(loop.run(refuse(ask("x" * 5_000_000))))
    assert "token id 49152 is not in the model's vocabulary" in str(loop.run(refuse(ask((1, 49152)))))
    assert "49200" in str(loop.run(refuse(ask(params=VllmParams(stop_token_ids=(49200,))))))
    assert backend.job_count == 0


def test_calls(shared: tuple[SharedLoop, VllmBackend]) -> None:
    loop, backend = shared
    assert loop.run(backend.call("check_health", {})) is True
    assert loop.run(backend.call("reset_prefix_cache", {})) is True


def test_an_interrupt_of_the_terminal_does_not_reach_the_engine(shared: tuple[SharedLoop, VllmBackend]) -> None:
    """Ctrl-C goes to every process of a terminal; the engine lives on and hands over what there is."""
    loop, backend = shared
    for process in backend.process_ids:
        os.kill(process, signal.SIGINT)
    (answer,) = loop.run(answer_all(backend, [ask()]))
    assert answer.text


@pytest.mark.rule("ORCH-INV-202", "ORCH-INV-302")
@pytest.mark.parametrize("victim", ["EngineCore", "Worker"])
def test_a_killed_process_is_the_death_of_the_backend_and_leaves_nothing(victim: str) -> None:
    before = child_processes()

    async def test() -> None:
        backend = VllmBackend("thinker", OPTIONS)
        try:
            await backend.load()
            task = ask(params=ENDLESS)
            backend.submit(task)
            await backend.next_outputs()
            processes = backend.process_ids
            os.kill(next(pid for pid in processes if victim in title_of(pid)), signal.SIGKILL)
            killed_at = time.monotonic()
            with pytest.raises(BackendDead, match="the vLLM engine of stage 'thinker' died"):
                await read_on(backend)
            assert time.monotonic() - killed_at < 5.0
            with pytest.raises(BackendDead):
                await backend.stop(task.job)
            with pytest.raises(BackendDead):
                backend.submit(ask())
        finally:
            await backend.close()
        await backend.close()
        assert [pid for pid in processes if is_running(pid)] == []

    asyncio.run(test())
    assert {pid for pid in child_processes() - before if not is_resource_tracker(pid)} == set()


@pytest.mark.rule("ORCH-INV-301", "ORCH-INV-302")
def test_a_load_that_is_cancelled_half_way_leaves_no_process() -> None:
    before = child_processes()

    def engine_processes() -> set[int]:
        return {pid for pid in child_processes() - before if not is_resource_tracker(pid)}

    async def test() -> None:
        backend = VllmBackend("thinker", OPTIONS)
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(backend.load())
            while not any("EngineCore" in title_of(pid) for pid in engine_processes()):
                assert not loading.done()
                await asyncio.sleep(0.1)
            await asyncio.sleep(2.0)
            loading.cancel()
        assert loading.cancelled()
        await backend.close()

    asyncio.run(test())
    assert engine_processes() == set()


PARENT = """
import asyncio, sys
from podium.backends.vllm import VllmBackend, VllmOptions
import msgspec

async def main():
    backend = VllmBackend("thinker", msgspec.json.decode(sys.argv[1], type=VllmOptions))
    await backend.load()
    print(*backend.process_ids, flush=True)
    sys.stdin.read()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.rule("ORCH-INV-303")
def test_an_engine_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), msgspec.json.encode(OPTIONS).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        assert all(map(is_running, processes))
        parent.kill()
    deadline = time.monotonic() + 15.0
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = list(filter(is_running, processes))
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []


async def read_on(backend: VllmBackend) -> None:
    """Read unfinished outputs until something is raised."""
    while True:
        for output in await backend.next_outputs():
            assert isinstance(output, JobOutput)
            assert output.finish is None


def title_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def is_resource_tracker(process: int) -> bool:
    """Python's own helper process, which stays until this process ends."""
    return "resource_tracker" in title_of(process)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
