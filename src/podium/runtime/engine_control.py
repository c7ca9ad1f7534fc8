"""The control half of an engine's public face: pause, sleep, calls to its workers, weights.

Every method answers once each targeted replica has confirmed, or raises. It adds nothing to what the core decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from podium.core.lifecycle import QUIET, BarrierState
from podium.core.operations import (
    BeginUpdate,
    CommitUpdate,
    HoldPolicy,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from podium.core.statistics import Statistics
from podium.errors import InvalidRequestError
from podium.runtime.control_desk import ControlDesk
from podium.runtime.outputs import ControlReport

Choice = TypeVar("Choice", PauseMode, HoldPolicy)

CONTROL_TIMEOUT_S = 60.0
OWN_METHODS = frozenset({"pause", "resume", "sleep", "wake_up", "update_weights"})
"""What moves the state of a stage goes through the method that keeps that state."""


class EngineControl(ABC):
    """What AsyncOmniEngine can do besides requests.

    `stages` None means every stage. Every method waits at most `timeout_s` seconds and returns a ControlReport, with
    one record for each replica. Raises ControlError when it failed anywhere: the error names stage and replica, and
    `results` has what the others answered; ControlTimeoutError names who did not answer. UnsupportedError says what an
    engine cannot do; nothing was changed then. What failed can be repeated, or undone by its opposite.
    """

    _desk: ControlDesk

    @abstractmethod
    async def _core_statistics(self) -> Statistics:
        """The core as it is now."""

    async def pause_generation(
        self,
        mode: str = "abort",
        *,
        stages: Sequence[str] | None = None,
        held: str = "hold",
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> ControlReport:
        """Close admission, and return once no step runs or will start at the stages.

        `mode` says what becomes of running work: "abort" ends it with what it made so far, "wait" lets it end by
        itself, "keep" lets it stand still until `resume_generation`. Requests that need a paused stage and arrive
        meanwhile wait in their order ("hold"), or are refused with StageUnavailableError ("refuse").
        """
        chosen = _choice(mode, "mode", PauseMode)
        names = self._desk.names(stages)
        self._desk.check_mode(names, chosen)
        return await self._desk.ask(Pause(chosen, _choice(held, "held", HoldPolicy)), names, timeout_s)

    async def resume_generation(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Let the stages work again, and admit what was held; the only thing that opens a paused stage.

        Raises ControlRejectedError while a stage sleeps, or its weights are not settled.
        """
        return await self._desk.ask(Resume(), self._desk.names(stages), timeout_s)

    async def sleep(
        self,
        level: int = 1,
        *,
        tags: Sequence[str] | None = None,
        stages: Sequence[str] | None = None,
        mode: str = "wait",
        held: str = "hold",
        force: bool = False,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> ControlReport:
        """Pause the stages as `pause_generation(mode)` does, and give up memory.

        `tags` are what is given up, of those that the level has (None: all). Without `stages`, those that cannot sleep
        are paused only, and listed as not applicable. A level whose memory does not come back needs `force`.
        """
        chosen = _choice(mode, "mode", PauseMode)
        _check_whole(level, "level")
        able, unable = self._desk.split(stages, lambda one: level in one.sleep_levels, f"cannot sleep at level {level}")
        names = self._desk.names(stages)
        self._desk.check_mode(names, chosen)
        wanted = self._desk.sleep_tags(able, level, tags, force=force)
        operation = Sleep(level, wanted, chosen, _choice(held, "held", HoldPolicy))
        return await self._desk.ask(operation, names, timeout_s, unable)

    async def wake_up(
        self,
        tags: Sequence[str] | None = None,
        *,
        stages: Sequence[str] | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> ControlReport:
        """Take memory back (`tags` None: all of it), and nothing else: the stages stay paused. Harmless when awake."""
        able, unable = self._desk.split(stages, lambda one: bool(one.sleep_levels), "cannot sleep, so it never wakes")
        return await self._desk.ask(WakeUp(self._desk.wake_tags(able, tags)), able, timeout_s, unable)

    async def is_paused(self, stages: Sequence[str] | None = None) -> bool:
        """Whether each of the stages has confirmed that no step runs or will start."""
        core = await self._core_statistics()
        return all(core.stages[name].barrier in QUIET for name in self._desk.names(stages))

    async def barriers(self) -> Mapping[str, BarrierState]:
        """Where each stage stands, as its replicas have confirmed it. A request needs all of its stages to be open."""
        return {name: stage.barrier for name, stage in (await self._core_statistics()).stages.items()}

    async def sleeping(self) -> Mapping[str, Mapping[int, tuple[str, ...]]]:
        """The tags of memory that each replica has confirmed to have given up; stages and replicas with none are left
        out.
        """
        found: dict[str, dict[int, tuple[str, ...]]] = {}
        for name, stage in (await self._core_statistics()).stages.items():
            for replica in stage.replicas:
                if replica.asleep:
                    found.setdefault(name, {})[replica.slot] = replica.asleep
        return found

    # Calls

    async def collective_rpc(
        self,
        method: str,
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        stages: Sequence[str] | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> ControlReport:
        """Call a method of every worker of the stages' engines; a record's value has what each worker returned."""
        if method in OWN_METHODS:
            raise InvalidRequestError.because(
                f"method: '{method}' changes the state of a stage; use the engine's own method of that kind"
            )
        return await self._desk.call("collective_rpc", _rpc(method, args, kwargs), stages, timeout_s)

    async def reset_prefix_cache(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Forget cached prefixes at every live replica. `is_true` of the report is False when one could not."""
        return await self._desk.call("reset_prefix_cache", {}, stages, timeout_s)

    async def reset_mm_cache(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Forget cached multimodal inputs at every live replica."""
        return await self._desk.call("reset_mm_cache", {}, stages, timeout_s)

    async def reset_encoder_cache(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Forget cached encoder outputs at every live replica."""
        return await self._desk.call("reset_encoder_cache", {}, stages, timeout_s)

    async def start_profile(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Begin to profile."""
        return await self._desk.call("start_profile", {}, stages, timeout_s)

    async def stop_profile(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """End the profile, and write it where the engine writes profiles."""
        return await self._desk.call("stop_profile", {}, stages, timeout_s)

    async def add_lora(
        self, name: str, path: str, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Load an adapter from a directory at every replica, under a name that sampling parameters can use."""
        return await self._desk.call("add_lora", {"name": name, "path": path}, stages, timeout_s)

    async def remove_lora(
        self, name: str, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Unload an adapter at every replica."""
        return await self._desk.call("remove_lora", {"name": name}, stages, timeout_s)

    async def list_loras(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """The names of the adapters that each replica has, as the value of its record."""
        return await self._desk.call("list_loras", {}, stages, timeout_s)

    # Weights

    async def begin_weight_update(
        self, version: int, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """Begin to change the weights of paused stages; they cannot be resumed before it is committed or rolled back.

        Raises StaleVersionError unless `version` is newer than what a stage has.
        """
        _check_whole(version, "version")
        able, unable = self._updatable(stages)
        return await self._desk.ask(BeginUpdate(version), able, timeout_s, unable)

    async def update_weights(
        self,
        method: str,
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        stages: Sequence[str] | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> ControlReport:
        """Change weights by a method of every worker; an update may take several of these.

        When it fails anywhere, nobody knows what the weights are: the stages stay closed until an update is begun anew
        and committed, or rolled back.
        """
        able, unable = self._updatable(stages)
        return await self._desk.ask(UpdateWeights(_rpc(method, args, kwargs)), able, timeout_s, unable)

    async def commit_weight_update(
        self, *, stages: Sequence[str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> ControlReport:
        """The weights are changed at every replica: from now on outputs carry the version that was begun."""
        able, unable = self._updatable(stages)
        return await self._desk.ask(CommitUpdate(), able, timeout_s, unable)

    async def roll_back_weight_update(
        self,
        method: str | None = None,
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        stages: Sequence[str] | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> ControlReport:
        """Restore the former weights by a method of every worker; without one, when nothing was changed yet."""
        able, unable = self._updatable(stages)
        arguments = None if method is None else _rpc(method, args, kwargs)
        return await self._desk.ask(RollBackUpdate(arguments), able, timeout_s, unable)

    async def weights_versions(self) -> Mapping[str, int]:
        """The version of each stage's weights; 0 are those that it started with."""
        return {name: stage.weights_version for name, stage in (await self._core_statistics()).stages.items()}

    def _updatable(self, stages: Sequence[str] | None) -> tuple[list[str], list[str]]:
        return self._desk.split(stages, lambda one: "update_weights" in one.calls, "cannot change its weights")


def _rpc(method: str, args: Sequence[object], kwargs: Mapping[str, object] | None) -> dict[str, object]:
    return {"method": method, "args": tuple(args), "kwargs": dict(kwargs or {})}


def _check_whole(value: object, field: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError.because(f"{field}: {value!r} is no whole number")


def _choice(value: str, field: str, kind: type[Choice]) -> Choice:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"'{one}'" for one in kind)
        raise InvalidRequestError.because(f"{field}: '{value}' is unknown; use one of {known}") from None
