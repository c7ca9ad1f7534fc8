"""What a user may say to the vLLM backend: the options of a stage and the sampling parameters of a request.

Both are strict: unknown names and values out of range are refused, with the nearest names and the bounds. Nothing here
imports vllm, so that files and requests are checked before, and without, an engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from podium.errors import ConfigurationError, Fault, InvalidRequestError
from podium.options import import_callable, read_options, read_params

PREPARER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How a model is written that a function prepares: `package.module:function`."""

_Count = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]
_Name = Annotated[str, Meta(min_length=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_TokenId = Annotated[int, Meta(ge=0)]


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a stage that runs on vLLM.

    `model` is a directory, a name on the Hugging Face Hub, or `package.module:function`: a function that prepares a
    directory and returns its path, called as `function(progress, is_abandoned)`. With `chat` a plain prompt becomes one
    user message in the model's chat template; `system_prompt` goes before it, unless the messages bring their own.

    `max_model_len` limits prompt and answer together, in tokens. `kv_cache_gib` is the memory of the key-value cache on
    a CPU, in whole GiB; `gpu_memory_utilization` is the share of a GPU's memory. `threads` are a CPU engine's cores: a
    number takes the first that this process may use, a text is vLLM's own syntax, such as `0-3`, `auto` or `nobind`.
    `max_loras` turns LoRA on: so many adapters can be loaded, by the control call `add_lora`. `profile_dir` turns
    profiling on: traces of PyTorch's profiler go there, by the control calls `start_profile` and `stop_profile`.
    `engine_args` go to vLLM's `AsyncEngineArgs` as they are: whatever has no option here.

    `stop_timeout_s` limits how long vLLM may take to confirm a stop, `close_timeout_s` how long its processes may take
    to end by themselves.
    """

    model: _Name
    chat: bool = False
    system_prompt: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    max_model_len: _Count | None = None
    max_num_seqs: _Count | None = None
    kv_cache_gib: _Count | None = None
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] | None = None
    enforce_eager: bool = False
    prefix_caching: bool | None = None
    tensor_parallel_size: _Count = 1
    quantization: _Name | None = None
    trust_remote_code: bool = False
    threads: _Count | _Name | None = None
    seed: _TokenId = 0
    max_loras: _Count | None = None
    profile_dir: _Name | None = None
    engine_args: dict[str, object] = {}
    stop_timeout_s: _Seconds = 8.0
    close_timeout_s: _Seconds = 5.0


class VllmParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is sampled. Without `max_tokens` an answer may fill the model's whole length.

    `temperature` 0 always takes the likeliest token; `top_k` 0 is off. With a `seed` the same prompt gives the same
    text. `stop` ends the answer before one of these texts, `stop_token_ids` at one of these tokens. `lora` is the name
    of an adapter that was added to the stage.
    """

    max_tokens: _Count | None = None
    min_tokens: _TokenId = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: _TokenId = 0
    min_p: _Share = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: _Name | Annotated[tuple[_Name, ...], Meta(max_length=16)] = ()
    stop_token_ids: Annotated[tuple[_TokenId, ...], Meta(max_length=128)] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    skip_special_tokens: bool = True
    lora: _Name | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts, however they were given."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop


def parse_options(values: Mapping[str, object]) -> VllmOptions:
    """The options of a stage; raises ConfigurationError with every fault."""
    options = read_options(VllmOptions, values)
    if options.system_prompt is not None and not options.chat:
        fault = Fault("options.system_prompt", "has no effect without `chat`", "set `chat: true`, or remove it")
        raise ConfigurationError("options", [fault])
    if PREPARER.fullmatch(options.model):
        import_callable(options.model, "options.model")
    return options


def parse_params(values: Mapping[str, object]) -> VllmParams:
    """The sampling parameters of a request; raises InvalidRequestError that names what is wrong."""
    params = read_params(VllmParams, values)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequestError.because(
            f"params.min_tokens: {params.min_tokens} is more than max_tokens; give at most {params.max_tokens}",
        )
    return params
