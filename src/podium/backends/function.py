"""Hosts plain Python as a stage: a function, a generator, their async forms, or a class that makes one of them.

Async code runs on the engine's loop and must not block it; everything else runs in worker threads of the backend,
unless `blocking: false` says that it returns at once. See `podium/stage_function.py` for what to write.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from podium.backends.function_runs import InlineRun, LoopRun, Run, RunTable, Style, style_of
from podium.backends.function_threads import ThreadRun
from podium.backends.pausing import NoArguments, Turns, read_pause
from podium.backends.worker_threads import WorkerThreads
from podium.core.graph import DELIVERABLE, StageKind
from podium.core.identity import JobKey, Payload
from podium.core.operations import PauseMode
from podium.errors import ConfigurationError, Fault, InvalidRequestError, StartError, UnsupportedError
from podium.options import check_callable, import_object, read_options, read_params
from podium.ports.stage_backend import BackendDead, BackendOutput, Capabilities, Placement, StageTask
from podium.stage_function import StageFunction

logger = logging.getLogger("podium")

Hosted: TypeAlias = Callable[..., object] | StageFunction

PAUSE_MODES = frozenset(PauseMode)
Positive = Annotated[int, msgspec.Meta(ge=1)]


class FunctionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pipeline file says about a hosted function.

    `function` is its import path, `package.module:name`. A class is called with `arguments` to make the callable; so
    is a function when `arguments` are given, even if empty. `workers` limits the threads for blocking code; the default
    of one never calls it twice at a time. `max_buffered` limits the input items, and the outputs, that wait in one job.
    """

    function: str
    arguments: dict[str, object] | None = None
    blocking: bool = True
    workers: Positive = 1
    max_buffered: Positive = 4096


class FunctionBackend:
    """A stage that is a Python callable: called for each input item, in order.

    It returns one output, or None for nothing, or yields any number of them; a `Label` among them says which way the
    request goes on. What it raises fails that job only.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        kinds=frozenset(StageKind),
        produces=DELIVERABLE,
        streams_input=True,
        partial_on_stop=True,
        placement=Placement.LOOP,
        pause_modes=PAUSE_MODES,
    )

    def __init__(self, stage: str, options: Payload) -> None:
        """Prepare to host what `options` names, for `stage`."""
        assert isinstance(options, FunctionOptions), "options come from parse_options"
        self._stage = stage
        self._options = options
        self._threads = WorkerThreads(f"podium-{stage}", options.workers)
        self._turns = Turns(stage)
        self._is_paused = False
        self._newcomers: set[JobKey] = set()  # of the time of a pause
        self._runs = RunTable(self._turns.note_change)
        self._group = asyncio.TaskGroup()  # open from load to close; its tasks catch everything themselves
        self._hosted: Hosted | None = None
        self._style = Style.PLAIN
        self._construction: asyncio.Future[Hosted] | None = None
        self._is_closed = False
        self._is_released = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "loading" if self._hosted is None else "ready"
        return f"<FunctionBackend {self._stage} {self._options.function} {state} jobs={len(self._runs)}>"

    @property
    def hosted(self) -> Hosted | None:
        """What is hosted, once it is loaded."""
        return self._hosted

    def count_jobs(self) -> int:
        """How many jobs are here, with those whose end was not taken yet."""
        return len(self._runs)

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> FunctionOptions:
        """Check the options, and that the function can be imported. Raises ConfigurationError with every fault."""
        options = read_options(FunctionOptions, values)
        found = _find(options)
        if options.arguments is not None and isinstance(found, StageFunction):
            remedy = "remove them, or name its class"
            raise ConfigurationError("options", [Fault("options.arguments", "cannot be given to an instance", remedy)])
        return options

    @classmethod
    def parse_params(cls, options: Payload, values: Mapping[str, object]) -> msgspec.Struct | None:
        """Check parameters against the `params_type` that the function declares. Raises InvalidRequestError."""
        assert isinstance(options, FunctionOptions), "options come from parse_options"
        params_type = _params_type(_find(options))
        if params_type is not None:
            return read_params(params_type, values)
        if values:
            raise InvalidRequestError.because(f"params.{next(iter(values))}: this stage takes no parameters; remove it")
        return None

    async def load(self) -> None:
        """Import the function and construct it, where it has to be; in a thread, since both may take long."""
        self._construction = self._threads.run(self._construct)
        hosted = await asyncio.shield(self._construction)
        if self._is_closed:
            raise StartError(self._stage, "it was closed while it was loading")
        await self._group.__aenter__()
        if callable(hosted):
            self._style = style_of(hosted)
        self._hosted = hosted

    def _construct(self) -> Hosted:
        found = _find(self._options)
        if inspect.isclass(found) or (self._options.arguments is not None and callable(found)):
            made = found(**(self._options.arguments or {}))
            if not (callable(made) or isinstance(made, StageFunction)):
                reason = f"'{self._options.function}' made a {type(made).__name__}, which cannot be called"
                raise StartError(self._stage, reason)
            return made
        return found

    def submit(self, task: StageTask) -> None:
        """Take a job. Its items are served in order, beside those of other jobs."""
        if self._is_closed:
            raise BackendDead("the backend is closed")
        if self._hosted is None:
            raise RuntimeError(f"stage '{self._stage}' is not loaded")
        if self._runs.find(task.job) is not None:
            raise ValueError(f"job {task.job} was submitted before")
        run = self._open(task, self._hosted)
        self._runs.add(run)
        if self._is_paused:
            self._newcomers.add(task.job)
            run.hold()
        if task.inputs:
            run.feed(task.inputs)
        if not task.input_open:
            run.end_input()

    def _open(self, task: StageTask, hosted: Hosted) -> Run:
        function = hosted.for_job() if isinstance(hosted, StageFunction) else hosted
        style = self._style if function is hosted else style_of(function)
        if isinstance(hosted, StageFunction) and hosted.params_type is not None:
            params = read_params(hosted.params_type, {}) if task.params is None else task.params
            serve: Callable[..., object] = partial(function, params=params)
        else:
            serve = function
        limit = self._options.max_buffered
        if style is not Style.PLAIN:
            return LoopRun(self._stage, task.job, serve, self._runs, limit, group=self._group, style=style)
        if self._options.blocking:
            return ThreadRun(self._stage, task.job, serve, self._runs, limit, threads=self._threads)
        return InlineRun(self._stage, task.job, serve, self._runs, limit)

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        """Give a running job more items."""
        run = self._runs.find(job)
        if run is not None:
            run.feed(inputs)

    def end_input(self, job: JobKey) -> None:
        """Tell a running job that no more items come."""
        run = self._runs.find(job)
        if run is not None:
            run.end_input()

    async def stop(self, job: JobKey) -> Payload:
        """Stop a job: async code is cancelled; a blocking step is waited for, and is the last one.

        Returns all that it made, joined.
        """
        run = self._runs.find(job)
        if run is None:
            return None
        await run.stop()
        self._runs.remove(job)
        self._newcomers.discard(job)
        return run.everything

    async def next_outputs(self) -> Sequence[BackendOutput]:
        """Wait for outputs of any job; everything that there is."""
        return await self._runs.take()

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """`pause` and `resume`: a step is one call, or one output of a generator; what runs is the last one.

        A hosted function has no other calls.
        """
        if self._is_closed:
            raise BackendDead("the backend is closed")
        if method == "pause":
            await self._pause(read_pause(arguments, PAUSE_MODES, self._stage))
        elif method == "resume":
            read_params(NoArguments, arguments, "resume")
            await self._resume()
        else:
            message = f"stage '{self._stage}' is a function, which has no call '{method}'; it has pause and resume"
            raise UnsupportedError.because(message, stage=self._stage)
        return None

    async def _pause(self, mode: PauseMode) -> None:
        self._is_paused = True
        async with self._turns.take():
            for run in [run for run in self._runs if run.job not in self._newcomers]:
                match mode:
                    case PauseMode.KEEP:
                        run.hold()
                    case PauseMode.WAIT:
                        run.release()
                    case PauseMode.ABORT:
                        run.abort()
            await self._turns.wait(self._is_at_rest if mode is PauseMode.KEEP else self._is_drained)

    async def _resume(self) -> None:
        async with self._turns.take():
            self._is_paused = False
            self._newcomers.clear()
            for run in list(self._runs):
                run.release()

    def _is_at_rest(self) -> bool:
        if self._is_closed:
            raise BackendDead("the backend is closed")
        return self._runs.is_at_rest

    def _is_drained(self) -> bool:
        return self._is_at_rest() and all(run.job in self._newcomers for run in self._runs)

    async def close(self) -> None:
        """Stop every job, let the function release what it holds, and end the threads."""
        self._is_closed = True
        await self._runs.close()
        if self._construction is not None:
            await asyncio.wait({self._construction})
        if not self._is_released:
            self._is_released = True
            if self._hosted is not None:
                await self._group.__aexit__(None, None, None)
            await self._release()
        await self._threads.close()

    async def _release(self) -> None:
        loaded = self._construction
        if loaded is None or loaded.cancelled() or loaded.exception() is not None:
            return
        hosted = loaded.result()
        if isinstance(hosted, StageFunction):
            try:
                await self._threads.run(hosted.close)
            except Exception:  # hosted code may raise anything, and the threads have to end all the same
                logger.exception("stage '%s': closing %s failed", self._stage, self._options.function)


def _find(options: FunctionOptions) -> Hosted:
    found = import_object(options.function, "options.function")
    return found if isinstance(found, StageFunction) else check_callable(found, options.function, "options.function")


def _params_type(found: Hosted) -> type[msgspec.Struct] | None:
    if isinstance(found, StageFunction):
        return found.params_type
    if inspect.isclass(found) and issubclass(found, StageFunction):
        return found.params_type
    return None
