"""Runs a method in a worker process of vLLM: one of the worker's own, or a function that is called with the worker.

What comes back is always an answer: vLLM leaves answers of other workers unread when one raises, and its engine process
hangs on one that cannot be sent. Importing this module imports no engine.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module

import msgspec

RUN = "podium.backends.vllm.worker_calls:run"
"""The path of `run`, as the guarded executor gets it."""


def run(worker: object, method: str, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[bool, object]:
    """Call `method` in a worker; returns True and its plain value, or False and what went wrong."""
    try:
        value = find(method, worker)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - foreign code; the caller is told, and this process lives on
        traceback.print_exc()
        return False, f"{type(error).__name__}: {error}"
    try:
        return True, msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except (TypeError, ValueError, OverflowError) as error:
        return False, f"it returned a {type(value).__name__} that cannot be sent: {error}; return plain values"


def find(method: str, worker: object) -> Callable[..., object]:
    """The worker's method of that name, or, for `package.module:function`, the function, bound to the worker."""
    if ":" in method:
        return partial(function_at(method), worker)
    found: Callable[..., object] | None = getattr(worker, method, None)
    if found is None:
        raise AttributeError(f"the worker has no method '{method}'; name one, or package.module:function")
    return found


def function_at(path: str) -> Callable[..., object]:
    """The function at `package.module:name`; raises what the import raises, or KeyError."""
    module, _, name = path.partition(":")
    function: Callable[..., object] = vars(import_module(module))[name]
    return function
