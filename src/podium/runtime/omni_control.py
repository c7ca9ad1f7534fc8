"""The control half of the engine for synchronous callers: each method of EngineControl, waited for.

Signatures are those of EngineControl itself, so that the two cannot differ; nothing else happens here.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Concatenate, ParamSpec, TypeVar

from podium.runtime.engine_control import EngineControl

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


def _waited_for(
    method: Callable[Concatenate[EngineControl, Arguments], Coroutine[object, object, Value]],
) -> Callable[Concatenate[OmniControl, Arguments], Value]:
    @functools.wraps(method)
    def wait(self: OmniControl, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        return self._run(method(self._engine, *args, **kwargs))

    wait.__doc__ = f"As AsyncOmniEngine.{method.__name__}."
    return wait


class OmniControl(ABC):
    """What OmniEngine can do besides requests; see AsyncOmniEngine for each method."""

    _engine: EngineControl

    @abstractmethod
    def _run(self, work: Coroutine[object, object, Value]) -> Value:
        """Wait for what a coroutine returns."""

    pause_generation = _waited_for(EngineControl.pause_generation)
    resume_generation = _waited_for(EngineControl.resume_generation)
    sleep = _waited_for(EngineControl.sleep)
    wake_up = _waited_for(EngineControl.wake_up)
    is_paused = _waited_for(EngineControl.is_paused)
    barriers = _waited_for(EngineControl.barriers)
    sleeping = _waited_for(EngineControl.sleeping)

    collective_rpc = _waited_for(EngineControl.collective_rpc)
    reset_prefix_cache = _waited_for(EngineControl.reset_prefix_cache)
    reset_mm_cache = _waited_for(EngineControl.reset_mm_cache)
    reset_encoder_cache = _waited_for(EngineControl.reset_encoder_cache)
    start_profile = _waited_for(EngineControl.start_profile)
    stop_profile = _waited_for(EngineControl.stop_profile)
    add_lora = _waited_for(EngineControl.add_lora)
    remove_lora = _waited_for(EngineControl.remove_lora)
    list_loras = _waited_for(EngineControl.list_loras)

    begin_weight_update = _waited_for(EngineControl.begin_weight_update)
    update_weights = _waited_for(EngineControl.update_weights)
    commit_weight_update = _waited_for(EngineControl.commit_weight_update)
    roll_back_weight_update = _waited_for(EngineControl.roll_back_weight_update)
    weights_versions = _waited_for(EngineControl.weights_versions)
