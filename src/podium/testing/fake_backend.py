"""A stage backend that does what a test tells it: by scripts among its input and for its calls, or by hand.

It needs no engine, no thread and no time. Scripts are plain data, so that they work wherever the backend runs; the
methods for use by hand belong to the loop that the backend is on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, NoReturn

from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.graph import DELIVERABLE, StageKind
from podium.core.identity import JobKey, Payload
from podium.core.operations import PauseMode
from podium.errors import (
    ControlRejectedError,
    ErrorKind,
    ErrorRecord,
    InvalidRequestError,
    Scope,
    SupersededError,
    UnsupportedError,
)
from podium.options import read_options, read_params
from podium.payloads import join
from podium.ports.stage_backend import (
    BackendDead,
    BackendOutput,
    Capabilities,
    JobFailed,
    JobStarted,
    LoadReport,
    Placement,
    StageTask,
)
from podium.testing.fake_scripts import (
    CALLS,
    SLEEP_LEVELS,
    Answer,
    CallScript,
    FakeOptions,
    FakeParams,
    Loading,
    PauseArguments,
    Script,
    SleepArguments,
    TagArguments,
    Then,
)

__all__ = ["Answer", "CallScript", "FakeBackend", "FakeOptions", "FakeParams", "Loading", "Script", "Then", "Told"]


class Told(NamedTuple):
    """One call that the backend got; a control call has its arguments as the one input."""

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
        self.is_newcomer = False
        self.is_held = False
        self.label: str | None = None
        self.unplayed: list[Payload] = []
        self.input_ended = False


class FakeBackend:
    """See `Script` for what jobs do, `CallScript` and `call` for what calls do.

    `told` has the last 100,000 calls; `tasks` the live jobs. `paused` is the mode of a pause that was confirmed,
    `asleep` what sleeps, `loras` the adapters that were added.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        kinds=frozenset(StageKind),
        produces=DELIVERABLE,
        streams_input=True,
        partial_on_stop=True,
        placement=Placement.LOOP,
        calls=CALLS,
        pause_modes=frozenset(PauseMode),
        sleep_levels=SLEEP_LEVELS,
        irreversible_levels=frozenset({2}),
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
        self.paused: PauseMode | None = None
        self.asleep: frozenset[str] = frozenset()
        self.loras: dict[str, Payload] = {}
        self._scripts = {method: deque(scripts) for method, scripts in self._options.calls.items()}
        self._pausing: PauseMode | None = None
        self._turn = 0
        self._releases = 0

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
        job.is_newcomer = job.is_held = self._pausing is not None
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
            if not isinstance(output, LoadReport) and self._ends(output):
                self._jobs.pop(output.job, None)
        self._change()
        return batch

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """Do what the method's next script says, then what the method does.

        That is one of `methods` where there is one. Pausing, sleeping and adapters change the state that can be looked
        at; resets return True; a collective RPC, or an update of weights, returns its arguments, as from one worker.
        """
        self._tell(f"call {method}", inputs=(dict(arguments),))
        if self._death is not None:
            raise BackendDead(self._death)
        value = await self._follow_script(method)
        if method in self.methods:
            return self.methods[method](arguments)
        made = await self._do_call(method, arguments)
        return made if value is None else value

    async def _follow_script(self, method: str) -> Payload:
        scripts = self._scripts.get(method)
        script = scripts.popleft() if scripts else CallScript()
        for _ in range(script.turns):
            await asyncio.sleep(0)
        releases = self._releases
        while script.then is Answer.HANG and self._releases == releases and self._death is None:
            await self._wait_change()
        if script.then is Answer.RELEASE:
            self.release_calls()
        elif script.then is Answer.DIE:
            self._die("the script says so")
        if self._death is not None:
            raise BackendDead(self._death)
        if script.then is Answer.FAIL:
            raise RuntimeError(f"the fake backend was told to fail '{method}'")
        if script.then is Answer.UNSUPPORTED:
            raise UnsupportedError.because(f"the script says that '{method}' cannot be done", stage=self._stage)
        return script.value

    async def _do_call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        match method:
            case "pause":
                await self._pause(read_params(PauseArguments, arguments, "pause").mode)
            case "resume":
                self._resume()
            case "sleep":
                self._sleep(read_params(SleepArguments, arguments, "sleep"))
            case "wake_up":
                tags = frozenset(read_params(TagArguments, arguments, "wake_up").tags)
                self.asleep -= tags or self.asleep
            case "reset_prefix_cache" | "reset_mm_cache" | "reset_encoder_cache":
                return True
            case "collective_rpc" | "update_weights":
                return [dict(arguments)]
            case "add_lora":
                self.loras[str(arguments.get("name"))] = arguments.get("path")
            case "remove_lora":
                self.loras.pop(str(arguments.get("name")), None)
            case "list_loras":
                return sorted(self.loras)
            case "start_profile" | "stop_profile":
                pass
            case _:
                known = ", ".join(sorted({"pause", "resume", *CALLS, *self.methods}))
                raise UnsupportedError.because(
                    f"the fake backend has no call '{method}'; use {known}", stage=self._stage
                )
        return None

    async def _pause(self, mode: PauseMode) -> None:
        self._turn += 1
        turn, self._pausing, self.paused = self._turn, mode, None
        for job in [job for job in self._jobs.values() if not job.is_newcomer]:
            job.is_held = mode is PauseMode.KEEP
            if mode is PauseMode.ABORT:
                self.finish(job.task.job, FinishReason.ABORT)
            elif mode is PauseMode.WAIT:
                self._play_held(job)
        self._change()
        while self._outbox or (mode is not PauseMode.KEEP and any(not job.is_newcomer for job in self._jobs.values())):
            await self._wait_change()
            if self._death is not None:
                raise BackendDead(self._death)
            if self._turn != turn:
                record = ErrorRecord(
                    kind=ErrorKind.SUPERSEDED, scope=Scope.REPLICA, stage=self._stage, message="a later call took over"
                )
                raise SupersededError(record)
        self.paused = mode

    def _resume(self) -> None:
        if self.asleep:
            self._reject("it sleeps; wake it up first")
        self._turn += 1
        self.paused = self._pausing = None
        for job in list(self._jobs.values()):
            job.is_newcomer = job.is_held = False
            self._play_held(job)
        self._change()

    def _sleep(self, wanted: SleepArguments) -> None:
        tags = SLEEP_LEVELS.get(wanted.level)
        if tags is None or not tags.issuperset(wanted.tags):
            message = f"the fake backend cannot sleep at level {wanted.level} with {wanted.tags}"
            raise UnsupportedError.because(message, stage=self._stage)
        if self.paused is None:
            self._reject("it works; pause it first")
        self.asleep |= frozenset(wanted.tags) or tags

    def _reject(self, why: str) -> NoReturn:
        message = f"stage '{self._stage}': {why}"
        kind = ErrorKind.CONTROL_REJECTED
        raise ControlRejectedError(ErrorRecord(kind=kind, scope=Scope.REPLICA, stage=self._stage, message=message))

    def _play_held(self, job: _Job) -> None:
        """Do what came while the job stood still."""
        unplayed, job.unplayed = job.unplayed, []
        try:
            self._play(job, unplayed)
        except (InvalidRequestError, ValueError) as error:
            self.fail(job.task.job, str(error))
        if job.input_ended and job.task.job in self._jobs:
            self._end_input(job)

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

    def finish(
        self, job: JobKey, reason: FinishReason = FinishReason.STOP, *payloads: Payload, label: str | None = None
    ) -> None:
        """By hand: let a job finish, with its last outputs in the same batch."""
        found = self._jobs[job]
        if found.has_ended or found.is_stopping:
            return
        found.has_ended = True
        finish = Finish(reason, {"outputs": len(found.generated)}, label or found.label)
        self.put(JobOutput(job, len(found.generated), payloads, finish))
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

    def report(self, load: int, member: int = 0) -> None:
        """By hand: say how much there is to do."""
        self.put(LoadReport(load, member))

    def put(self, output: BackendOutput) -> None:
        """By hand: deliver anything at all: repeated, out of order, late, or of a job that there never was."""
        self._outbox.append(output)
        self._change()

    def die(self, reason: str = "the fake backend was told to die") -> None:
        """By hand: be gone for good. What was not taken is lost."""
        self._die(reason)

    def script_calls(self, method: str, *scripts: CallScript) -> None:
        """By hand: say what the next calls of a method do."""
        self._scripts.setdefault(method, deque()).extend(scripts)

    def release_calls(self) -> None:
        """By hand: let the calls that hang return."""
        self._releases += 1
        self._change()

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
        if job.is_held:
            job.unplayed += inputs
            return
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
        job.label = script.label or job.label
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
        job.input_ended = True
        if not (self._options.by_hand or job.is_silent or job.is_held):
            self.finish(job.task.job)

    def _has_untaken(self, job: JobKey) -> bool:
        return any(not isinstance(output, LoadReport) and output.job == job for output in self._outbox)

    def _ends(self, output: JobOutput | JobStarted | JobFailed) -> bool:
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
