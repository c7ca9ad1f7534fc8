"""What a stage runs: the protocol that every engine is put behind, and what it declares about itself.

A backend serves many jobs at once and knows nothing of other stages, replicas or requests beyond the job's key. Nothing
is probed: what a backend can do stands in its `Capabilities`, before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from podium.core.events import JobOutput
from podium.core.graph import Modality, StageKind
from podium.core.identity import JobKey, Payload
from podium.core.operations import PauseMode
from podium.errors import ErrorRecord


class Placement(StrEnum):
    """Which thread a backend's code may run in when it shares a process with the engine."""

    LOOP = "loop"
    """On the engine's own loop: every method returns in microseconds, and everything that waits is awaited."""

    THREAD = "thread"
    """In a thread with a loop of its own: methods may compute for milliseconds."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of backend can do.

    `kinds` and `produces` are what a stage may declare when it uses this backend. `streams_input` says that jobs may be
    fed after their submission; otherwise a job is submitted with all of its input. `partial_on_stop` says that a stop
    returns everything generated so far. `placement` is where the backend may run in process. With `reports_start` the
    backend says itself when it takes up a job (JobStarted); otherwise a job counts as started once it was submitted.

    `calls` are the methods of `call` that it knows besides `pause` and `resume`, which every backend has; `pause_modes`
    are the modes of `pause`. `sleep_levels` has, for each level that it can sleep at, the tags of the memory that it
    gives up; what an `irreversible_levels` level gives up is not there again after a wake-up.
    """

    kinds: frozenset[StageKind]
    produces: frozenset[Modality]
    streams_input: bool
    partial_on_stop: bool
    placement: Placement
    reports_start: bool = False
    calls: frozenset[str] = frozenset()
    pause_modes: frozenset[PauseMode] = frozenset({PauseMode.ABORT, PauseMode.WAIT})
    sleep_levels: Mapping[int, frozenset[str]] = {}
    irreversible_levels: frozenset[int] = frozenset()


class StageTask(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a backend gets it: `inputs` went through the stage's input processor.

    `params` is what the backend's `parse_params` returned, or None. `deadline` is on the engine's monotonic clock, in
    seconds. With `input_open` more input comes by `feed`, until `end_input`.
    """

    job: JobKey
    inputs: tuple[Payload, ...]
    params: Payload
    input_open: bool
    priority: int
    deadline: float | None


class JobStarted(msgspec.Struct, frozen=True):
    """A backend took up a job that may produce nothing for a while. Optional: the first output says it too."""

    job: JobKey


class JobFailed(msgspec.Struct, frozen=True):
    """One job failed; the backend is well. Nothing more comes of that job."""

    job: JobKey
    error: ErrorRecord


class LoadReport(msgspec.Struct, frozen=True):
    """What a replica has to do, in jobs, as it says itself. Optional; it counts in the choice of the least loaded one.

    Where a replica is made of several processes, each reports as another `member`: their loads are summed.
    """

    load: int
    member: int = 0


BackendOutput: TypeAlias = JobOutput | JobStarted | JobFailed | LoadReport


class BackendDead(Exception):  # noqa: N818 - a state, raised once
    """Raised by `next_outputs` (or any other method) when the engine behind a backend is gone for good.

    Its text is the reason that clients are given.
    """


class StageBackend(Protocol):
    """One loaded engine. All methods are called from one thread; those that are not async must not wait.

    The life of a job: `submit`, any number of `feed`, one `end_input` if it was submitted with `input_open`; its
    outputs come from `next_outputs` until one has a `finish`, or a `JobFailed` came, or `stop` returned.
    After that the backend has forgotten the job. Calls for jobs that it does not know change nothing.
    """

    capabilities: ClassVar[Capabilities]

    def __init__(self, stage: str, options: Payload) -> None:
        """Prepare one replica of `stage`, without starting anything. `options` is what `parse_options` returned."""
        ...

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> Payload:
        """Check a stage's `options` in a pipeline file. Raises ConfigurationError with every fault; must not load."""
        ...

    @classmethod
    def parse_params(cls, options: Payload, values: Mapping[str, object]) -> Payload:
        """Check a caller's sampling parameters for a stage with `options`, before anything is submitted.

        Raises InvalidRequestError that names the parameter and the remedy; unknown names are refused. Runs on the
        caller's side, and must not need the engine.
        """
        ...

    async def load(self) -> None:
        """Bring the engine up. Raises whatever keeps it from serving; the shell limits the time."""
        ...

    def submit(self, task: StageTask) -> None:
        """Take a job. Raises InvalidRequestError when its input is the client's fault, anything else is the stage's."""
        ...

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        """Give a running job more input, in order."""
        ...

    def end_input(self, job: JobKey) -> None:
        """Tell a running job that no more input comes."""
        ...

    async def stop(self, job: JobKey) -> Payload:
        """Stop a job physically; return once no step runs, or will start, for it.

        Returns everything it generated, cumulatively, or None where there is nothing (or `partial_on_stop` is False).
        Outputs that were complete before come from `next_outputs` before this returns. When it raises, the job is not
        forgotten: a repetition returns the same.
        """
        ...

    async def next_outputs(self) -> Sequence[BackendOutput]:
        """Wait for outputs; a batch, in order for each job. Raises BackendDead when no more will ever come."""
        ...

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """A control call, in the midst of other work and of other calls. Returns once it is done, physically.

        `pause` (`mode`: a PauseMode) returns when no step runs or will start, and outputs of steps that ran come from
        `next_outputs` before that; jobs that are submitted later stand still until `resume`. Both succeed when there
        is nothing to do. `sleep` (`level`, `tags`) and `wake_up` (`tags`) move memory and nothing else. A method that
        is neither these two nor declared raises UnsupportedError: it is never answered with success.
        """
        ...

    async def close(self) -> None:
        """End the engine and everything it started: processes, threads, memory. Idempotent; safe during `load`."""
        ...
