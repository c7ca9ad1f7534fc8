"""The backend that runs a stage on a vLLM engine: jobs in, batches of outputs out, and stops that are confirmed.

One sender and one receiver serve all jobs; nothing here runs per token or per request. It knows jobs, and leaves what
vLLM is made of to `engine` and `start`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from podium.backends.vllm import options as vllm_options
from podium.backends.vllm.control import CALLS, IRREVERSIBLE_LEVELS, PAUSE_MODES, SLEEP_LEVELS, Control
from podium.backends.vllm.engine import Engine, client_errors
from podium.backends.vllm.jobs import RunningJob
from podium.backends.vllm.options import VllmOptions, VllmParams
from podium.backends.vllm.side_thread import SideThread
from podium.backends.vllm.start import Start
from podium.core.graph import Modality, StageKind
from podium.core.identity import JobKey, Payload
from podium.errors import ErrorKind, ErrorRecord, InvalidRequestError, Scope, StopUnconfirmedError
from podium.payloads import Text
from podium.ports.stage_backend import BackendDead, BackendOutput, Capabilities, Placement, StageTask
from podium.tasks import OwnedTask

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine import EngineCoreRequest

log = logging.getLogger(__name__)

_MAX_UNSENT = 65536
_DELIVERY_TIMEOUT_S = 5.0


class _Message(NamedTuple):
    """Something for the engine core: how to send it, and who hears of it (None, or the error)."""

    send: Callable[[], Awaitable[None]]
    sent: Callable[[Exception | None], None]


class VllmBackend:
    """One vLLM engine with its own processes."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        kinds=frozenset({StageKind.AUTOREGRESSIVE}),
        produces=frozenset({Modality.TEXT, Modality.TOKENS}),
        streams_input=False,
        partial_on_stop=True,
        placement=Placement.THREAD,
        calls=CALLS,
        pause_modes=PAUSE_MODES,
        sleep_levels=SLEEP_LEVELS,
        irreversible_levels=IRREVERSIBLE_LEVELS,
    )

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> VllmOptions:
        """The options of a stage; raises ConfigurationError with every fault."""
        return vllm_options.parse_options(values)

    @classmethod
    def parse_params(cls, options: Payload, values: Mapping[str, object]) -> VllmParams:  # noqa: ARG003 - port
        """The sampling parameters of a request; raises InvalidRequestError that names the parameter."""
        return vllm_options.parse_params(values)

    def __init__(self, stage: str, options: Payload) -> None:
        """Prepare an engine for `stage`; `options` are VllmOptions."""
        if not isinstance(options, VllmOptions):
            raise TypeError(f"options must be VllmOptions, not {type(options).__name__}")
        self._stage = stage
        self._options = options
        self._start: Start | None = None
        self._starting: SideThread[Engine] | None = None
        self._engine: Engine | None = None
        self._jobs: dict[JobKey, RunningJob] = {}
        self._by_name: dict[str, RunningJob] = {}
        self._ready: dict[JobKey, RunningJob] = {}
        self._held: dict[JobKey, EngineCoreRequest] = {}
        self._control = Control(stage, self)
        self._something_ready = asyncio.Event()
        self._unsent: asyncio.Queue[_Message] = asyncio.Queue(_MAX_UNSENT)
        self._received = asyncio.Event()
        self._dead: BackendDead | None = None
        self._receiver = OwnedTask(f"vllm receiver of {stage}", self._lose)
        self._sender = OwnedTask(f"vllm sender of {stage}", self._lose)
        self._closing = OwnedTask(f"vllm close of {stage}", self._note_failed_close)
        self._is_closing = False

    def __repr__(self) -> str:
        state = "dead" if self._dead else "new" if self._engine is None else "up"
        return f"<VllmBackend {self._stage} {state} jobs={len(self._jobs)} ready={len(self._ready)}>"

    @property
    def job_count(self) -> int:
        """How many jobs it keeps anything of."""
        return len(self._jobs)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of the engine's processes that still run."""
        return self._engine.processes.pids if self._engine is not None else ()

    async def load(self) -> None:
        """Bring the engine up; raises StartError with the remedy. A cancelled load leaves no process."""
        if self._start is not None or self._dead is not None:
            raise BackendDead(f"the engine of stage '{self._stage}' was started or closed before")
        self._start = Start(self._stage, self._options)
        self._starting = SideThread(f"vllm start of {self._stage}", self._start.run)
        try:
            engine = await self._starting.wait()
        except asyncio.CancelledError:
            await self.close()
            raise
        if self._dead is not None:  # closed meanwhile; close() takes the engine down
            raise self._dead
        self._engine = engine
        self._receiver.start(self._receive_all())
        self._sender.start(self._send_all())

    def submit(self, task: StageTask) -> None:
        """Take a job. Raises InvalidRequestError for a prompt or parameters that the model cannot take."""
        engine = self.engine()
        if task.input_open:
            raise InvalidRequestError.because("this backend takes a prompt as a whole", stage=self._stage)
        if task.job in self._jobs:
            raise ValueError(f"job {task.job} runs already")
        if self._unsent.qsize() + len(self._held) >= _MAX_UNSENT:
            raise RuntimeError(f"{_MAX_UNSENT} messages wait to be sent to vLLM")
        params = task.params if isinstance(task.params, VllmParams) else VllmParams()
        adapter = None if params.lora is None else self._control.adapters.find(params.lora)
        try:
            request = engine.make_request(str(task.job), task.inputs, _seeded(params, task.job.sample), adapter)
        except client_errors() as error:
            raise InvalidRequestError.because(str(error), stage=self._stage) from error
        engine.register(request)
        job = RunningJob(task.job, request.request_id, prompt_tokens=len(request.prompt_token_ids), lora=params.lora)
        self._jobs[task.job] = self._by_name[str(task.job)] = job
        self._control.adapters.note_begin(params.lora)
        if self._control.holds_new_jobs:
            self._held[task.job] = request
        else:
            self._send(job, request)

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:  # noqa: ARG002 - the port's shape
        """Jobs are submitted with all of their input; raises ValueError for a running one."""
        if job in self._jobs:
            raise ValueError(f"job {job} takes no more input: this backend takes a prompt as a whole")

    def end_input(self, job: JobKey) -> None:
        """Jobs are submitted with all of their input."""

    async def stop(self, job: JobKey) -> Text | None:
        """Stop a job in the engine first, and forget it once that is confirmed; returns all of its text.

        Raises StopUnconfirmedError or BackendDead, and then keeps what there is: a repetition returns the same text.
        """
        running = self._jobs.get(job)
        if running is None:
            return None
        async with running.stopping:
            if self._jobs.get(job) is running:
                try:
                    await self._stop_in_engine(running)
                finally:
                    if running.is_over and job not in self._ready:  # it ended meanwhile, and its end was taken
                        self._forget(running)
                await self._wait_taken(running)
                self._forget(running)
        return running.everything

    async def next_outputs(self) -> Sequence[BackendOutput]:
        """Wait for outputs of any jobs. Raises BackendDead once the engine is gone and all outputs were taken."""
        while not self._ready:
            if self._dead is not None:
                raise self._dead
            self._something_ready.clear()
            await self._something_ready.wait()
        ready = list(self._ready.values())
        self._ready.clear()
        outputs = [job.take() for job in ready]
        for job in ready:
            if job.is_over and not job.stopping.locked():
                self._forget(job)
        self._control.note_change()
        return outputs

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        """A control call: see `control`."""
        return await self._control.call(method, arguments)

    async def close(self) -> None:
        """End the engine and its processes, by force if need be. Idempotent; safe while `load` runs."""
        if not self._is_closing:
            self._is_closing = True
            self._die(BackendDead(f"the engine of stage '{self._stage}' was closed"))
            self._closing.start(self._close())
        await self._closing.wait()

    async def _close(self) -> None:
        engine = self._engine
        if engine is None and self._start is not None and self._starting is not None:
            timeout_s = self._start.abandon()
            is_done = await self._starting.is_done_within(timeout_s)
            if is_done and self._starting.outcome.exception() is None:
                engine = self._starting.outcome.result()
        await self._receiver.close()
        await self._sender.close()
        for table in (self._jobs, self._by_name, self._ready, self._held):
            table.clear()
        if engine is not None:
            shutdown = partial(engine.shutdown, self._options.close_timeout_s)
            await SideThread(f"vllm close of {self._stage}", shutdown).wait()

    def _note_failed_close(self, error: BaseException) -> None:
        log.error("the vLLM engine of stage '%s' did not close well", self._stage, exc_info=error)

    def engine(self) -> Engine:
        """The live engine; raises BackendDead."""
        if self._dead is not None:
            raise self._dead
        if self._engine is None:
            raise BackendDead(f"the engine of stage '{self._stage}' was not loaded")
        return self._engine

    async def send_all(self) -> None:
        """Wait until everything posted before is sent to the engine."""
        self.engine()
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._unsent.put(_Message(_nothing, partial(_settle, sent)))
        await sent

    def send_held(self) -> None:
        """Send the jobs that were held."""
        held, self._held = self._held, {}
        for key, request in held.items():
            self._send(self._jobs[key], request)

    @property
    def is_drained(self) -> bool:
        """Whether all jobs but those that are held are over and taken."""
        return len(self._jobs) == len(self._held)

    @property
    def is_taken(self) -> bool:
        """Whether all outputs were taken."""
        return not self._ready

    def _send(self, job: RunningJob, request: EngineCoreRequest) -> None:
        self._unsent.put_nowait(_Message(partial(self.engine().send, request), partial(self._after_send, job)))

    def _die(self, dead: BackendDead) -> None:
        """No more outputs will come: wake everybody who waits."""
        if self._dead is not None:
            return
        self._dead = dead
        while not self._unsent.empty():
            self._unsent.get_nowait().sent(dead)
        if self._engine is not None:
            self._engine.fail_calls(dead)
        self._something_ready.set()
        self._received.set()
        self._control.note_change()

    def _lose(self, error: BaseException) -> None:
        """Whatever ends the sender or the receiver is the end of the engine."""
        dead = BackendDead(f"the vLLM engine of stage '{self._stage}' died: {str(error) or type(error).__name__}")
        dead.__cause__ = error
        self._die(dead)

    async def _receive_all(self) -> None:
        engine = self.engine()
        while True:
            outputs, aborts = await engine.receive()
            if aborts:  # they met a stop text, which only this side knows of
                await self._unsent.put(_Message(partial(engine.send_abort, aborts), _ignore))
            for output in outputs:
                self._take(output)
            self._received.set()

    async def _send_all(self) -> None:
        while True:
            message = await self._unsent.get()
            try:
                await message.send()
            except Exception as error:  # noqa: BLE001 - goes to whoever posted the message
                message.sent(error)
            except asyncio.CancelledError as error:
                if self._dead is not None:
                    message.sent(self._dead)
                    raise
                # A send on the socket of an engine that died is cancelled by its owner, not by ours.
                lost = ConnectionError("the connection to its process was closed")
                message.sent(lost)
                raise lost from error
            else:
                message.sent(None)

    def _take(self, output: RequestOutput) -> None:
        """Put one output of vLLM where `next_outputs` finds it."""
        job = self._by_name.get(output.request_id)
        if job is None:
            return
        completion = output.outputs[0]
        job.add(completion.text, completion.token_ids)
        if completion.finish_reason == "error":
            self._fail(job, "vLLM failed on this request")
        elif completion.finish_reason is not None:
            job.end(completion.finish_reason)
        if job.has_output:
            self._show(job)

    def _after_send(self, job: RunningJob, error: Exception | None) -> None:
        if error is not None and self._dead is None and self._engine is not None:
            self._engine.forget(job.request_id)
            self._fail(job, f"the prompt could not be sent to vLLM: {error}")

    def _fail(self, job: RunningJob, message: str) -> None:
        job.fail(self._record(job, ErrorKind.STAGE_FAILED, message))
        self._show(job)

    def _record(self, job: RunningJob, kind: ErrorKind, message: str, awaited: str | None = None) -> ErrorRecord:
        return ErrorRecord(
            kind=kind,
            scope=Scope.REQUEST,
            message=message,
            stage=self._stage,
            request_id=job.key.request,
            awaited=awaited,
        )

    def _show(self, job: RunningJob) -> None:
        job.taken.clear()
        self._ready[job.key] = job
        self._something_ready.set()

    def _forget(self, job: RunningJob) -> None:
        if self._jobs.pop(job.key, None) is not None:
            self._control.adapters.note_end(job.lora)
        self._by_name.pop(str(job.key), None)
        self._ready.pop(job.key, None)
        self._held.pop(job.key, None)
        self._control.note_change()

    async def _stop_in_engine(self, job: RunningJob) -> None:
        """Stop a job in the engine, then in the output processor; when it raises, nothing was forgotten."""
        if job.is_over:
            return
        engine = self.engine()
        if job.key in self._held:  # the engine has never heard of it
            engine.forget(job.request_id)
            del self._held[job.key]
            return
        timeout_s = self._options.stop_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_abort(engine, job.request_id)
                await self.wait_received(await engine.confirm())
        except TimeoutError as error:
            message = f"vLLM did not confirm within {timeout_s:g} s that it stopped '{job.key.request}'; stop it again"
            record = self._record(job, ErrorKind.STOP_UNCONFIRMED, message, "stop confirmation")
            raise StopUnconfirmedError(record, [job.key.request]) from error
        if not job.is_over:
            for output in engine.forget(job.request_id):
                completion = output.outputs[0]
                job.add_unseen(completion.text, completion.token_ids)

    async def _send_abort(self, engine: Engine, request_id: str) -> None:
        """Send an abort behind everything that was posted before, and wait until it is sent."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._unsent.put(_Message(partial(engine.send_abort, [request_id]), partial(_settle, sent)))
        await sent

    async def wait_received(self, count: int) -> None:
        """Wait until so many batches of outputs were taken in."""
        while self.engine().received < count:
            self._received.clear()
            await self._received.wait()

    async def _wait_taken(self, job: RunningJob) -> None:
        """Let `next_outputs` hand out what came before a stop; what nobody takes in time is dropped."""
        try:
            async with asyncio.timeout(_DELIVERY_TIMEOUT_S):
                await job.taken.wait()
        except TimeoutError:
            log.warning("outputs of %s were not taken within %g s before its stop", job.key, _DELIVERY_TIMEOUT_S)


async def _nothing() -> None:
    """Send nothing: whoever posted it hears when everything before is sent."""


def _seeded(params: VllmParams, sample: int) -> VllmParams:
    """The parameters of one sample: with one seed for all, they would all be the same."""
    if params.seed is None or sample == 0:
        return params
    return msgspec.structs.replace(params, seed=(params.seed + sample) % (1 << 63))


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _ignore(error: Exception | None) -> None:
    """An abort of what has ended for its client: vLLM ends it at its length, if not now."""
