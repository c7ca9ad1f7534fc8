"""LoRA adapters on the real engine. They make it slow on a CPU, so it is one of its own, kept small."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from podium.backends.vllm import VllmBackend, VllmParams
from podium.errors import CleanupPendingError, ControlError, ControlRejectedError, InvalidRequestError
from podium.payloads import Text
from tests.real.test_vllm_backend import OPTIONS, QUESTION, answer_all, ask, watched

SMALL = msgspec.structs.replace(
    OPTIONS, max_loras=1, max_model_len=256, max_num_seqs=2, engine_args={"max_num_batched_tokens": 256}
)
PLAIN = VllmParams(temperature=0.0, max_tokens=6)
STYLED = VllmParams(temperature=0.0, max_tokens=6, lora="style")

pytestmark = pytest.mark.timeout(400)


def make_adapter(directory: Path, seed: int) -> Path:
    """A LoRA adapter of random numbers for the first layer's queries: large enough to change what is said."""
    import torch  # noqa: PLC0415 - with the engine only
    from safetensors.torch import save_file  # noqa: PLC0415 - with the engine only

    directory.mkdir()
    generator = torch.Generator().manual_seed(seed)
    name = "base_model.model.model.layers.0.mlp.down_proj"
    weights = {
        f"{name}.lora_A.weight": torch.randn(8, 1536, generator=generator),
        f"{name}.lora_B.weight": torch.randn(576, 8, generator=generator),
    }
    save_file(weights, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["down_proj"], "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


@asynccontextmanager
async def engine() -> AsyncIterator[VllmBackend]:
    backend = VllmBackend("thinker", SMALL)
    try:
        await backend.load()
        yield backend
    finally:
        await backend.close()


async def answer(backend: VllmBackend, params: VllmParams) -> Text:
    (answer,) = await answer_all(backend, [ask(QUESTION, params)])
    return answer


async def check_in_use(backend: VllmBackend) -> None:
    """An adapter stays while a job uses it."""
    async with watched(backend) as watch:
        task = ask(QUESTION, msgspec.structs.replace(STYLED, max_tokens=100, ignore_eos=True))
        backend.submit(task)
        await watch.wait_outputs(task.job)
        with pytest.raises(CleanupPendingError, match="1 jobs of stage 'thinker' use the adapter 'style'"):
            await backend.call("remove_lora", {"name": "style"})
        await watch.stop(task.job)


def test_adapters_come_and_go(tmp_path: Path) -> None:
    """One that comes again under the same name is the new one, also for prompts whose prefix is in the cache."""
    one, two, broken = make_adapter(tmp_path / "one", 1), make_adapter(tmp_path / "two", 2), tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text("{}")

    async def test() -> None:
        async with engine() as backend:
            before = await answer(backend, PLAIN)
            with pytest.raises(InvalidRequestError, match="there is no adapter 'style'"):
                backend.submit(ask(QUESTION, STYLED))
            await backend.call("add_lora", {"name": "style", "path": str(one)})
            assert await backend.call("list_loras", {}) == ["style"]
            first = await answer(backend, STYLED)
            assert first != before
            assert await answer(backend, PLAIN) == before
            with pytest.raises(ControlRejectedError, match="has 1 adapters"):
                await backend.call("add_lora", {"name": "other", "path": str(two)})
            await check_in_use(backend)
            await backend.call("remove_lora", {"name": "style"})
            assert await backend.call("list_loras", {}) == []
            await backend.call("add_lora", {"name": "style", "path": str(two)})
            assert await answer(backend, STYLED) not in (first, before)
            await backend.call("remove_lora", {"name": "style"})
            with pytest.raises(ControlError, match="could not load the adapter 'broken'"):
                await backend.call("add_lora", {"name": "broken", "path": str(broken)})
            assert await backend.call("list_loras", {}) == []
            assert await answer(backend, PLAIN) == before

    asyncio.run(test())
