"""A running vLLM engine: its core client, input processor and output processor behind the few calls a backend needs.

With `start`, the only module that knows where things are in vLLM. It decides nothing about jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podium.backends.vllm.options import VllmParams
from podium.backends.vllm.processes import ProcessTree
from podium.backends.vllm.prompts import PromptRenderer

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.renderers import BaseRenderer
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import OutputProcessor

_CONTEXT_END_S = 2.0


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
    ) -> None:
        self._core = core
        self._inputs = inputs
        self._outputs = outputs
        self._renderer = renderer
        self._prompts = prompts
        self._collector = OutputCollector()
        self._tasks: tuple[str, ...] = ("generate",)
        self._received = 0
        self.processes = ProcessTree(core.resources.engine_manager.processes)

    def make_request(self, name: str, inputs: Sequence[object], params: VllmParams) -> EngineCoreRequest:
        """Make the request `name` of processed inputs. Raises InvalidRequestError, or what vLLM does not take."""
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415 - with the engine only

        prompt = tokens_input(self._prompts.render(inputs))
        request = self._inputs.process_inputs(name, prompt, sampling_params(params), supported_tasks=self._tasks)
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

    async def reset_prefix_cache(self) -> bool:
        """Empty the cache of prompt prefixes; says whether it could."""
        return bool(await self._core.reset_prefix_cache_async())

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


def client_errors() -> tuple[type[Exception], ...]:
    """What vLLM raises for a request that is its client's fault."""
    from vllm.exceptions import VLLMClientError  # noqa: PLC0415 - with the engine only

    return (VLLMClientError, ValueError)
