"""Control calls on the real engine, beyond what the conformance suite asks of every backend (see test_vllm_backend).

One engine serves all tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from podium.backends.vllm import VllmBackend, VllmParams
from podium.core.events import Finish, FinishReason
from podium.core.identity import JobKey, Payload
from podium.core.operations import PauseMode
from podium.errors import ControlError, ControlRejectedError, InvalidRequestError, UnsupportedError
from podium.payloads import Text, join
from podium.prompts import Continuation
from podium.testing.backend_watch import BackendWatch
from tests.real.shared_loop import SharedLoop
from tests.real.test_vllm_backend import OPTIONS, QUESTION, answer_all, ask, watched

WEIGHTS = "podium.backends.vllm.weights:"
NORM = "model.norm.weight"
LENGTH = 24
GREEDY = VllmParams(temperature=0.0, max_tokens=LENGTH)
LONG = VllmParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
T = TypeVar("T")

pytestmark = pytest.mark.timeout(300)


class Engine:
    """The engine of this module, and the answer that it gives when nothing happens."""

    def __init__(self, profiles: Path) -> None:
        self.profiles = profiles
        self._loop = SharedLoop()
        self.backend = VllmBackend("thinker", msgspec.structs.replace(OPTIONS, profile_dir=str(profiles)))

    def start(self) -> None:
        self.run(self.backend.load())
        self.whole = self.answer()

    def close(self) -> None:
        self.run(self.backend.close())
        self._loop.close()
        assert self.backend.process_ids == ()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self._loop.run(work, 240)

    def answer(self, prompt: object = QUESTION, params: VllmParams = GREEDY) -> Text:
        (answer,) = self.run(answer_all(self.backend, [ask(prompt, params)]))
        return answer

    def call(self, method: str, /, **arguments: Payload) -> Payload:
        return self.run(self.backend.call(method, arguments))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("profiles"))
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


async def begin(backend: VllmBackend, watch: BackendWatch) -> JobKey:
    """A job that has given five outputs."""
    task = ask(params=LONG)
    backend.submit(task)
    await watch.wait_outputs(task.job, 5)
    return task.job


def continued(engine: Engine, prefix: Text) -> tuple[int, ...]:
    """The prefix, and what comes when its answer goes on from there."""
    rest = VllmParams(temperature=0.0, max_tokens=LENGTH - len(prefix.token_ids))
    return prefix.token_ids + engine.answer(Continuation(QUESTION, prefix.token_ids), rest).token_ids


@pytest.mark.rule("ORCH-INV-239", "ORCH-INV-205")
@pytest.mark.parametrize("order", ["stop, pause", "pause, stop", "pause(abort)"])
def test_prefixes_are_delivered_in_either_order_and_go_on_as_if_nothing_had_been(engine: Engine, order: str) -> None:
    backend = engine.backend

    async def test() -> Text:
        async with watched(backend) as watch:
            job = await begin(backend, watch)
            if order == "stop, pause":
                prefix = await watch.stop(job)
                await backend.call("pause", {"mode": PauseMode.ABORT})
            elif order == "pause, stop":
                await backend.call("pause", {"mode": PauseMode.KEEP})
                prefix = await watch.stop(job)
            else:
                await backend.call("pause", {"mode": PauseMode.ABORT})
                end = watch.ends[job]
                assert isinstance(end, Finish)
                assert end.reason is FinishReason.ABORT
                prefix = join(watch.outputs[job])
            assert await backend.call("reset_prefix_cache", {}) is True
            await backend.call("resume", {})
            assert isinstance(prefix, Text)
            return prefix

    prefix = engine.run(test())
    assert 5 <= len(prefix.token_ids) < LENGTH
    assert continued(engine, prefix) == engine.whole.token_ids


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-237")
@pytest.mark.case("B108")
def test_a_frozen_job_goes_on_with_the_very_same_tokens(engine: Engine) -> None:
    """Also when the cache was emptied meanwhile, while other calls came and went, and behind a level of sleep."""
    backend = engine.backend

    async def test() -> Payload:
        async with watched(backend) as watch:
            job = await begin(backend, watch)
            await backend.call("pause", {"mode": PauseMode.KEEP})
            count = len(watch.outputs[job])
            for method in ("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache", "check_health"):
                assert await backend.call(method, {}) is True
            await backend.call("sleep", {"level": 0, "tags": ("scheduling",)})
            with pytest.raises(ControlRejectedError, match="wake it up first"):
                await backend.call("resume", {})
            await backend.call("wake_up", {"tags": ("scheduling",)})
            await asyncio.sleep(0.5)
            assert len(watch.outputs[job]) == count, "it went on before the resume"
            await backend.call("resume", {})
            await watch.wait_end(job)
            return join(watch.outputs[job])

    assert engine.run(test()) == engine.whole


@pytest.mark.rule("ORCH-INV-233", "ORCH-INV-231")
def test_memory_does_not_sleep_on_a_cpu(engine: Engine) -> None:
    """vLLM's CPU build would answer "ok", and do nothing."""
    assert VllmBackend.capabilities.sleep_levels == {0: frozenset({"scheduling"})}
    engine.call("pause", mode=PauseMode.WAIT)
    for level in (1, 2):
        with pytest.raises(UnsupportedError, match=f"cannot sleep at level {level}; it can at: 0"):
            engine.call("sleep", level=level, tags=())
    engine.call("resume")


@pytest.mark.rule("ORCH-INV-234")
@pytest.mark.case("B056")
def test_memory_that_comes_back_starts_nothing(engine: Engine) -> None:
    """vLLM itself resumes when the last tag is awake. Its CPU build takes the calls, so that this can be seen here."""
    backend = engine.backend

    async def test() -> Payload:
        async with watched(backend) as watch:
            job = await begin(backend, watch)
            await backend.call("pause", {"mode": PauseMode.KEEP})
            count = len(watch.outputs[job])
            await backend.engine().sleep(1)
            for tag in ("weights", "kv_cache"):
                await backend.engine().wake_up([tag])
                await asyncio.sleep(0.5)
                assert len(watch.outputs[job]) == count, "a wake-up is no resume"
            await backend.call("resume", {})
            await watch.wait_end(job)
            return join(watch.outputs[job])

    assert engine.run(test()) == engine.whole


@pytest.mark.rule("ORCH-INV-238", "ORCH-INV-239")
@pytest.mark.case("B014")
def test_weights_are_changed_in_place_and_put_back(engine: Engine) -> None:
    """The answer is another one with other weights, and the very same with the old ones; the bits say so, too."""
    before = engine.call("collective_rpc", method=f"{WEIGHTS}digest")
    engine.call("pause", mode=PauseMode.ABORT)
    engine.call("update_weights", method=f"{WEIGHTS}keep", args=(NORM,))
    engine.call("update_weights", method=f"{WEIGHTS}perturb", kwargs={"name": NORM, "amount": 0.5, "seed": 1})
    engine.call("reset_prefix_cache")
    engine.call("resume")
    assert engine.call("collective_rpc", method=f"{WEIGHTS}digest") != before
    assert engine.answer() != engine.whole
    engine.call("pause", mode=PauseMode.ABORT)
    assert engine.call("update_weights", method=f"{WEIGHTS}restore") == [[NORM]]
    engine.call("reset_prefix_cache")
    engine.call("resume")
    assert engine.call("collective_rpc", method=f"{WEIGHTS}digest") == before
    assert engine.answer() == engine.whole


@pytest.mark.rule("ORCH-INV-231", "ORCH-INV-230")
@pytest.mark.case("B045")
def test_workers_are_called_and_what_they_raise_is_told(engine: Engine) -> None:
    """Beside an answer that is under way; and the engine lives on."""
    assert engine.call("collective_rpc", method="check_health") == [None]
    names = engine.call("collective_rpc", method=f"{WEIGHTS}names", kwargs={"pattern": "*layers.0.*norm*"})
    assert names == [["model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight"]]
    for method, reason in {
        "no_such_method": "worker 0: AttributeError: the worker has no method 'no_such_method'",
        "no.such:function": "worker 0: ModuleNotFoundError: No module named 'no'",
        f"{WEIGHTS}restore": "worker 0: TypeError",
        "get_model": "returned a LlamaForCausalLM that cannot be sent",
    }.items():
        with pytest.raises(ControlError, match=reason) as caught:
            engine.call("collective_rpc", method=method, kwargs={"x": 1} if method.endswith("restore") else {})
        assert not isinstance(caught.value, UnsupportedError)
    with pytest.raises(InvalidRequestError, match="the arguments cannot be sent"):
        engine.call("collective_rpc", method="check_health", args=(object(),))

    async def beside() -> None:
        async with watched(engine.backend) as watch:
            job = await begin(engine.backend, watch)
            assert await engine.backend.call("collective_rpc", {"method": "check_health"}) == [None]
            assert job not in watch.ends
            await watch.wait_end(job)

    engine.run(beside())


def test_a_profile_is_written(engine: Engine) -> None:
    with pytest.raises(ControlRejectedError, match="is not profiled"):
        engine.call("stop_profile")
    engine.call("start_profile")
    with pytest.raises(ControlRejectedError, match="is profiled already"):
        engine.call("start_profile")
    engine.answer(params=VllmParams(temperature=0.0, max_tokens=1))
    engine.call("stop_profile")
    assert [path for path in engine.profiles.rglob("*") if path.is_file()]
