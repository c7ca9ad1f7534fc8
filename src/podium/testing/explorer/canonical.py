"""The canonical form of a core and of what is known outside of it: equal for states that nobody can ever tell apart.

Everything counts, in the order in which it is met, unless something here says why it does not: what is new in the core
makes states different before it makes them alike. Attempts are numbered anew, and times are told relative to now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import inf
from typing import NamedTuple

import msgspec

from podium.core.barrier import Barrier
from podium.core.control import ControlCall
from podium.core.deadlines import Deadlines
from podium.core.identity import JobKey, ReplicaKey
from podium.core.records import Job, Request
from podium.core.stage_pool import Entry, Replica, StagePool
from podium.core.state import CoreState
from podium.testing.explorer.insides import attributes_of, is_constant, reader_of
from podium.testing.model import Model
from podium.testing.model_control import ControlModel, ControlWatch
from podium.testing.model_records import TicketModel

DIGEST_BYTES = 16


class Chunk(NamedTuple):
    """A payload of an explored world. `attempt` is that of the job that made it; 0 for what a client gave."""

    maker: str
    attempt: int
    number: int
    delivery: int = 0


_SAME = "the same in every state of a world"
_NEXT = "the next is above all others, whatever it is"
_TIMING = "goes into timings only"
_APART = "is written by the function for its class"
_LAST_STEP = "is of the last step only"

IGNORED: Mapping[type, Mapping[str, str]] = {
    CoreState: {
        "graph": _SAME,
        "limits": _SAME,
        "planner": "remembers plans that it would make again",
        "counters": "only ever grow, and decide nothing",
        "now": "is what times are told relative to",
        "requests": _APART,
        "deadlines": _APART,
        "replica_calls": "follows from what the control calls wait for",
        "_serial": _NEXT,
        "_attempt": _NEXT,
        "_call": _NEXT,
    },
    ControlCall: {"pending": _APART},
    Barrier: {"blocker": _APART, "closed_at": _APART},
    Replica: {"followers": _APART},
    StagePool: {"stage": _SAME, "_queue": _APART},
    Request: {
        "params": _SAME,
        "plan": "follows from the outputs that the ticket asks for",
        "serial": "the table of requests is in the order of serials",
        "submitted_at": _TIMING,
    },
    Job: {
        "plan": "follows from the job's place in its request",
        "stage": "follows from the job's place in its request",
        "queued_at": _TIMING,
        "started_at": _TIMING,
        "first_output_at": _TIMING,
        "finished_at": _TIMING,
        "last_output_at": _APART,
    },
    Model: {
        "stages": _SAME,
        "limits": _SAME,
        "outputs": _SAME,
        "statistics": "follows from the core",
        "newest_attempt": _NEXT,
        "payloads": _APART,
        "used": _APART,
        "released": _APART,
        "shared": _APART,
        "_must_release": _LAST_STEP,
        "_may_end": _LAST_STEP,
        "_gave_up_now": _LAST_STEP,
    },
    ControlWatch: {
        "_stages": _SAME,
        "_newest_call": _NEXT,
        "_moves": _LAST_STEP,
        "answered": _LAST_STEP,
    },
    ControlModel: {"pending": _APART},
    TicketModel: {
        "event": _APART,
        "joined": "follows from the outputs that the ticket asks for",
        "roles": "follows from the ticket",
        "finals": "follows from the outputs that the ticket asks for",
        "needed": "follows from the outputs that the ticket asks for",
    },
}
"""What of an object is not written with the rest of it, and why that is safe."""

TIMES = frozenset({"due", "_entry_at", "deadline"})
"""Names of what is a time on the core's clock. The core only compares times, and adds limits to them."""


class Form:
    """One form that is being written. With `sorts`, tables are written in the order of their keys."""

    __slots__ = ("attempts", "now", "numbers", "sorts", "tokens")

    def __init__(self, now: float) -> None:
        self.now = now
        self.sorts = False
        self.tokens: list[object] = []
        self.numbers: dict[int, int] = {}
        self.attempts: dict[int, int] = {0: 0}

    def write(self, thing: object) -> None:
        """Write anything."""
        writer = _WRITERS[type(thing)]
        if writer is None:
            self.tokens.append(thing)
        else:
            writer(thing, self)

    def write_time(self, time: float | None) -> None:
        """Write a time as seen from now."""
        self.tokens.append(None if time is None else time - self.now)

    def is_known(self, thing: object) -> bool:
        """Whether an object was written already; then a reference to it is written. Otherwise it gets its number."""
        number = self.numbers.get(id(thing))
        if number is None:
            self.numbers[id(thing)] = len(self.numbers)
            return False
        self.tokens.append(("@", number))
        return True


Writer = Callable[[object, Form], None]


def digest_of(now: float, core: object, *outside: object) -> bytes:
    """A short name for the canonical form of a core and of what is known outside of it.

    Among a million million different states, the chance that any two have the same name is below one in 10^14.
    """
    form = Form(now)
    form.write(core)
    form.sorts = True  # what is known outside is looked up and counted, in whatever order it came
    for thing in outside:
        form.write(thing)
    return blake2b(_ENCODER.encode(form.tokens), digest_size=DIGEST_BYTES).digest()


_ENCODER = msgspec.msgpack.Encoder()


class _Writers(dict[type, "Writer | None"]):
    """How to write an object of each class, found out when the first one is met; None for what is written as it is."""

    def __missing__(self, kind: type) -> Writer | None:
        if not is_constant(kind):
            writer: Writer | None = _writer_of_objects(kind)
        elif issubclass(kind, msgspec.Struct):
            writer = _writer_of_objects(kind)
        else:
            writer = _write_sequence if issubclass(kind, tuple) else None
        self[kind] = writer
        return writer


def _writer_of_objects(kind: type) -> Writer:
    ignored = frozenset(IGNORED.get(kind, ()))
    names = attributes_of(kind)
    is_value = is_constant(kind)
    if not (names or is_value):
        return _writer_of_dictionary(kind.__name__, ignored)
    written = tuple(name for name in names if name not in ignored | TIMES)
    read = reader_of(kind, ignored | TIMES)
    read_times = reader_of(kind, frozenset(names) - TIMES)
    plans = _Plans(kind, written)

    def write(thing: object, form: Form) -> None:
        if not is_value and form.is_known(thing):
            return
        tokens, now = form.tokens, form.now
        values = read(thing)
        read_constants, others = plans[tuple(map(type, values))]
        tokens.append(read_constants(thing))
        for index, writer in others:
            writer(values[index], form)
        for time in read_times(thing):
            tokens.append(time - now if isinstance(time, float) else None)

    return write


class _Plans(dict[tuple[type, ...], "tuple[Callable[[object], tuple[object, ...]], list[tuple[int, Writer]]]"]):
    """How to write an object, by the classes of what it holds: what is written as it is, at once, and then the rest."""

    def __init__(self, kind: type, names: tuple[str, ...]) -> None:
        super().__init__()
        self._kind = kind
        self._names = names

    def __missing__(
        self, kinds: tuple[type, ...]
    ) -> tuple[Callable[[object], tuple[object, ...]], list[tuple[int, Writer]]]:
        writers = [(index, _WRITERS[kind]) for index, kind in enumerate(kinds)]
        others = [(index, writer) for index, writer in writers if writer is not None]
        apart = {self._names[index] for index, _ in others}
        constants = frozenset(self._names) - apart
        read = reader_of(self._kind, frozenset(attributes_of(self._kind)) - constants)
        title = (self._kind.__name__, *sorted(apart))
        self[kinds] = plan = (lambda thing: (title, read(thing)), others)
        return plan


def _writer_of_dictionary(title: str, ignored: frozenset[str]) -> Writer:
    def write(thing: object, form: Form) -> None:
        if form.is_known(thing):
            return
        form.tokens.append(title)
        tokens = form.tokens
        for name, value in vars(thing).items():
            if name not in ignored:
                writer = _WRITERS[type(value)]
                if writer is None:
                    tokens.append(value)
                else:
                    writer(value, form)

    return write


def _write_sequence(thing: object, form: Form) -> None:
    assert isinstance(thing, list | tuple)
    tokens = form.tokens
    tokens.append(len(thing))
    for value in thing:
        writer = _WRITERS[type(value)]
        if writer is None:
            tokens.append(value)
        else:
            writer(value, form)


def _write_dict(thing: object, form: Form) -> None:
    assert isinstance(thing, dict)
    tokens = form.tokens
    tokens.append(len(thing))
    for key in sorted(thing) if form.sorts and len(thing) > 1 else thing:
        for part in (key, thing[key]):
            writer = _WRITERS[type(part)]
            if writer is None:
                tokens.append(part)
            else:
                writer(part, form)


def _write_set(thing: object, form: Form) -> None:
    assert isinstance(thing, set | frozenset)
    _write_sequence(sorted(thing) if thing else (), form)


def _write_job_key(thing: object, form: Form) -> None:
    assert isinstance(thing, JobKey)
    attempts = form.attempts
    form.tokens += (thing.request, thing.stage, thing.sibling, attempts.setdefault(thing.attempt, len(attempts)))


def _write_chunk(thing: object, form: Form) -> None:
    assert isinstance(thing, Chunk)
    attempts = form.attempts
    form.tokens += (thing.maker, attempts.setdefault(thing.attempt, len(attempts)), thing.number, thing.delivery)


def _write_core_state(thing: object, form: Form) -> None:
    """Requests first, so that everything is met in their order; timers last, when all that they can end was met."""
    assert isinstance(thing, CoreState)
    form.write(thing.requests)
    _PLAIN_CORE_STATE(thing, form)
    form.write(thing.deadlines)


def _write_deadlines(thing: object, form: Form) -> None:
    """The entries in the order in which they come due. One of a timer that is not set and that nobody knows any more

    is left out: when it comes up, it is thrown away.
    """
    assert isinstance(thing, Deadlines)
    for at, _, timer in sorted(thing._heap):
        if timer.due < inf or id(timer) in form.numbers:
            form.write_time(at)
            form.write(timer)


def _write_stage_pool(thing: object, form: Form) -> None:
    assert isinstance(thing, StagePool)
    _PLAIN_STAGE_POOL(thing, form)
    _write_queue(thing._queue, form)


def _write_queue(queue: list[Entry], form: Form) -> None:
    """The queue in the order in which it is served. Entries of jobs that are over are passed over there, as here."""
    waiting = [entry for entry in sorted(queue, key=lambda entry: entry[:-1]) if not entry[-1].is_over]
    form.tokens.append(len(waiting))
    for entry in waiting:
        form.tokens.append(entry[0])
        form.write(entry[-1])


def _write_replica(thing: object, form: Form) -> None:
    assert isinstance(thing, Replica)
    is_new = id(thing) not in form.numbers
    _PLAIN_REPLICA(thing, form)
    if is_new:
        _write_queue(thing.followers, form)


def _write_barrier(thing: object, form: Form) -> None:
    """When it was closed counts while it is. A blocker that is over is not asked any more, but looked for anew."""
    assert isinstance(thing, Barrier)
    _PLAIN_BARRIER(thing, form)
    form.write_time(None if thing.is_open else thing.closed_at)
    blocker = thing.blocker
    form.write(None if blocker is None or blocker.is_over or blocker.request.is_over else blocker)


def _write_control_call(thing: object, form: Form) -> None:
    """The calls of replicas have numbers that are never used again; each replica has one at most."""
    assert isinstance(thing, ControlCall)
    is_new = id(thing) not in form.numbers
    _PLAIN_CONTROL_CALL(thing, form)
    if is_new:
        _write_sequence(list(thing.pending.values()), form)


def _write_control_model(thing: object, form: Form) -> None:
    assert isinstance(thing, ControlModel)
    _PLAIN_CONTROL_MODEL(thing, form)
    for sent in sorted(thing.pending.values(), key=lambda sent: sent.replica):
        form.tokens.append(sent.method)
        form.write(sent.replica)


def _write_request(thing: object, form: Form) -> None:
    """Of a request that is over, nothing counts but its name: jobs that are still being stopped belong to it."""
    assert isinstance(thing, Request)
    if not thing.is_over:
        _PLAIN_REQUEST(thing, form)
    elif not form.is_known(thing):
        form.tokens += ("over", thing.id)


def _write_job(thing: object, form: Form) -> None:
    """Of a job that is over, only what its request's end tells of it counts; of a detached one, only the stop.

    The last output's time counts while it can still move a deadline.
    """
    assert isinstance(thing, Job)
    if not (thing.is_over or thing.is_detached):
        is_new = id(thing) not in form.numbers
        _PLAIN_JOB(thing, form)
        if is_new:
            form.tokens.append(max(thing.last_output_at - form.now, -thing.stage.limits.chunk_timeout_s))
    elif not form.is_known(thing):
        form.tokens += (thing.is_detached, thing.state, thing.wait, thing.finish_reason, thing.attempts)
        form.write(thing.partial)
        form.write_time(thing.due)
        form.write_time(thing._entry_at)
        if not thing.is_over:
            form.write(thing.key)
            form.write(thing.request)


def _write_model(thing: object, form: Form) -> None:
    assert isinstance(thing, Model)
    _PLAIN_MODEL(thing, form)
    for payload in sorted(payload for payload in thing.payloads if isinstance(payload, Chunk)):
        form.write(payload)
        is_so = (payload in thing.used, payload in thing.released, payload in thing.shared)
        form.tokens += (thing.payloads[payload], *is_so)


def _write_ticket(thing: object, form: Form) -> None:
    assert isinstance(thing, TicketModel)
    is_new = id(thing) not in form.numbers
    _PLAIN_TICKET(thing, form)
    if is_new:
        form.tokens.append(thing.event.ticket)


_PLAIN_CORE_STATE = _writer_of_objects(CoreState)
_PLAIN_STAGE_POOL = _writer_of_objects(StagePool)
_PLAIN_REQUEST = _writer_of_objects(Request)
_PLAIN_JOB = _writer_of_objects(Job)
_PLAIN_REPLICA = _writer_of_objects(Replica)
_PLAIN_BARRIER = _writer_of_objects(Barrier)
_PLAIN_CONTROL_CALL = _writer_of_objects(ControlCall)
_PLAIN_CONTROL_MODEL = _writer_of_objects(ControlModel)
_PLAIN_MODEL = _writer_of_objects(Model)
_PLAIN_TICKET = _writer_of_objects(TicketModel)

_WRITERS = _Writers(
    {
        list: _write_sequence,
        tuple: _write_sequence,
        dict: _write_dict,
        set: _write_set,
        frozenset: _write_set,
        JobKey: _write_job_key,
        ReplicaKey: None,
        Chunk: _write_chunk,
        CoreState: _write_core_state,
        Deadlines: _write_deadlines,
        StagePool: _write_stage_pool,
        Replica: _write_replica,
        Barrier: _write_barrier,
        ControlCall: _write_control_call,
        ControlModel: _write_control_model,
        Request: _write_request,
        Job: _write_job,
        Model: _write_model,
        TicketModel: _write_ticket,
    }
)
