"""A stage backend that answers at once: for measuring what everything around a backend costs.

It hands out outputs as an engine's steps do, one for each running job and step, each step in a turn of the loop of its
own. It has no engine, and no behaviour worth testing beyond that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.graph import DELIVERABLE, StageKind
from podium.core.identity import JobKey, Payload
from podium.core.operations import PauseMode
from podium.errors import ErrorKind, ErrorRecord, Scope, SupersededError, UnsupportedError
from podium.options import read_options, read_params
from podium.payloads import Text
from podium.ports.stage_backend import BackendDead, Capabilities, Placement, StageTask
from podium.testing.fake_scripts import PauseArguments

HOLD = Text("hold this job open until it is stopped")
"""A job that is submitted with this stands still when it comes to it: that is how requests are kept open."""
PIECE = Text("piece")
"""Every output."""
FINISH = Finish(FinishReason.STOP)
ABORTED = Finish(FinishReason.ABORT)
HANG = "hang"
"""A collective RPC with this method does not return until the backend is closed; any other does at once."""


class InstantOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A job gives `outputs` pieces once its input is complete; with 0 it gives one for each item of its input."""

    outputs: int = 1


class NoParams(msgspec.Struct, frozen=True):
    """Nothing can be set."""


class _Run:
    """One job: how many outputs it owes, and whether it is closed: finished once those are given."""

    __slots__ = ("finish", "given", "is_closed", "is_held", "is_newcomer", "owed")

    def __init__(self, owed: int, *, is_closed: bool, is_held: bool) -> None:
        self.owed = owed
        self.given = 0
        self.is_closed = is_closed
        self.is_held = is_held
        self.is_newcomer = False
        self.finish = FINISH


class InstantBackend:
    """Runs on the engine's loop, which `loop` is once it is loaded. `given` counts outputs, `steps` batches of them."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        kinds=frozenset(StageKind),
        produces=DELIVERABLE,
        streams_input=True,
        partial_on_stop=False,
        placement=Placement.LOOP,
        calls=frozenset({"collective_rpc"}),
        pause_modes=frozenset(PauseMode),
    )

    def __init__(self, stage: str = "instant", options: Payload = None) -> None:
        """`options` None is the same as `InstantOptions()`."""
        checked = InstantOptions() if options is None else options
        assert isinstance(checked, InstantOptions), "options come from parse_options"
        self._stage = stage
        self._outputs = checked.outputs
        self._runs: dict[JobKey, _Run] = {}
        self._ready: dict[JobKey, _Run] = {}
        self._parked: dict[JobKey, _Run] = {}
        self._mode: PauseMode | None = None
        self._turn = 0
        self._changed = asyncio.Event()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.given = 0
        self.steps = 0

    def __repr__(self) -> str:
        return f"<InstantBackend {self._stage}, {len(self._runs)} jobs, {len(self._ready)} with outputs to give>"

    @property
    def jobs(self) -> int:
        """How many jobs it has."""
        return len(self._runs)

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> InstantOptions:
        """Check the options. Raises ConfigurationError."""
        return read_options(InstantOptions, values)

    @classmethod
    def parse_params(cls, options: Payload, values: Mapping[str, object]) -> NoParams:  # noqa: ARG003 - the port
        """Refuse every parameter. Raises InvalidRequestError."""
        return read_params(NoParams, values)

    async def load(self) -> None:
        """Know the loop."""
        self.loop = asyncio.get_running_loop()

    def submit(self, task: StageTask) -> None:
        """Take a job."""
        inputs = task.inputs
        is_held = HOLD in inputs
        is_closed = not (task.input_open or is_held)
        owed = self._outputs if is_closed else 0
        if not self._outputs:
            owed = inputs.index(HOLD) if is_held else len(inputs)
        run = self._runs[task.job] = _Run(owed, is_closed=is_closed, is_held=is_held)
        run.is_newcomer = self._mode is not None
        if owed or is_closed:
            self._note(task.job, run)

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        """Owe an output for each item, unless the number of outputs is fixed."""
        run = self._runs.get(job)
        if run is not None and not (self._outputs or run.is_held):
            run.owed += len(inputs)
            self._note(job, run)

    def end_input(self, job: JobKey) -> None:
        """Finish once everything owed was given."""
        run = self._runs.get(job)
        if run is not None and not run.is_held:
            run.is_closed = True
            run.owed += self._outputs
            self._note(job, run)

    async def stop(self, job: JobKey) -> Payload:
        """Forget a job."""
        self._runs.pop(job, None)
        self._ready.pop(job, None)
        self._parked.pop(job, None)
        self._changed.set()
        return None

    async def next_outputs(self) -> Sequence[JobOutput]:
        """Wait for a job that owes something; then one step: an output of each job that owes any."""
        if self._ready:
            await asyncio.sleep(0)  # no engine makes two steps in one turn of somebody else's loop
        while not self._ready:  # a pause may have taken it away
            if self._closed.is_set():
                raise BackendDead("the backend is closed")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        ready, self._ready = self._ready, {}
        self.steps += 1
        return [self._step(job, run) for job, run in ready.items()]

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """Pause, resume, and a collective RPC that returns its method, as from one worker; see HANG."""
        if self._closed.is_set():
            raise BackendDead("the backend is closed")
        match method:
            case "pause":
                await self._pause(read_params(PauseArguments, arguments, "pause").mode)
            case "resume":
                self._resume()
            case "collective_rpc":
                if arguments.get("method") == HANG:
                    await self._closed.wait()  # and for nothing else: it must cost the jobs nothing
                    raise BackendDead("the backend is closed")
                return [arguments.get("method")]
            case _:
                raise UnsupportedError.because(f"the instant backend has no call '{method}'", stage=self._stage)
        return None

    async def _pause(self, mode: PauseMode) -> None:
        self._turn += 1
        turn, self._mode = self._turn, mode
        self._parked |= self._ready
        self._ready.clear()
        earlier = {job: run for job, run in self._runs.items() if not run.is_newcomer}
        if mode is PauseMode.KEEP:
            return
        for job, run in earlier.items():
            if mode is PauseMode.ABORT:
                run.owed, run.is_closed, run.finish = 0, True, ABORTED
            if self._parked.pop(job, None) is not None or run.is_closed:
                self._note(job, run)
        while any(not run.is_newcomer for run in self._runs.values()):
            await self._wait_change()
            if self._turn != turn:
                message = "a later call took over"
                kind = ErrorKind.SUPERSEDED
                raise SupersededError(
                    ErrorRecord(kind=kind, scope=Scope.REPLICA, stage=self._stage, message=message),
                )

    def _resume(self) -> None:
        self._turn += 1
        self._mode = None
        for run in self._runs.values():
            run.is_newcomer = False
        parked, self._parked = self._parked, {}
        for job, run in parked.items():
            self._note(job, run)
        self._changed.set()

    async def _wait_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        if self._closed.is_set():
            raise BackendDead("the backend is closed")

    async def close(self) -> None:
        """Forget everything."""
        self._closed.set()
        self._runs.clear()
        self._ready.clear()
        self._parked.clear()
        self._changed.set()
        self._wake()

    def _note(self, job: JobKey, run: _Run) -> None:
        if self._mode is PauseMode.KEEP or run.is_newcomer:
            self._parked[job] = run
            return
        self._ready[job] = run
        if self._waiter is not None:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    def _step(self, job: JobKey, run: _Run) -> JobOutput:
        sequence = run.given
        payloads: tuple[Payload, ...] = ()
        if run.owed:
            run.owed -= 1
            run.given += 1
            self.given += 1
            payloads = (PIECE,)
        if run.owed:
            self._ready[job] = run
        elif run.is_closed:
            del self._runs[job]
            self._changed.set()
            return JobOutput(job, sequence, payloads, run.finish)
        return JobOutput(job, sequence, payloads)
