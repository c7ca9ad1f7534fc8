"""Writes every step of a core to a file, and runs a core again on what such a file says.

The same events at the same times must give the same effects, so that a fault in production becomes a test. Payloads are
left out unless asked for. A file that grew to its limit is continued in a fresh one at the next moment when the core is
idle, so that each file can be replayed by itself.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from podium.core.admission import EngineLimits
from podium.core.effects import (
    AbortRecord,
    CallReplica,
    Effect,
    EmitOutput,
    FeedJob,
    ReleasePayloads,
    ReplyAbort,
    ReplyControl,
    StartJob,
)
from podium.core.events import (
    CallReturned,
    ControlRequested,
    Event,
    InputAppended,
    JobOutput,
    RequestSubmitted,
    StageProduced,
    StageStopped,
)
from podium.core.graph import Graph, Stage
from podium.core.identity import Payload
from podium.core.operations import BARRIER_METHODS, CallMethod, RollBackUpdate, UpdateWeights
from podium.core.orchestrator import Orchestrator
from podium.core.snapshot import Snapshot
from podium.errors import ConfigurationError, Fault, InternalError

_log = logging.getLogger("podium.journal")

FORMAT = 1
LEFT_OUT = "..."
"""Stands for a payload that was left out."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: everything that a core needs to begin."""

    format: int
    stages: tuple[Stage, ...]
    limits: EngineLimits
    snapshot: Snapshot


class _Format(msgspec.Struct, frozen=True):
    format: int


class StepRecord(msgspec.Struct, frozen=True):
    """Every further line. `effects` stays encoded: it is compared, never read."""

    now: float
    events: tuple[Event, ...]
    effects: msgspec.Raw


class Journal:
    """An Observer that writes. `max_bytes` is the size at which a file is continued, `max_files` how many are kept.

    The newest file has the name that was asked for, older ones end in .1, .2 and so on. When the core is never idle, a
    file stops growing at four times `max_bytes`; what it has can still be replayed.
    """

    def __init__(
        self, path: str | Path, *, keeps_payloads: bool = False, max_bytes: int = 64 << 20, max_files: int = 4
    ) -> None:
        """Prepare to write to `path`; raises ConfigurationError when that is not possible."""
        self._path = Path(path)
        self._keeps_payloads = keeps_payloads
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._encoder = msgspec.json.Encoder(enc_hook=_encode_payload)
        self._core: Orchestrator | None = None
        self._file: BinaryIO | None = None
        self._size = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.open("ab").close()
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            raise _unusable(self._path, problem, "give a path that can be written") from error

    def __repr__(self) -> str:
        return f"<Journal {self._path}, {self._size} bytes>"

    def on_start(self, core: Orchestrator) -> None:
        """Begin a file."""
        self._core = core
        self._begin(core)

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        """Write one line; when the file is full and the core idle, continue in a fresh one."""
        if self._file is None or not (events or effects):
            return
        try:
            self._write(self._line(events, now, effects))
            if self._size > self._max_bytes and self._core is not None:
                self._continue(self._core)
        except OSError as error:
            _log.error("the journal %s cannot be written and is closed: %s", self._path, error)
            self.close()

    def on_cost(self, events: int, seconds: float) -> None:
        """Not of interest here."""

    def on_end(self) -> None:
        """Write nothing any more."""
        self.close()

    def close(self) -> None:
        """Write nothing any more. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _line(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> dict[str, object]:
        if self._keeps_payloads:
            return {"now": now, "events": events, "effects": effects}
        return {
            "now": now,
            "events": [_bare_event(event) for event in events],
            "effects": [_bare_effect(effect) for effect in effects],
        }

    def _continue(self, core: Orchestrator) -> None:
        if core.is_idle:
            self.close()
            for number in range(self._max_files - 1, 0, -1):
                older = self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))
            self._begin(core)
        elif self._size > 4 * self._max_bytes:
            _log.error("the journal %s is full and was never idle; it is closed", self._path)
            self.close()

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")

    def _begin(self, core: Orchestrator) -> None:
        stages = tuple(core.graph.stages.values())
        header = Header(format=FORMAT, stages=stages, limits=core.limits, snapshot=core.snapshot())
        self._file = self._path.open("wb")
        self._size = 0
        self._write(header)

    def _write(self, line: object) -> None:
        if self._file is not None:
            data = self._encoder.encode(line) + b"\n"
            self._size += len(data)
            self._file.write(data)
            self._file.flush()


class Difference(msgspec.Struct, frozen=True):
    """One step whose effects were not the same, or that raised. `line` counts from 1."""

    line: int
    recorded: str
    replayed: str


class ReplayReport(msgspec.Struct, frozen=True):
    """What came of a replay. `is_cut` says that the last line was incomplete, as after a crash."""

    steps: int
    events: int
    differences: tuple[Difference, ...]
    is_cut: bool

    @property
    def is_same(self) -> bool:
        """Whether every step gave the same effects."""
        return not self.differences


def replay(path: str | Path, max_differences: int = 20) -> ReplayReport:
    """Run a core on the events of a journal and compare the effects. Ends with a step that breaks the core.

    Raises ConfigurationError when the file is no journal, of another format, or damaged.
    """
    core, records = open_journal(path)
    encoder = msgspec.json.Encoder(enc_hook=_encode_payload)
    steps = events = 0
    differences: list[Difference] = []
    for number, record in enumerate(records, 2):
        if record is None:
            return ReplayReport(steps, events, tuple(differences), is_cut=True)
        steps += 1
        events += len(record.events)
        recorded = bytes(record.effects)
        try:
            replayed = encoder.encode(core.step(record.events, record.now))
        except InternalError as error:
            differences.append(Difference(number, recorded.decode(), f"the step raised InternalError: {error}"))
            break
        if replayed != recorded:
            differences.append(Difference(number, recorded.decode(), replayed.decode()))
            if len(differences) >= max_differences:
                break
    return ReplayReport(steps, events, tuple(differences), is_cut=False)


def open_journal(path: str | Path) -> tuple[Orchestrator, Iterator[StepRecord | None]]:
    """A core that stands where the journal began, and its steps; None stands for a last line that is incomplete.

    Raises ConfigurationError as `replay` does, while the steps are read too.
    """
    lines = _read_lines(Path(path))
    header = _read_header(path, next(lines, b""))
    return Orchestrator(Graph(header.stages), header.limits, header.snapshot), _read_steps(path, lines)


def _read_steps(path: str | Path, lines: Iterator[bytes]) -> Iterator[StepRecord | None]:
    decoder = msgspec.json.Decoder(StepRecord)
    for number, line in enumerate(lines, 2):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            if next(lines, None) is not None:
                raise _unusable(path, f"line {number} is damaged: {error}", "keep only the lines before it") from error
            yield None


def _read_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror or error}", "give the path of a journal") from error


def _read_header(path: str | Path, line: bytes) -> Header:
    try:
        found = msgspec.json.decode(line, type=_Format).format
        if found != FORMAT:
            remedy = "replay it with the podium version that wrote it"
            raise _unusable(path, f"has format {found}, not {FORMAT}", remedy)
        return msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError as error:
        raise _unusable(path, f"is no journal of podium: {error}", "give a file that an engine wrote") from error


def _unusable(path: str | Path, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError("journal", [Fault(str(path), problem, remedy)])


def _bare(payloads: Sequence[Payload]) -> tuple[Payload, ...]:
    return (LEFT_OUT,) * len(payloads)


def _bare_one(payload: Payload) -> Payload:
    return None if payload is None else LEFT_OUT


def _bare_event(event: Event) -> Event:
    """The event as the core would see it with payloads that mean nothing."""
    match event:
        case StageProduced():
            outputs = [JobOutput(out.job, out.sequence, _bare(out.payloads), out.finish) for out in event.outputs]
            return StageProduced(event.replica, tuple(outputs))
        case RequestSubmitted():
            params = {stage: _bare_one(value) for stage, value in event.params.items()}
            companions = {role: _bare_one(prompt) for role, prompt in event.companions.items()}
            return msgspec.structs.replace(event, prompt=_bare_one(event.prompt), params=params, companions=companions)
        case InputAppended():
            return msgspec.structs.replace(event, payloads=_bare(event.payloads))
        case StageStopped():
            return msgspec.structs.replace(event, partial=_bare_one(event.partial))
        case ControlRequested(operation=CallMethod() | UpdateWeights() | RollBackUpdate() as operation):
            arguments = None if operation.arguments is None else dict.fromkeys(operation.arguments, LEFT_OUT)
            return msgspec.structs.replace(event, operation=msgspec.structs.replace(operation, arguments=arguments))
        case CallReturned():
            return msgspec.structs.replace(event, value=_bare_one(event.value))
        case _:
            return event


def _bare_effect(effect: Effect) -> Effect:
    match effect:
        case EmitOutput():
            return msgspec.structs.replace(effect, payloads=_bare(effect.payloads), partial=_bare_one(effect.partial))
        case StartJob():
            inputs = [msgspec.structs.replace(one, payloads=_bare(one.payloads)) for one in effect.inputs]
            return msgspec.structs.replace(
                effect, prompt=_bare_one(effect.prompt), params=_bare_one(effect.params), inputs=tuple(inputs)
            )
        case FeedJob():
            return msgspec.structs.replace(effect, payloads=_bare(effect.payloads))
        case ReleasePayloads():
            return ReleasePayloads(_bare(effect.payloads))
        case ReplyAbort():
            return ReplyAbort(effect.call, tuple(_bare_record(one) for one in effect.records))
        case CallReplica() if effect.method not in BARRIER_METHODS:
            return msgspec.structs.replace(effect, arguments=dict.fromkeys(effect.arguments, LEFT_OUT))
        case ReplyControl():
            answers = [msgspec.structs.replace(one, value=_bare_one(one.value)) for one in effect.records]
            return msgspec.structs.replace(effect, records=tuple(answers))
        case _:
            return effect


def _bare_record(record: AbortRecord) -> AbortRecord:
    samples = {index: dict.fromkeys(partials, LEFT_OUT) for index, partials in record.samples.items()}
    return msgspec.structs.replace(record, partials=dict.fromkeys(record.partials, LEFT_OUT), samples=samples)


def _encode_payload(payload: object) -> object:
    if isinstance(payload, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(payload).tobytes()).decode()
        return {"dtype": str(payload.dtype), "shape": list(payload.shape), "base64": data}
    return repr(payload)
