"""A running vLLM engine: its core client, input processor and output processor behind the few calls a backend needs.

With `start`, the only module that knows where things are in vLLM. It decides nothing about jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from podium.backends.vllm.options import VllmParams
from podium.backends.vllm.processes import ProcessTree
from podium.backends.vllm.prompts import PromptRenderer
from podium.backends.vllm.worker_calls import RUN

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.renderers import BaseRenderer
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import OutputProcessor

_CONTEXT_END_S = 2.0


class EngineFeatures(NamedTuple):
    """What an engine was started with. `max_loras` adapters are kept; with 0 it takes none."""

    max_loras: int = 0
    can_profile: bool = False
    can_free_memory: bool = False


class Adapter(NamedTuple):
    """A LoRA adapter; `number` is its name in the engine, never used twice."""

    name: str
    number: int
    path: str


class OutputCollector:
    """Stands where vLLM keeps a queue per request, and collects for all requests."""

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []

    def put(self, output: RequestOutput) -> None:
        """Called by vLLM's output processor."""
        self._outputs.append(output)

    def take(self) -> list[RequestOutput]:
        """Everything since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs


def end_context(core: AsyncMPClient) -> None:
    """End what ZeroMQ keeps for a core client that is shut down: vLLM leaves it to the end of the process.

    It ends once the client's sockets are closed, which the client does on its loop.
    """
    end = threading.Thread(target=core.resources.ctx.term, name="vllm context end", daemon=True)
    end.start()
    end.join(_CONTEXT_END_S)


class Engine:
    """A running vLLM engine. Its methods are called on one event loop."""

    def __init__(
        self,
        *,
        core: AsyncMPClient,
        inputs: InputProcessor,
        outputs: OutputProcessor,
        renderer: BaseRenderer,
        prompts: PromptRenderer,
        features: EngineFeatures,
    ) -> None:
        self._core = core
        self._inputs = inputs
        self._outputs = outputs
        self._renderer = renderer
        self._prompts = prompts
        self.features = features
        self._collector = OutputCollector()
        self._tasks: tuple[str, ...] = ("generate",)
        self._received = 0
        self.processes = ProcessTree(core.resources.engine_manager.processes)

    def make_request(
        self, name: str, inputs: Sequence[object], params: VllmParams, adapter: Adapter | None
    ) -> EngineCoreRequest:
        """Make the request `name` of processed inputs. Raises InvalidRequestError, or what vLLM does not take."""
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415 - with the engine only

        request = self._inputs.process_inputs(
            name,
            tokens_input(self._prompts.render(inputs)),
            sampling_params(params),
            supported_tasks=self._tasks,
            lora_request=None if adapter is None else lora_request(adapter),
        )
        self._inputs.assign_request_id(request)
        return request

    def register(self, request: EngineCoreRequest) -> None:
        """Let the output processor expect outputs of a request."""
        self._outputs.add_request(request, None, None, 0, self._collector)

    async def send(self, request: EngineCoreRequest) -> None:
        """Give a request to the engine core."""
        await self._core.add_request_async(request)

    async def send_abort(self, request_ids: list[str]) -> None:
        """Tell the engine core to stop requests. Nothing confirms that by itself; `confirm` does."""
        self._core.ensure_alive()
        await self._core.abort_requests_async(request_ids)

    async def confirm(self) -> int:
        """Return once everything sent before was done and no step that was running runs any more.

        The engine core takes messages in order, and its workers do too: so an answer of the workers is behind every
        step that was scheduled before. Returns how many batches of outputs (see `received`) were made until then.
        """
        await self._core.collective_rpc_async("check_health")
        return self._made

    @property
    def _made(self) -> int:
        """How many batches of outputs came before the answer that was just received."""
        waiting: int = self._core.outputs_queue.qsize()
        return self._received + waiting

    @property
    def received(self) -> int:
        """How many batches of outputs were received."""
        return self._received

    async def receive(self) -> tuple[list[RequestOutput], list[str]]:
        """Wait for a batch of outputs; also returns the requests that met a stop text and must still be aborted."""
        batch: EngineCoreOutputs = await self._core.get_output_async()
        processed = self._outputs.process_outputs(batch.outputs, batch.timestamp, None)
        self._received += 1
        return self._collector.take(), processed.reqs_to_abort

    def forget(self, request_id: str) -> list[RequestOutput]:
        """Drop a request that was stopped; returns what the output processor had still held back of it."""
        self._outputs.abort_requests([request_id], internal=True)
        return self._collector.take()

    def fail_calls(self, error: Exception) -> None:
        """Fail the calls that a dead engine core will never answer."""
        calls = dict(self._core.utility_results)
        self._core.utility_results.clear()
        for call in calls.values():
            if not call.done():
                call.set_exception(error)

    async def pause(self, mode: Literal["abort", "keep"]) -> int:
        """Let the scheduler start nothing; return when no step runs any more: how many batches there were until then.

        `abort` ends everything in the engine, and its outputs say so; with `keep` it stands still.
        """
        await self._core.pause_scheduler_async(mode, clear_cache=False)
        return self._made

    async def resume(self) -> None:
        """Let the scheduler work again."""
        await self._core.resume_scheduler_async()

    async def sleep(self, level: int) -> None:
        """Pause as with `keep`, and give up memory as vLLM's `level` says; at 0 none."""
        if level:
            await self._renderer.clear_mm_cache_async()
        await self._core.sleep_async(level, "keep")

    async def wake_up(self, tags: Sequence[str]) -> None:
        """Take memory back. The scheduler stays as it is (see the guard)."""
        await self._core.wake_up_async(list(tags))

    async def reset_prefix_cache(self, *, with_running: bool) -> bool:
        """Empty the cache of prompt prefixes; says whether it could.

        What running requests hold keeps it from that, unless `with_running` makes them compute theirs anew.
        """
        return bool(await self._core.reset_prefix_cache_async(with_running, with_running))

    async def reset_mm_cache(self) -> None:
        """Empty the caches of processed pictures and sounds, on both sides."""
        await self._renderer.clear_mm_cache_async()
        await self._core.reset_mm_cache_async()

    async def reset_encoder_cache(self) -> None:
        """Empty the cache of encoder outputs."""
        await self._core.reset_encoder_cache_async()

    async def run_in_workers(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> list[tuple[bool, object]]:
        """Call a method in each worker: True and its value, or False and what went wrong, worker by worker."""
        answers = await self._core.collective_rpc_async(RUN, None, (method, tuple(args), dict(kwargs)))
        return [(is_ok, value) for is_ok, value in answers]

    async def profile(self, *, is_start: bool) -> None:
        """Start or stop the profiler of each worker; stopping writes what it has seen."""
        await self._core.profile_async(is_start)

    async def add_lora(self, adapter: Adapter) -> bool:
        """Load an adapter in each worker; raises what vLLM has against it."""
        return bool(await self._core.add_lora_async(lora_request(adapter)))

    async def remove_lora(self, adapter: Adapter) -> bool:
        """Unload an adapter; says whether it was there."""
        return bool(await self._core.remove_lora_async(adapter.number))

    async def list_loras(self) -> frozenset[int]:
        """The numbers of the adapters that the workers have."""
        return frozenset(await self._core.list_loras_async())

    def shutdown(self, timeout_s: float) -> None:
        """End the engine's processes: by themselves within `timeout_s`, or killed. Blocks; call it from a thread."""
        self.processes.refresh()
        try:
            self._core.shutdown(timeout=timeout_s)
            self._renderer.shutdown()
        finally:
            self.processes.kill(timeout_s)
            end_context(self._core)


def sampling_params(params: VllmParams) -> object:
    """`params` as vLLM has them; outputs come as deltas."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415 - with the engine only

    return SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        stop=list(params.stops),
        stop_token_ids=list(params.stop_token_ids),
        include_stop_str_in_output=params.include_stop_str_in_output,
        ignore_eos=params.ignore_eos,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        skip_special_tokens=params.skip_special_tokens,
        output_kind=RequestOutputKind.DELTA,
    )


def lora_request(adapter: Adapter) -> object:
    """`adapter` as vLLM has it, which finds cached prefixes by the name: one that comes again gets another name."""
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - with the engine only

    return LoRARequest(f"{adapter.name}#{adapter.number}", adapter.number, adapter.path)


def client_errors() -> tuple[type[Exception], ...]:
    """What vLLM raises for a request that is its client's fault."""
    from vllm.exceptions import VLLMClientError  # noqa: PLC0415 - with the engine only

    return (VLLMClientError, ValueError)
