"""The control calls of a vLLM engine: what each needs, in which order, and when it is done.

The backend's jobs are seen through `Work` only. Jobs that come during a pause are not sent at all until the resume:
what vLLM has is what was there before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Protocol

import msgspec

from podium.backends.control_errors import failed, rejected, translated
from podium.backends.pausing import NoArguments, Turns, read_pause
from podium.backends.vllm.adapters import Adapters
from podium.backends.vllm.device import DISCARDING_LEVEL, MEMORY, SCHEDULING, sleep_levels
from podium.backends.vllm.engine import Engine
from podium.core.identity import Payload
from podium.core.operations import PauseMode
from podium.errors import InvalidRequestError, UnsupportedError
from podium.options import read_params

PAUSE_MODES = frozenset(PauseMode)
SLEEP_LEVELS = sleep_levels()
IRREVERSIBLE_LEVELS = frozenset({DISCARDING_LEVEL}) & SLEEP_LEVELS.keys()

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Call = Callable[[Mapping[str, Payload]], Awaitable[Payload]]


CALLS = frozenset(
    {
        *("sleep", "wake_up", "check_health", "reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache"),
        *("collective_rpc", "update_weights", "start_profile", "stop_profile"),
        *("add_lora", "remove_lora", "list_loras"),
    }
)
"""What every vLLM engine knows besides pause and resume."""


class SleepArguments(msgspec.Struct, frozen=True):
    """What to give up. Without `tags` it is all that the level gives up."""

    level: int
    tags: tuple[str, ...] = ()


class WakeArguments(msgspec.Struct, frozen=True):
    """What to take back. Without `tags` it is all that sleeps."""

    tags: tuple[str, ...] = ()


class RpcArguments(msgspec.Struct, frozen=True):
    """A method of vLLM's worker, or `package.module:function`, which is called with the worker before `args`."""

    method: _Name
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = {}


class Work(Protocol):
    """The backend's jobs, as far as control calls need to know."""

    def engine(self) -> Engine:
        """The live engine; raises BackendDead."""
        ...

    async def send_all(self) -> None:
        """Wait until everything posted before is sent to the engine."""
        ...

    async def wait_received(self, count: int) -> None:
        """Wait until so many batches of outputs were taken in."""
        ...

    def send_held(self) -> None:
        """Send the jobs that were held."""
        ...

    @property
    def is_drained(self) -> bool:
        """Whether all jobs but those that are held are over and taken."""
        ...

    @property
    def is_taken(self) -> bool:
        """Whether all outputs were taken."""
        ...


class Control:
    """Pause, sleep and everything else that is not a job. `note_change` is for the backend to call."""

    def __init__(self, stage: str, work: Work) -> None:
        self._stage = stage
        self._work = work
        self._turns = Turns(stage)
        self._is_quiet = False
        self._is_frozen = False
        self._asleep: frozenset[str] = frozenset()
        self._level = 0
        self._is_profiling = False
        self.adapters = Adapters(stage, work.engine)
        self.holds_new_jobs = False
        self.note_change = self._turns.note_change
        self._calls: dict[str, _Call] = {
            "pause": self._pause,
            "resume": self._resume,
            "sleep": self._sleep,
            "wake_up": self._wake_up,
            "check_health": self._check_health,
            "reset_prefix_cache": self._reset_prefix_cache,
            "reset_mm_cache": self._reset_mm_cache,
            "reset_encoder_cache": self._reset_encoder_cache,
            "collective_rpc": self._call_workers,
            "update_weights": self._call_workers,
            "start_profile": self._start_profile,
            "stop_profile": self._stop_profile,
            "add_lora": self.adapters.add,
            "remove_lora": self.adapters.remove,
            "list_loras": self.adapters.list,
        }

    @property
    def names(self) -> frozenset[str]:
        """Every call that there is."""
        return frozenset(self._calls)

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """Do what `method` says; returns once it is done."""
        call = self._calls.get(method)
        if call is None:
            known = ", ".join(self._calls)
            message = f"stage '{self._stage}' runs on vLLM, which has no call '{method}'; it has: {known}"
            raise UnsupportedError.because(message, stage=self._stage)
        self._work.engine()
        return await call(arguments)

    # Pausing. The engine gets pauses and resumes in the order of the calls, and the last one counts.

    async def _pause(self, arguments: Mapping[str, Payload]) -> None:
        mode = read_pause(arguments, PAUSE_MODES, self._stage)
        engine = self._work.engine()
        self.holds_new_jobs = True
        async with self._turns.take():
            with translated(self._stage, "pause"):
                await self._work.send_all()
                if mode is PauseMode.WAIT:
                    await self._drain(engine)
                self._is_frozen = True
                made = await engine.pause("abort" if mode is PauseMode.ABORT else "keep")
            await self._work.wait_received(made)
            await self._turns.wait(self._is_taken)
            self._is_quiet = True

    async def _drain(self, engine: Engine) -> None:
        """Let run what is there, also what an earlier pause has frozen, until it is over."""
        if self._is_frozen and not self._work.is_drained:
            if self._asleep:
                raise rejected(self._stage, f"stage '{self._stage}' sleeps, and has work that would have to run")
            self._is_quiet = False
            self._is_frozen = False
            await engine.resume()
        await self._turns.wait(self._is_drained)
        await self._work.send_all()  # the abort of a job whose end only this side saw

    def _is_drained(self) -> bool:
        self._work.engine()
        return self._work.is_drained

    def _is_taken(self) -> bool:
        self._work.engine()
        return self._work.is_taken

    async def _resume(self, arguments: Mapping[str, Payload]) -> None:
        read_params(NoArguments, arguments, "resume")
        engine = self._work.engine()
        if self._asleep:
            tags = ", ".join(sorted(self._asleep))
            raise rejected(self._stage, f"stage '{self._stage}' sleeps ({tags}); wake it up first")
        async with self._turns.take():
            self._is_quiet = False
            with translated(self._stage, "resume"):
                await engine.resume()
            self._is_frozen = False
            self.holds_new_jobs = False
            self._work.send_held()

    # Sleeping.

    async def _sleep(self, arguments: Mapping[str, Payload]) -> None:
        wanted = read_params(SleepArguments, arguments, "sleep")
        engine = self._work.engine()
        self._check_sleep(wanted, engine)
        if not self._is_quiet:
            raise rejected(self._stage, f"stage '{self._stage}' works; pause it before it sleeps")
        if self._asleep & MEMORY and self._level != wanted.level:
            raise rejected(self._stage, f"stage '{self._stage}' sleeps at level {self._level}; wake it up first")
        async with self._turns.take():
            self._level = wanted.level
            self._asleep |= SLEEP_LEVELS[wanted.level]  # before: nobody knows how far a sleep came that fails
            with translated(self._stage, f"sleep at level {wanted.level}"):
                await engine.sleep(wanted.level)

    def _check_sleep(self, wanted: SleepArguments, engine: Engine) -> None:
        tags = SLEEP_LEVELS.get(wanted.level)
        if tags is None:
            message = f"vLLM as it is installed here cannot sleep at level {wanted.level}"
            known = ", ".join(map(str, SLEEP_LEVELS))
            raise UnsupportedError.because(f"stage '{self._stage}': {message}; it can at: {known}", stage=self._stage)
        if wanted.level and not engine.features.can_free_memory:
            message = f"stage '{self._stage}' was started without sleep mode; set engine_args: enable_sleep_mode: true"
            raise UnsupportedError.because(message, stage=self._stage)
        if wanted.tags and frozenset(wanted.tags) != tags:
            message = f"vLLM gives up {' and '.join(sorted(tags))} together at level {wanted.level}; ask for all of it"
            raise UnsupportedError.because(f"stage '{self._stage}': {message}", stage=self._stage)

    async def _wake_up(self, arguments: Mapping[str, Payload]) -> None:
        """Take memory back. vLLM's own wake-up from level 0 is a resume, so there is nothing to tell it before that."""
        tags = frozenset(read_params(WakeArguments, arguments, "wake_up").tags)
        known: frozenset[str] = frozenset().union(*SLEEP_LEVELS.values())
        if tags - known:
            message = f"stage '{self._stage}' has no '{min(tags - known)}' that sleeps; use some of: "
            raise InvalidRequestError.because(f"wake_up.tags: {message}{', '.join(sorted(known))}", stage=self._stage)
        awaking = (tags or known) & self._asleep
        engine = self._work.engine()
        async with self._turns.take():
            if awaking - {SCHEDULING}:
                with translated(self._stage, "wake up"):
                    await engine.wake_up(sorted(awaking - {SCHEDULING}))
            self._asleep -= awaking

    # Everything else runs beside.

    async def _check_health(self, arguments: Mapping[str, Payload]) -> bool:
        read_params(NoArguments, arguments, "check_health")
        with translated(self._stage, "check its workers"):
            await self._work.engine().confirm()
        return True

    async def _reset_prefix_cache(self, arguments: Mapping[str, Payload]) -> bool:
        """Whether it is empty now. What stands still is computed anew after the resume."""
        read_params(NoArguments, arguments, "reset_prefix_cache")
        with translated(self._stage, "reset its prefix cache"):
            return await self._work.engine().reset_prefix_cache(with_running=self._is_quiet)

    async def _reset_mm_cache(self, arguments: Mapping[str, Payload]) -> bool:
        read_params(NoArguments, arguments, "reset_mm_cache")
        with translated(self._stage, "reset its multimodal cache"):
            await self._work.engine().reset_mm_cache()
        return True

    async def _reset_encoder_cache(self, arguments: Mapping[str, Payload]) -> bool:
        read_params(NoArguments, arguments, "reset_encoder_cache")
        with translated(self._stage, "reset its encoder cache"):
            await self._work.engine().reset_encoder_cache()
        return True

    async def _call_workers(self, arguments: Mapping[str, Payload]) -> list[Payload]:
        """The values of the workers, in their order; raises ControlError when one failed."""
        wanted = read_params(RpcArguments, arguments, "collective_rpc")
        _check_plain(wanted, self._stage)
        with translated(self._stage, f"call '{wanted.method}' in its workers"):
            answers = await self._work.engine().run_in_workers(wanted.method, wanted.args, wanted.kwargs)
        errors = [f"worker {number}: {value}" for number, (is_ok, value) in enumerate(answers) if not is_ok]
        if errors:
            raise failed(self._stage, f"'{wanted.method}' failed at stage '{self._stage}': {'; '.join(errors)}")
        return [value for _, value in answers]

    async def _start_profile(self, arguments: Mapping[str, Payload]) -> None:
        await self._profile(arguments, is_start=True)

    async def _stop_profile(self, arguments: Mapping[str, Payload]) -> None:
        await self._profile(arguments, is_start=False)

    async def _profile(self, arguments: Mapping[str, Payload], *, is_start: bool) -> None:
        read_params(NoArguments, arguments, "start_profile" if is_start else "stop_profile")
        engine = self._work.engine()
        if not engine.features.can_profile:
            message = f"stage '{self._stage}' was started without a profiler; set its option profile_dir"
            raise UnsupportedError.because(message, stage=self._stage)
        if self._is_profiling is is_start:  # vLLM would take that, and do nothing
            state = "is profiled already" if is_start else "is not profiled"
            raise rejected(self._stage, f"stage '{self._stage}' {state}")
        self._is_profiling = is_start
        try:
            with translated(self._stage, "start its profiler" if is_start else "stop its profiler"):
                await engine.profile(is_start=is_start)
        except BaseException:  # whatever it was: it can be tried again
            self._is_profiling = not is_start
            raise


def _check_plain(wanted: RpcArguments, stage: str) -> None:
    try:
        msgspec.msgpack.encode((wanted.args, wanted.kwargs))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError.because(
            f"collective_rpc: the arguments cannot be sent: {error}; give plain values, or the path of a file",
            stage=stage,
        ) from error
