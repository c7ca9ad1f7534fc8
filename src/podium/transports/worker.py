"""One replica at work: a backend with its input processor, told by commands and answering with events.

Every transport runs one of these, wherever it puts the replica. It translates what a backend or a processor raises into
records; it decides nothing about requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec

from podium.core.effects import CallReplica, EndInput, FeedJob, StartJob, StopJob
from podium.core.events import (
    CallReturned,
    InputRejected,
    JobOutput,
    ReplicaLost,
    ReplicaReported,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.graph import Modality
from podium.core.identity import PROMPT, JobKey, Payload, ReplicaKey
from podium.errors import ErrorKind, ErrorRecord, InvalidRequestError, RequestError, Scope
from podium.ports.input_processor import BundleMember, BundleProcessor, InputStream, Processor
from podium.ports.stage_backend import (
    BackendDead,
    BackendOutput,
    JobFailed,
    JobStarted,
    LoadReport,
    StageBackend,
    StageTask,
)
from podium.ports.stage_client import EventSink, StageCommand

_log = logging.getLogger("podium.worker")


class _OpenInput:
    """The input of one job that is not complete yet.

    `held` gathers what a backend without streaming input gets at the end; None when the backend has the job already.
    """

    __slots__ = ("held", "open_sources", "stream", "task")

    def __init__(self, stream: InputStream, open_sources: int, task: StageTask) -> None:
        self.stream = stream
        self.open_sources = open_sources
        self.task = task
        self.held: list[Payload] | None = None


class StageWorker:
    """A loaded backend that serves one replica. All methods are called on one loop; `run` delivers until cancelled."""

    def __init__(
        self,
        replica: ReplicaKey,
        backend: StageBackend,
        processor: Processor,
        sources: Mapping[str, Modality],
        sink: EventSink,
    ) -> None:
        self._replica = replica
        self._backend = backend
        self._processor = processor
        self._sources = sources
        self._sink = sink
        self._capabilities = backend.capabilities
        self._open_inputs: dict[JobKey, _OpenInput] = {}
        self._stopping: set[JobKey] = set()
        self._early_calls: list[CallReplica] = []
        self._group: asyncio.TaskGroup | None = None
        self._is_lost = False

    def __repr__(self) -> str:
        return f"<StageWorker {self._replica}, {len(self._open_inputs)} open inputs, {len(self._stopping)} stopping>"

    async def run(self) -> None:
        """Push what the backend produces, until it is dead; then push its loss and return."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for job in self._stopping:  # stops that came before this ran
                group.create_task(self._stop_backend(job))
            for call in self._early_calls:
                group.create_task(self._call_backend(call))
            self._early_calls.clear()
            try:
                while not self._is_lost:
                    self._push(await self._backend.next_outputs())
            except BackendDead as death:
                self.lose(death)
            except asyncio.CancelledError as stray:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self.lose(stray)  # nobody cancelled this task: the backend let out a cancellation of its own
            except Exception as failure:  # noqa: BLE001 - foreign code; a backend that cannot deliver is lost
                _log.exception("%s cannot deliver any more", self._replica)
                self.lose(failure)

    def take(self, command: StageCommand) -> None:
        """Do what a command says; whatever comes of it is pushed."""
        if self._is_lost:
            return  # nothing comes of it but what the loss says
        try:
            match command:
                case StartJob():
                    self._start(command)
                case FeedJob():
                    self._feed(command)
                case EndInput():
                    self._end_input(command)
                case StopJob():
                    self._stop(command.job)
                case CallReplica():
                    self._call(command)
                case _:
                    assert_never(command)
        except BackendDead as death:
            self.lose(death)

    def _start(self, command: StartJob) -> None:
        job, processor = command.job, self._processor
        try:
            if isinstance(processor, BundleProcessor):
                stream, inputs = None, list(processor.join(job, command.prompt, _bundle_of(command)))
            else:
                stream = processor.open(job, command.prompt, self._sources)
                inputs = self._first_inputs(stream, command)
        except Exception as failure:  # noqa: BLE001 - foreign code; it fails this job only
            self._sink(StageFailed(self._replica, job, self._processor_error(job, failure)))
            return
        task = _task_for(command, inputs)
        if command.input_open and stream is not None:
            ended = sum(source.finish is not None for source in command.inputs)
            count = len(self._sources) or 1  # without sources the prompt is the one
            self._open_inputs[job] = _OpenInput(stream, count - ended, task)
            if not self._capabilities.streams_input:
                self._open_inputs[job].held = inputs
                self._sink(StageStarted(self._replica, job))
                return
        self._submit(task)

    def _first_inputs(self, stream: InputStream, command: StartJob) -> list[Payload]:
        inputs: list[Payload] = []
        if not self._sources and command.prompt is not None:
            inputs += stream.feed(PROMPT, (command.prompt,))
        for source in command.inputs:
            if source.payloads:
                inputs += stream.feed(source.source, source.payloads)
            if source.finish is not None:
                inputs += stream.end(source.source)
        if not self._sources and not command.inputs:  # a prompt that is streamed is among the inputs, with its own end
            inputs += stream.end(PROMPT)
        return inputs

    def _submit(self, task: StageTask) -> None:
        try:
            self._backend.submit(task)
        except BackendDead:
            raise
        except Exception as failure:  # noqa: BLE001 - foreign code; it fails this job only
            self._open_inputs.pop(task.job, None)
            self._sink(StageFailed(self._replica, task.job, self._backend_error(task.job, failure)))
            return
        if not self._capabilities.reports_start:
            self._sink(StageStarted(self._replica, task.job))

    def _feed(self, command: FeedJob) -> None:
        open_input = self._open_inputs.get(command.job)
        if open_input is None:
            return
        try:
            inputs = open_input.stream.feed(command.source, command.payloads)
        except Exception as failure:  # noqa: BLE001 - foreign code; it fails this job only
            self._reject(command.job, self._processor_error(command.job, failure))
            return
        self._give(command.job, open_input, inputs)

    def _end_input(self, command: EndInput) -> None:
        job = command.job
        open_input = self._open_inputs.get(job)
        if open_input is None:
            return
        try:
            inputs = open_input.stream.end(command.source)
        except Exception as failure:  # noqa: BLE001 - foreign code; it fails this job only
            self._reject(job, self._processor_error(job, failure))
            return
        self._give(job, open_input, inputs)
        open_input.open_sources -= 1
        if open_input.open_sources or self._open_inputs.pop(job, None) is None:  # None: what was given is rejected
            return
        if open_input.held is not None:
            task = msgspec.structs.replace(open_input.task, inputs=tuple(open_input.held), input_open=False)
            self._submit(task)
            return
        try:
            self._backend.end_input(job)
        except BackendDead:
            raise
        except Exception as failure:  # noqa: BLE001 - foreign code; it fails this job only
            self._reject(job, self._backend_error(job, failure))

    def _give(self, job: JobKey, open_input: _OpenInput, inputs: Sequence[Payload]) -> None:
        if not inputs:
            return
        if open_input.held is not None:
            open_input.held += inputs
            return
        try:
            self._backend.feed(job, inputs)
        except BackendDead:
            raise
        except Exception as failure:  # noqa: BLE001 - foreign code; it fails this job only
            self._reject(job, self._backend_error(job, failure))

    def _reject(self, job: JobKey, error: ErrorRecord) -> None:
        self._open_inputs.pop(job, None)
        self._sink(InputRejected(self._replica, job, error))

    def _stop(self, job: JobKey) -> None:
        if job in self._stopping:
            return
        open_input = self._open_inputs.pop(job, None)
        if open_input is not None and open_input.held is not None:
            self._sink(StageStopped(self._replica, job))
            return
        self._stopping.add(job)
        if self._group is not None:
            self._group.create_task(self._stop_backend(job))

    async def _stop_backend(self, job: JobKey) -> None:
        try:
            partial = await self._backend.stop(job)
        except BackendDead as death:
            self.lose(death)
        except Exception as failure:  # noqa: BLE001 - foreign code; the stop can be repeated
            _log.warning("%s could not stop %s: %r", self._replica, job, failure)
            self._sink(StopFailed(self._replica, job, self._stop_error(job, failure)))
        else:
            self._sink(StageStopped(self._replica, job, partial))
        finally:
            self._stopping.discard(job)

    def _call(self, command: CallReplica) -> None:
        if self._group is None:
            self._early_calls.append(command)
        else:
            self._group.create_task(self._call_backend(command))

    async def _call_backend(self, command: CallReplica) -> None:
        try:
            value = await self._backend.call(command.method, command.arguments)
        except BackendDead as death:
            self.lose(death)
        except Exception as failure:  # noqa: BLE001 - foreign code; it fails this call only
            _log.warning("%s: the call of '%s' failed", self._replica, command.method, exc_info=failure)
            self._sink(CallReturned(self._replica, command.call, error=self._call_error(command.method, failure)))
        else:
            self._sink(CallReturned(self._replica, command.call, value))

    def _push(self, outputs: Sequence[BackendOutput]) -> None:
        """Push what was taken, in order: outputs that follow each other as one event."""
        run: list[JobOutput] = []
        for output in outputs:
            if isinstance(output, JobOutput):
                run.append(output)
                if output.finish is not None and self._open_inputs:
                    self._open_inputs.pop(output.job, None)
                continue
            if run:
                self._sink(StageProduced(self._replica, tuple(run)))
                run.clear()
            match output:
                case JobStarted():
                    self._sink(StageStarted(self._replica, output.job))
                case JobFailed():
                    self._open_inputs.pop(output.job, None)
                    self._sink(StageFailed(self._replica, output.job, self._placed(output.error)))
                case LoadReport():
                    self._sink(ReplicaReported(self._replica, output.load, output.member))
                case _:
                    assert_never(output)
        if run:
            self._sink(StageProduced(self._replica, tuple(run)))

    def lose(self, cause: BaseException) -> None:
        """Note that the backend is gone, and push that, once."""
        if self._is_lost:
            return
        self._is_lost = True
        self._open_inputs.clear()
        stage, slot = self._replica.stage, self._replica.slot
        reason = str(cause) if isinstance(cause, BackendDead) else ""  # what foreign code says is for the log only
        error = ErrorRecord(
            kind=ErrorKind.REPLICA_LOST,
            scope=Scope.REPLICA,
            stage=stage,
            replica=slot,
            message=f"replica {slot} of stage '{stage}' died: {reason or type(cause).__name__}",
        )
        self._sink(ReplicaLost(self._replica, error))

    def _placed(self, error: ErrorRecord) -> ErrorRecord:
        return msgspec.structs.replace(error, stage=self._replica.stage, replica=self._replica.slot)

    def _processor_error(self, job: JobKey, failure: Exception) -> ErrorRecord:
        return self._error(job, failure, ErrorKind.PROCESSOR_FAILED, "the input processor of")

    def _backend_error(self, job: JobKey, failure: Exception) -> ErrorRecord:
        return self._error(job, failure, ErrorKind.STAGE_FAILED, "")

    def _error(self, job: JobKey, failure: Exception, kind: ErrorKind, part: str) -> ErrorRecord:
        """The record for what foreign code raised: the client's fault only when it says so."""
        if isinstance(failure, InvalidRequestError):
            return self._placed(failure.record)
        where = f"{part} stage '{self._replica.stage}'".strip()
        _log.error("request %s: %s raised", job.request, where, exc_info=failure)
        return self._placed(
            ErrorRecord(kind=kind, scope=Scope.REQUEST, message=f"{where} raised {type(failure).__name__}")
        )

    def _stop_error(self, job: JobKey, failure: Exception) -> ErrorRecord:
        if isinstance(failure, RequestError):
            return self._placed(failure.record)
        message = f"stage '{self._replica.stage}' could not stop '{job.request}': it raised {type(failure).__name__}"
        return self._placed(ErrorRecord(kind=ErrorKind.STOP_UNCONFIRMED, scope=Scope.REQUEST, message=message))

    def _call_error(self, method: str, failure: Exception) -> ErrorRecord:
        if isinstance(failure, RequestError):
            return self._placed(failure.record)
        message = f"'{method}' failed at stage '{self._replica.stage}': it raised {type(failure).__name__}"
        return self._placed(ErrorRecord(kind=ErrorKind.CONTROL_FAILED, scope=Scope.REPLICA, message=message))


def _task_for(command: StartJob, inputs: Sequence[Payload]) -> StageTask:
    return StageTask(
        job=command.job,
        inputs=tuple(inputs),
        params=command.params,
        input_open=command.input_open,
        priority=command.priority,
        deadline=command.deadline,
    )


def _bundle_of(command: StartJob) -> list[BundleMember]:
    """What each sibling made, in the order in which it came."""
    outputs: dict[str, dict[str, tuple[Payload, ...]]] = {}
    for one in command.inputs:
        outputs.setdefault(one.role, {})[one.source] = one.payloads
    return [BundleMember(role, made) for role, made in outputs.items()]
