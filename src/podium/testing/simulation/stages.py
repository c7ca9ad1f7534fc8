"""What runs in a simulated stage: a backend that works in virtual time and goes wrong, and its input processor.

Both tell the Truth what they were given and what they made. They know nothing of the engine beyond their ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import ClassVar, NamedTuple

import msgspec

from podium.core.events import FinishReason, JobOutput
from podium.core.graph import EmptyPolicy, Modality, Stage
from podium.core.identity import MAIN, PROMPT, JobKey, Payload, ReplicaKey
from podium.errors import ErrorKind, InvalidRequestError
from podium.options import read_options
from podium.ports.stage_backend import BackendDead, BackendOutput, Capabilities, Placement, StageTask
from podium.testing.fake_backend import FakeBackend, FakeOptions
from podium.testing.fake_processor import NoOptions
from podium.testing.simulation.surroundings import Surroundings
from podium.testing.simulation.truth import JobTruth

GHOST = JobKey("ghost", "a", MAIN, 10**9)
SLOW_S = (0.2, 1.0, 90.0)
PAUSES_S = (0.0, 0.0, 0.001, 0.02)
LOAD_S = (0.0, 0.01, 1.0)


class Doing(StrEnum):
    """What a job can do next."""

    MAKE = "make"
    AWAIT_INPUT = "await input"
    FINISH = "finish"
    FAIL = "fail"
    HANG = "hang"
    DIE = "die"
    ANNOUNCE = "announce"


class Step(NamedTuple):
    """One thing that a job does, `after_s` seconds after the one before. MAKE and FINISH make `pieces` in one batch."""

    doing: Doing
    after_s: float
    pieces: int = 0
    reason: FinishReason = FinishReason.STOP


class Run:
    """One job at work: its steps, and whether more input comes."""

    def __init__(self, truth: JobTruth, steps: list[Step], *, input_open: bool) -> None:
        self.truth = truth
        self.steps = steps
        self.input_open = input_open
        self.is_parked = False
        self.is_frozen = False


class SimulatedBackend(FakeBackend):
    """Plays steps that are drawn for each job. What it makes is numbered for the use, the stage and the attempt."""

    def __init__(self, stage: Stage, replica: ReplicaKey, around: Surroundings) -> None:
        super().__init__(stage.name, FakeOptions(by_hand=True))
        self._of = stage
        self._replica = replica
        self._around = around
        self._truth = around.truth
        self._draw = around.draw_for(f"backend {replica}")
        self._runs: dict[JobKey, Run] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._held: list[BackendOutput] = []
        self._last_words: BaseException | None = None

    def may_start(self) -> bool:
        """Whether nobody told it to stand still; of a dead one that is nobody's concern."""
        return self._death is not None or (self._pausing is None and not self.asleep)

    @property
    def stage_name(self) -> str:
        """The stage that it serves."""
        return self._of.name

    async def load(self) -> None:
        """Take some time, and sometimes fail."""
        await asyncio.sleep(self._draw.choice(LOAD_S))
        if self._chance(self._around.weather.load_fail):
            self._truth.see("load failed", self._replica)
            if self._draw.random() < 0.5:
                raise RuntimeError("the seed says so")
            await asyncio.sleep(1000.0)
        await super().load()

    def submit(self, task: StageTask) -> None:
        """Take a job and begin with its steps, unless it is refused."""
        self._refuse(task.job)
        super().submit(task)
        truth = self._truth.jobs[task.job]
        truth.taken += task.inputs
        truth.is_whole = not task.input_open
        truth.was_taken = True
        truth.pieces = self._jobs[task.job].generated
        limit = self._of.limits.max_inflight
        self._truth.expect(len(self._jobs) <= limit, f"{self._replica} has {len(self._jobs)} jobs, over {limit}")
        self._truth.trace.note(f"submit {task.job}")
        job = self._jobs[task.job]
        job.stop_failures = self._draw.choice((1, 2)) if self._chance(self._around.weather.stop_fail) else 0
        job.hangs_at_stop = self._chance(self._around.weather.stop_hang)
        self._runs[task.job] = Run(truth, self._draw_steps(), input_open=task.input_open)
        self._go_on(task.job)

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        """Take more input, unless it is refused."""
        super().feed(job, inputs)
        if job in self._jobs:
            self._refuse(job)
            self._truth.jobs[job].taken += inputs

    def end_input(self, job: JobKey) -> None:
        """Go on, if the job waited for this."""
        super().end_input(job)
        run = self._runs.get(job)
        if run is not None and job in self._jobs:
            run.truth.is_whole = True
            run.input_open = False
            if run.is_parked:
                run.is_parked = False
                self._go_on(job)

    async def stop(self, job: JobKey) -> Payload:
        """Take some time over it; fail, or hang, as was drawn for the job."""
        if job in self._runs and self._runs[job].truth.stop_told_at is None:
            self._runs[job].truth.stop_told_at = asyncio.get_running_loop().time()
        await asyncio.sleep(self._draw.choice(PAUSES_S))
        found = self._jobs.get(job)
        if found is not None and found.stop_failures:
            self._truth.see("stop failed", job)
            if found.stop_failures > 1:  # the repetition fails too, and the replica counts as stuck
                self._truth.causes_for_all |= {ErrorKind.REPLICA_LOST, ErrorKind.STAGE_UNAVAILABLE}
        if found is not None and found.hangs_at_stop:
            self._truth.see("stop hangs", job)
            self._truth.causes_for_all |= {ErrorKind.REPLICA_LOST, ErrorKind.STAGE_UNAVAILABLE, ErrorKind.WAIT_TIMEOUT}
        partial = await super().stop(job)
        self._truth.trace.note(f"stopped {job}")
        return [partial] if isinstance(partial, str) else partial  # a payload of its own, not the piece

    async def next_outputs(self) -> Sequence[BackendOutput]:
        """What was made; sometimes cut, out of order, and with something of nobody."""
        if not self._held:
            try:
                batch = await super().next_outputs()
            except BackendDead as death:
                raise self._last_words or death from None
            if not self._chance(self._around.weather.shuffle):
                return batch
            self._truth.see("outputs shuffled", self._replica)
            self._held = [part for output in batch for part in self._cut(output)]
            self._draw.shuffle(self._held)
        count = self._draw.randint(1, len(self._held))
        batch, self._held = self._held[:count], self._held[count:]
        return batch

    def finish(
        self, job: JobKey, reason: FinishReason = FinishReason.STOP, *payloads: Payload, label: str | None = None
    ) -> None:
        """Finish a job, of its own or because of a pause."""
        if job in self._runs and not (self._jobs[job].has_ended or self._jobs[job].is_stopping):
            self._runs[job].truth.finish = reason
            self._runs[job].truth.over_at = asyncio.get_running_loop().time()
            self._truth.see(f"finish {reason}", job)
        super().finish(job, reason, *payloads, label=label)

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """Fail, or hang, before or after it did what it is for. Jobs that stood still go on with the end of a pause.

        What calls do is done in the order in which they came.
        """
        if self._chance(self._around.weather.call_fail):
            self._fail_call(method)
        if self._chance(self._around.weather.call_hang):
            await self._hang_call(method)
        value = await super().call(method, arguments)
        self._truth.trace.note(f"called {self._replica} {method}")
        if method == "resume":
            for job, run in self._runs.items():
                if run.is_frozen and job in self._jobs:
                    run.is_frozen = False
                    self._go_on(job)
        await asyncio.sleep(self._draw.choice(PAUSES_S))
        if self._chance(self._around.weather.call_fail):
            self._fail_call(method)
        return value

    def _fail_call(self, method: str) -> None:
        self._truth.see("call failed", (self._replica, method))
        raise RuntimeError("the seed says so")

    async def _hang_call(self, method: str) -> None:
        self._truth.see("call hangs", (self._replica, method))
        await asyncio.sleep(5000.0)

    async def close(self) -> None:
        """Be gone; sometimes only when nobody waits for it any more."""
        for timer in self._timers:
            timer.cancel()
        await super().close()
        if self._chance(self._around.weather.close_hang):
            self._truth.see("close hangs", self._replica)
            await asyncio.sleep(1000.0)

    def die_somehow(self) -> None:
        """Be gone for good: say so properly, raise anything, or let out a cancellation."""
        if self._death is not None:
            return
        self._truth.see("died", self._replica)
        self._truth.died[self._replica] = asyncio.get_running_loop().time()
        self._truth.causes_for_all |= {ErrorKind.REPLICA_LOST, ErrorKind.STAGE_UNAVAILABLE}
        self._last_words = self._draw.choice((None, None, OSError("the seed says so"), asyncio.CancelledError()))
        self.die("the seed says so")

    def _chance(self, rate: float) -> bool:
        return rate > 0 and self._draw.random() < rate

    def _refuse(self, job: JobKey) -> None:
        if self._death is None and self._chance(self._around.weather.refuse):
            is_clients = self._draw.random() < 0.5
            self._truth.see("refused", job)
            self._truth.blame(job, ErrorKind.INVALID_REQUEST if is_clients else ErrorKind.STAGE_FAILED)
            if is_clients:
                raise InvalidRequestError.because("input: the seed says that it is wrong; take another")
            raise ValueError("the seed says so")

    def _draw_steps(self) -> list[Step]:
        """What a job does: pieces before and after the end of its input, one end, and sometimes trouble in between."""
        weather, draw = self._around.weather, self._draw
        before, after = draw.choice((0, 0, 1, 2, 4)), draw.choice((0, 1, 1, 2, 3))
        steps = [self._step(Doing.MAKE, draw.choice((1, 1, 2))) for _ in range(before)]
        if not self._chance(weather.early_end):
            steps.append(self._step(Doing.AWAIT_INPUT))
        steps += [self._step(Doing.MAKE, draw.choice((1, 1, 3))) for _ in range(after)]
        reason = draw.choice((FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH))
        if self._chance(weather.odd_end):
            reason = draw.choice((FinishReason.ABORT, FinishReason.ERROR))
        steps.append(self._step(Doing.FINISH, draw.choice((0, 0, 1, 2)), reason))
        if self.capabilities.reports_start or draw.random() < 0.2:
            steps.insert(0, self._step(Doing.ANNOUNCE))
        for doing, rate in ((Doing.FAIL, weather.fail), (Doing.HANG, weather.hang), (Doing.DIE, weather.die)):
            if self._chance(rate):
                steps.insert(draw.choice((0, draw.randrange(len(steps)), len(steps) - 1)), self._step(doing))
        return steps

    def _step(self, doing: Doing, pieces: int = 0, reason: FinishReason = FinishReason.STOP) -> Step:
        after_s = self._draw.choice(PAUSES_S)
        if self._chance(self._around.weather.slow):
            after_s = self._draw.choice(SLOW_S)
        return Step(doing, after_s, pieces, reason)

    def _go_on(self, job: JobKey) -> None:
        """Have the next step happen when it is due."""
        run = self._runs[job]
        if run.steps and run.steps[0].after_s:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(run.steps[0].after_s, self._take_step, job))
        elif run.steps:
            self._take_step(job)

    def _take_step(self, job: JobKey) -> None:
        run = self._runs[job]
        if job not in self._jobs or self._jobs[job].is_stopping:
            return
        if self._jobs[job].is_held:
            run.is_frozen = True
            return
        step = run.steps[0]
        if step.doing is Doing.AWAIT_INPUT and run.input_open:
            run.is_parked = True
            return
        del run.steps[0]
        self._do(run, step)
        self._go_on(job)

    def _do(self, run: Run, step: Step) -> None:
        job = run.truth.key
        match step.doing:
            case Doing.MAKE:
                self.produce(job, *self._pieces(run, step.pieces))
            case Doing.ANNOUNCE:
                self.announce(job)
            case Doing.FINISH:
                self._finish(run, step)
            case Doing.FAIL:
                self._truth.see("job failed", job)
                self._truth.blame(job, ErrorKind.STAGE_FAILED)
                run.truth.over_at = asyncio.get_running_loop().time()
                run.steps.clear()
                self.fail(job)
            case Doing.HANG:
                self._truth.see("hangs", job)
                run.steps.clear()
            case Doing.DIE:
                self._truth.see(_moment_of(run), job)
                run.steps.clear()
                self.die_somehow()
            case Doing.AWAIT_INPUT:
                pass

    def _finish(self, run: Run, step: Step) -> None:
        pieces = self._pieces(run, step.pieces)
        is_empty = not pieces and not run.truth.pieces
        if step.reason is FinishReason.ERROR or (is_empty and self._of.on_empty is EmptyPolicy.ERROR):
            self._truth.blame(run.truth.key, ErrorKind.STAGE_FAILED)
        self.finish(run.truth.key, step.reason, *pieces)

    def _pieces(self, run: Run, count: int) -> list[str]:
        key, made = run.truth.key, len(run.truth.pieces)
        return [f"{run.truth.use}/{key.stage}#{key.attempt}/{number}" for number in range(made, made + count)]

    def _cut(self, output: BackendOutput) -> list[BackendOutput]:
        parts: list[BackendOutput] = [output]
        if isinstance(output, JobOutput) and output.payloads:
            cut = self._draw.randint(0, len(output.payloads))
            first = JobOutput(output.job, output.sequence, output.payloads[:cut])
            second = JobOutput(output.job, output.sequence + cut, output.payloads[cut:], output.finish)
            parts = [part for part in (first, second) if part.payloads or part.finish is not None]
        if self._chance(self._around.weather.duplicate):
            parts += parts
        if self._draw.random() < 0.05:
            parts.append(JobOutput(GHOST, 0, ("of nobody",)))
        return parts


def _moment_of(run: Run) -> str:
    """When a replica dies, as one of its jobs sees it."""
    if not run.truth.pieces:
        return "lost before any output"
    return "lost before the end" if run.steps[0].doing is Doing.FINISH else "lost between outputs"


class WholeInputBackend(SimulatedBackend):
    """The same, but each job is submitted with all of its input."""

    capabilities: ClassVar[Capabilities] = msgspec.structs.replace(FakeBackend.capabilities, streams_input=False)


class ReportingBackend(SimulatedBackend):
    """The same, but it says itself when it takes up a job."""

    capabilities: ClassVar[Capabilities] = msgspec.structs.replace(FakeBackend.capabilities, reports_start=True)


class SimulatedProcessor:
    """Passes items on, sometimes later; and raises."""

    accepts: ClassVar[frozenset[Modality] | None] = None
    placement: ClassVar[Placement] = Placement.LOOP

    def __init__(self, options: Payload) -> None:
        assert isinstance(options, ProcessorOptions)
        self._options = options
        self._draw = options.around.draw_for(f"processor {options.replica}")

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> Payload:
        """Refuse every option."""
        return read_options(NoOptions, values, "processor_options")

    def open(self, job: JobKey, prompt: Payload, sources: Mapping[str, Modality]) -> SimulatedStream:  # noqa: ARG002
        """Begin the input of a job."""
        around = self._options.around
        truth = around.truth.open(job, prompt, self._options.replica)
        around.truth.expect(self._options.may_start(), f"{job} was started at {truth.replica}, which is paused")
        stream = SimulatedStream(truth, around, self._draw)
        around.truth.streams.add(stream)
        stream.trouble()
        return stream


class ProcessorOptions(NamedTuple):
    """What a processor is made with."""

    replica: ReplicaKey
    around: Surroundings
    may_start: Callable[[], bool]


class SimulatedStream:
    """The input of one job. Every item that comes in is noted with its source, and every item that goes on."""

    def __init__(self, job: JobTruth, around: Surroundings, draw: Random) -> None:
        self._job = job
        self._around = around
        self._draw = draw
        self._kept: list[Payload] = []

    def feed(self, source: str, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """The items, now or with the next ones."""
        late = source in self._job.ended_sources
        self._around.truth.expect(not late, f"{self._job.key} got more of '{source}' after its end")
        self._job.inputs[source] += payloads
        self.trouble()
        self._kept += payloads
        return () if source != PROMPT and self._draw.random() < 0.2 else self._take()

    def end(self, source: str) -> Sequence[Payload]:
        """What was kept."""
        again = source in self._job.ended_sources
        self._around.truth.expect(not again, f"{self._job.key} got the end of '{source}' twice")
        self._job.ended_sources.add(source)
        self.trouble()
        return self._take()

    def trouble(self) -> None:
        """Raise, when the weather is so."""
        rate = self._around.weather.process
        if rate and self._draw.random() < rate:
            is_clients = self._draw.random() < 0.5
            self._around.truth.see("processor raised", self._job.key)
            kind = ErrorKind.INVALID_REQUEST if is_clients else ErrorKind.PROCESSOR_FAILED
            self._around.truth.blame(self._job.key, kind)
            if is_clients:
                raise InvalidRequestError.because("input: the seed says that it is wrong; take another")
            raise LookupError("the seed says so")

    def _take(self) -> tuple[Payload, ...]:
        kept, self._kept = tuple(self._kept), []
        self._job.prepared += kept
        return kept
