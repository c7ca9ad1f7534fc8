"""The environment variables that vLLM reads when it is imported and when its processes start.

They belong to the whole process, so they are set for the time of a start only, one start at a time, and what the user
has set is kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from podium.backends.vllm.options import VllmOptions

_START_LOCK = threading.Lock()
_LOCK_POLL_S = 0.1


def environment_for(options: VllmOptions, *, model_is_local: bool, cores: frozenset[int]) -> dict[str, str]:
    """What vLLM should find in its environment for `options`, on a process that may use `cores`.

    The terminal is the user's: vLLM and its libraries report errors only, and on stderr. `VLLM_LOGGING_LEVEL=INFO`
    brings the rest back.
    """
    values = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCH_LOGS": "-torch._library.triton",  # it warns that Triton is missing, which a CPU does not need
        "PYTHONWARNINGS": "ignore",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if model_is_local:
        values["HF_HUB_OFFLINE"] = "1"
    if options.enforce_eager:
        values["TORCHDYNAMO_DISABLE"] = "1"  # otherwise helpers of vLLM compile all the same, for up to 20 s
    if options.kv_cache_gib is not None:
        values["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_cache_gib)
    if isinstance(options.threads, int):
        values["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in sorted(cores)[: options.threads])
    elif options.threads is not None:
        values["VLLM_CPU_OMP_THREADS_BIND"] = options.threads
    return values


@contextmanager
def applied(values: Mapping[str, str], is_abandoned: Callable[[], bool]) -> Iterator[None]:
    """Set `values` where the user has not, for the time of a `with` block; one block at a time in a process.

    Raises TimeoutError when the start is abandoned while it waits for another one.
    """
    while not _START_LOCK.acquire(timeout=_LOCK_POLL_S):
        if is_abandoned():
            raise TimeoutError("abandoned while another vLLM engine was starting")
    fresh = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(fresh)
    try:
        yield
    finally:
        for name in fresh:
            os.environ.pop(name, None)
        _START_LOCK.release()
