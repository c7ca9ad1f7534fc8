"""What really happened in a world, as the stages, processors and callers themselves saw it.

Nothing here is read from the engine. Each piece that a stage makes has a text of its own, so that one that is lost,
given twice, or given to somebody else is known by it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from weakref import WeakSet

from podium.core.effects import Outcome
from podium.core.events import FinishReason
from podium.core.identity import JobKey, Payload, ReplicaKey
from podium.errors import ErrorKind, ErrorRecord
from podium.runtime.outputs import OmniOutput
from podium.testing.simulation.trace import Trace

EPSILON_S = 1e-6
"""What the rounding of times may come to."""


class JobTruth:
    """One job at its replica: what it was given, and what it made of it."""

    def __init__(self, key: JobKey, use: int, replica: ReplicaKey) -> None:
        self.key = key
        self.use = use
        self.replica = replica
        self.inputs: defaultdict[str, list[Payload]] = defaultdict(list)
        self.ended_sources: set[str] = set()
        self.prepared: list[Payload] = []
        """What its processor gave on."""
        self.taken: list[Payload] = []
        """What its backend got of that."""
        self.is_whole = False
        """Whether the backend was told that its input has ended."""
        self.pieces: list[Payload] = []
        """What it made."""
        self.finish: FinishReason | None = None
        self.was_taken = False
        """Whether its backend took it."""
        self.over_at = inf
        """When it ended by itself."""
        self.stop_told_at: float | None = None

    def __repr__(self) -> str:
        return f"<JobTruth {self.key} of use {self.use}: {len(self.pieces)} pieces, {self.finish or 'no end'}>"


class Use:
    """One use of a request id: what its caller wanted, and what it got."""

    def __init__(self, number: int, request_id: str) -> None:
        self.number = number
        self.request_id = request_id
        self.outputs: tuple[str, ...] | None = None
        self.deadline_s: float | None = None
        self.ticket = 0
        self.submitted_at: float | None = None
        self.ended_at: float | None = None
        self.has_left = False
        self.items: list[OmniOutput] = []
        self.outcome: Outcome | None = None
        self.error: ErrorRecord | None = None

    def __repr__(self) -> str:
        return f"<Use {self.number} of '{self.request_id}': {len(self.items)} items, {self.outcome or 'open'}>"

    @property
    def gave_up(self) -> bool:
        """Whether it ended on the caller's side, because nobody read what was there."""
        return self.error is not None and self.error.kind is ErrorKind.BUFFER_OVERFLOW and self.error.stage is None

    @property
    def prompt(self) -> str:
        """What is submitted for it; stages know it by this."""
        return f"use {self.number}"


class AbortTruth:
    """One call of `abort`, and when it was made."""

    def __init__(self, ids: tuple[str, ...], at: float) -> None:
        self.ids = ids
        self.at = at


class Truth:
    """Everything that the checkers know. `violations` has what was seen to be wrong while it happened."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.uses: list[Use] = []
        self.jobs: dict[JobKey, JobTruth] = {}
        self._uses_of_jobs: dict[JobKey, int] = {}
        self.aborts: list[AbortTruth] = []
        self.died: dict[ReplicaKey, float] = {}
        """When each replica died that did."""
        self.rejected: set[JobKey] = set()
        """Jobs whose input has a hole, because an outbox was full."""
        self.streams: WeakSet[object] = WeakSet()
        """The input streams that somebody still holds."""
        self.causes: defaultdict[int, set[ErrorKind]] = defaultdict(set)
        """For each use, the errors that something gave a reason for."""
        self.causes_for_all: set[ErrorKind] = set()
        self.stopped_at: float | None = None
        self.is_controlled = False
        """Whether anybody paused a stage, put it to sleep, or changed its weights."""
        self.pauses = 0
        """How many calls aborted whatever ran."""
        self.versions = {0}
        """The versions of weights that anybody named."""
        self.seen: Counter[str] = Counter()
        self.violations: list[str] = []

    def __repr__(self) -> str:
        return f"<Truth of {len(self.uses)} uses, {len(self.jobs)} jobs, {len(self.violations)} violations>"

    def see(self, what: str, where: object = "") -> None:
        """Note that something happened."""
        self.seen[what] += 1
        self.trace.note(f"{what} {where}")

    def expect(self, is_so: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Note a violation unless it is so."""
        if not is_so:
            self.violations.append(otherwise)

    def blame(self, job: JobKey, kind: ErrorKind) -> None:
        """Something went wrong at a job, so that its request may fail with `kind`."""
        self.causes[self._uses_of_jobs[job]].add(kind)

    def note_start(self, key: JobKey, prompt: Payload) -> None:
        """A job is on its way to a replica, for the use whose prompt it has."""
        self._uses_of_jobs[key] = int(str(prompt).removeprefix("use "))

    def open(self, key: JobKey, prompt: Payload, replica: ReplicaKey) -> JobTruth:
        """A replica was told to start a job."""
        number = self._uses_of_jobs[key]
        self.expect(self.uses[number].prompt == prompt, f"{key} was started with the prompt {prompt}")
        self.expect(self.uses[number].request_id == key.request, f"{key} was started with the prompt of use {number}")
        self.expect(key not in self.jobs, f"{key} was started twice")
        job = self.jobs[key] = JobTruth(key, number, replica)
        self.trace.note(f"open {key} at {replica}")
        return job
