"""A stage backend that does what a test tells it: by scripts among its input, or by hand.

It needs no engine, no thread and no time. Scripts are plain data, so that they work wherever the backend runs; the
methods for use by hand belong to the loop that the backend is on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, NamedTuple

import msgspec

from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.graph import DELIVERABLE, StageKind
from podium.core.identity import JobKey, Payload
from podium.errors import ErrorKind, ErrorRecord, InvalidRequestError, Scope
from podium.options import read_options, read_params
from podium.payloads import join
from podium.ports.stage_backend import (
    BackendDead,
    BackendOutput,
    Capabilities,
    JobFailed,
    JobStarted,
    Placement,
    StageTask,
)


class Then(StrEnum):
    """What a job does after the outputs of a script."""

    GO_ON = "go_on"
    """Take the next input; finish at the end of the input."""

    FINISH = "finish"
    """Finish now, whatever input comes."""

    HANG = "hang"
    """Give nothing more, until it is stopped."""

    FAIL = "fail"
    """Fail, as a stage does that raised."""

    REFUSE = "refuse"
    """Raise InvalidRequestError from `submit` or `feed`."""

    RAISE = "raise"
    """Raise ValueError from `submit` or `feed`."""

    DIE = "die"
    """Take the whole backend down."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """An input item that says what to do. Any other item is given back as the output.

    With `announce` the job is reported as taken up. Stopping it fails `stop_failures` times before it succeeds; with
    `hang_stop` it does not return.
    """

    outputs: tuple[Payload, ...] = ()
    then: Then = Then.GO_ON
    announce: bool = False
    stop_failures: int = 0
    hang_stop: bool = False


class Loading(StrEnum):
    """What `load` does."""

    SUCCEED = "succeed"
    FAIL = "fail"
    HANG = "hang"


class FakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """With `by_hand`, submitted input does nothing of its own: the test calls `produce`, `finish`, `fail`."""

    load: Loading = Loading.SUCCEED
    by_hand: bool = False


class FakeParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that mean nothing."""

    seed: int = 0


class Told(NamedTuple):
    """One call that the backend got."""

    method: str
    job: JobKey | None = None
    inputs: tuple[Payload, ...] = ()


class _Job:
    def __init__(self, task: StageTask) -> None:
        self.task = task
        self.generated: list[Payload] = []
        self.stop_failures = 0
        self.hangs_at_stop = False
        self.is_silent = False
        self.is_stopping = False
        self.has_ended = False


class FakeBackend:
    """See `Script` for what jobs do. `told` has the last 100,000 calls; `tasks` the live jobs."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        kinds=frozenset(StageKind),
        produces=DELIVERABLE,
        streams_input=True,
        partial_on_stop=True,
        placement=Placement.LOOP,
    )

    def __init__(self, stage: str = "fake", options: Payload = None) -> None:
        """`options` None is the same as `FakeOptions()`."""
        self._options = FakeOptions() if options is None else options
        assert isinstance(self._options, FakeOptions), "options come from parse_options"
        self._stage = stage
        self._jobs: dict[JobKey, _Job] = {}
        self._outbox: list[BackendOutput] = []
        self._changed = asyncio.Event()
        self._death: str | None = None
        self.told: deque[Told] = deque(maxlen=100_000)
        self.methods: dict[str, Callable[[Mapping[str, Payload]], Payload]] = {}

    def __repr__(self) -> str:
        return f"<FakeBackend {self._stage} jobs={len(self._jobs)} outbox={len(self._outbox)} dead={self._death}>"

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> FakeOptions:
        """Check the options. Raises ConfigurationError."""
        return read_options(FakeOptions, values)

    @classmethod
    def parse_params(cls, options: Payload, values: Mapping[str, object]) -> FakeParams:  # noqa: ARG003 - the port
        """Check the parameters. Raises InvalidRequestError."""
        return read_params(FakeParams, values)

    @property
    def tasks(self) -> Mapping[JobKey, StageTask]:
        """The live jobs, as they were submitted."""
        return {key: job.task for key, job in self._jobs.items()}

    async def load(self) -> None:
        """As the options say."""
        assert isinstance(self._options, FakeOptions)
        self._tell("load")
        if self._options.load is Loading.FAIL:
            raise RuntimeError("the fake backend was told not to load")
        while self._options.load is Loading.HANG and self._death is None:
            await self._wait_change()
        if self._death is not None:
            raise BackendDead(self._death)

    def submit(self, task: StageTask) -> None:
        """Take a job, and do what its input says."""
        assert isinstance(self._options, FakeOptions)
        self._tell("submit", task.job, task.inputs)
        if self._death is not None:
            raise BackendDead(self._death)
        if task.job in self._jobs:
            raise ValueError(f"job {task.job} was submitted before")
        job = self._jobs[task.job] = _Job(task)
        try:
            self._play(job, task.inputs)
        except (InvalidRequestError, ValueError):
            del self._jobs[task.job]  # it was not taken
            raise
        if not task.input_open and task.job in self._jobs:  # else a script took the backend down
            self._end_input(job)

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        """Do what more input says."""
        self._tell("feed", job, tuple(inputs))
        if job in self._jobs:
            self._play(self._jobs[job], inputs)

    def end_input(self, job: JobKey) -> None:
        """Finish the job, unless it hangs."""
        self._tell("end_input", job)
        if job in self._jobs:
            self._end_input(self._jobs[job])

    async def stop(self, job: JobKey) -> Payload:
        """Stop a job, as its scripts say; return what it generated."""
        self._tell("stop", job)
        found = self._jobs.get(job)
        if found is None:
            return None
        found.is_stopping = True
        while found.hangs_at_stop and self._death is None:
            await self._wait_change()
        if self._death is not None:
            raise BackendDead(self._death)
        if found.stop_failures:
            found.stop_failures -= 1
            raise RuntimeError("the fake backend was told not to stop")
        while self._has_untaken(job):
            await self._wait_change()
        self._jobs.pop(job, None)
        return join(found.generated)

    async def next_outputs(self) -> Sequence[BackendOutput]:
        """Wait for outputs, and take them all."""
        while not self._outbox:
            if self._death is not None:
                raise BackendDead(self._death)
            await self._wait_change()
        batch, self._outbox = self._outbox, []
        for output in batch:
            if self._ends(output):
                self._jobs.pop(output.job, None)
        self._change()
        return batch

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """Run one of `methods`."""
        self._tell(f"call {method}")
        if method not in self.methods:
            known = ", ".join(self.methods) or "nothing"
            raise InvalidRequestError.because(f"method: unknown '{method}'; use {known}", stage=self._stage)
        return self.methods[method](arguments)

    async def close(self) -> None:
        """Forget everything; what waits is told."""
        self._tell("close")
        self._die("the backend is closed")

    def produce(self, job: JobKey, *payloads: Payload) -> None:
        """By hand: let a job give outputs."""
        found = self._jobs[job]
        if found.has_ended or found.is_stopping:
            return
        self.put(JobOutput(job, len(found.generated), payloads))
        found.generated += payloads

    def finish(self, job: JobKey, reason: FinishReason = FinishReason.STOP, *payloads: Payload) -> None:
        """By hand: let a job finish, with its last outputs in the same batch."""
        found = self._jobs[job]
        if found.has_ended or found.is_stopping:
            return
        found.has_ended = True
        self.put(JobOutput(job, len(found.generated), payloads, Finish(reason, {"outputs": len(found.generated)})))
        found.generated += payloads

    def fail(self, job: JobKey, message: str = "the fake backend was told to fail") -> None:
        """By hand: let a job fail."""
        found = self._jobs[job]
        if found.has_ended or found.is_stopping:
            return
        found.has_ended = True
        error = ErrorRecord(
            kind=ErrorKind.STAGE_FAILED,
            scope=Scope.REQUEST,
            message=message,
            request_id=job.request,
            stage=self._stage,
        )
        self.put(JobFailed(job, error))

    def announce(self, job: JobKey) -> None:
        """By hand: say that a job was taken up."""
        self.put(JobStarted(job))

    def put(self, output: BackendOutput) -> None:
        """By hand: deliver anything at all: repeated, out of order, late, or of a job that there never was."""
        self._outbox.append(output)
        self._change()

    def die(self, reason: str = "the fake backend was told to die") -> None:
        """By hand: be gone for good. What was not taken is lost."""
        self._die(reason)

    def release_stops(self) -> None:
        """By hand: let the stops that hang return."""
        for job in self._jobs.values():
            job.hangs_at_stop = False
        self._change()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so()`; it is asked after each call that the backend gets."""
        while not is_so():
            await self._wait_change()

    def _play(self, job: _Job, inputs: Sequence[Payload]) -> None:
        assert isinstance(self._options, FakeOptions)
        for item in () if self._options.by_hand else inputs:
            if job.has_ended or job.is_silent or job.is_stopping:
                return
            if isinstance(item, Script):
                self._play_script(job, item)
            else:
                self.produce(job.task.job, item)

    def _play_script(self, job: _Job, script: Script) -> None:
        key = job.task.job
        job.stop_failures += script.stop_failures
        job.hangs_at_stop |= script.hang_stop
        if script.then is Then.REFUSE:
            raise InvalidRequestError.because("input: the script says that it is wrong; use another", stage=self._stage)
        if script.then is Then.RAISE:
            raise ValueError("the script says so")
        if script.announce:
            self.announce(key)
        if script.outputs:
            self.produce(key, *script.outputs)
        if script.then is Then.HANG:
            job.is_silent = True
        elif script.then is Then.FINISH:
            self.finish(key)
        elif script.then is Then.FAIL:
            self.fail(key)
        elif script.then is Then.DIE:
            self._die("the script says so")

    def _end_input(self, job: _Job) -> None:
        assert isinstance(self._options, FakeOptions)
        if not (self._options.by_hand or job.is_silent):
            self.finish(job.task.job)

    def _has_untaken(self, job: JobKey) -> bool:
        return any(output.job == job for output in self._outbox)

    def _ends(self, output: BackendOutput) -> bool:
        return isinstance(output, JobFailed) or (isinstance(output, JobOutput) and output.finish is not None)

    def _die(self, reason: str) -> None:
        self._death = self._death or reason
        self._jobs.clear()
        self._outbox.clear()
        self._change()

    def _tell(self, method: str, job: JobKey | None = None, inputs: tuple[Payload, ...] = ()) -> None:
        self.told.append(Told(method, job, inputs))
        self._change()

    def _change(self) -> None:
        """Wake whoever waits: each looks again at what it waits for."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_change(self) -> None:
        await self._changed.wait()
