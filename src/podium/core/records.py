"""The records that live as long as a request: the request itself, its samples and its jobs.

Records hold state and answer questions about it. They change only in `ending.py`, `forwarding.py` and
`orchestrator.py`, and move only through the tables.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from podium.core.deadlines import Timer
from podium.core.effects import SourceInput, StageTimings
from podium.core.events import FinishReason, RequestSubmitted
from podium.core.graph import EdgeMode, Stage
from podium.core.identity import MAIN, PROMPT, JobKey, Payload, ReplicaKey
from podium.core.lifecycle import (
    AT_REPLICA,
    BEFORE_REPLICA,
    JOBS,
    REQUESTS,
    JobState,
    JobTrigger,
    RequestState,
    RequestTrigger,
    move,
)
from podium.core.ordering import Sequencer
from podium.core.plan import JobPlan, Plan

if TYPE_CHECKING:
    from podium.core.control import AbortCall
    from podium.core.stage_pool import Replica


class Wait(StrEnum):
    """What a job's timer is set for; a timeout error names it."""

    NOTHING = "nothing"
    QUEUE = "capacity"
    DISPATCH = "confirmation of the start"
    FIRST_OUTPUT = "first output"
    CHUNK = "next output"
    BUNDLE = "companions"
    INPUT = "next input from the client"
    STOP = "confirmation of the stop"
    STUCK = "confirmation of the repeated stop"


# Bound once: on Python 3.11 reading a member off its enum class costs as much as three calls.
_WAITING, _STOPPING, _STOP_FAILED = JobState.WAITING, JobState.STOPPING, JobState.STOP_FAILED
_HELD, _ABORTING, _NOTHING = RequestState.HELD, RequestState.ABORTING, Wait.NOTHING


class SourceBuffer:
    """What a job has got of one source: `unsent` waits for the job's start, `sent` counts what its replica has.

    With `is_complete` the job gets nothing of it before its end, even if it has started. The first `resent` of `unsent`
    were given to a replica that was lost. `role` tells which companion's output it is, if any's.
    """

    __slots__ = ("finish", "history", "is_complete", "name", "resent", "role", "sent", "unsent")

    def __init__(self, name: str, *, keeps_history: bool, is_complete: bool = False, role: str = MAIN) -> None:
        self.name = name
        self.role = role
        self.is_complete = is_complete
        self.unsent: list[Payload] = []
        self.sent = 0
        self.resent = 0
        self.finish: FinishReason | None = None
        self.history: list[Payload] | None = [] if keeps_history else None

    @property
    def has_begun(self) -> bool:
        """Whether there is, or was, anything of this source."""
        return self.sent > 0 or bool(self.unsent)

    def note_sent(self, payloads: tuple[Payload, ...]) -> int:
        """Count payloads that go to the replica at once; returns the number of the first."""
        sequence = self.sent
        self.sent += len(payloads)
        if self.history is not None:
            self.history.extend(payloads)
        return sequence

    def take_due(self) -> tuple[int, tuple[Payload, ...]]:
        """What may go to a replica that starts now, with the number of its first."""
        return (self.sent, ()) if self.is_complete and self.finish is None else self.take()

    def take(self) -> tuple[int, tuple[Payload, ...]]:
        """Everything unsent with the number of its first, now counted as sent."""
        sequence, payloads = self.sent, tuple(self.unsent)
        self.sent += len(payloads)
        self.unsent.clear()
        self.resent = 0
        if self.history is not None:
            self.history.extend(payloads)
        return sequence, payloads

    def drop(self) -> list[Payload]:
        """Give up what is unsent. Returns what no replica was ever given: the rest is not ours to release."""
        dropped = self.unsent[self.resent :]
        self.unsent.clear()
        self.resent = 0
        return dropped

    def rewind(self) -> None:
        """Make everything unsent again, for a new attempt."""
        if self.history:
            self.resent = len(self.history)
            self.unsent[:0] = self.history
            self.history.clear()
        self.sent = 0


class Job(Timer):
    """The work of one request at one stage for one sibling. Its timer is the one wait that it is in."""

    __slots__ = (
        "attempts", "finish_reason", "first_output_at", "finished_at", "inputs", "is_detached", "is_parked", "key",
        "last_output_at", "missing",
        "open_sources", "order", "partial", "plan", "queued_at", "replica", "request", "sample", "stage",
        "started_at", "state", "wait",
    )  # fmt: skip

    def __init__(self, request: Request, sample: Sample, plan: JobPlan, *, input_open: bool) -> None:
        super().__init__()
        self.request = request
        self.sample = sample
        self.plan = plan
        self.stage: Stage = plan.stage
        self.state = _WAITING
        self.wait = _NOTHING
        self.key: JobKey | None = None
        self.replica: Replica | None = None
        self.attempts = 0
        self.order = Sequencer()
        self.inputs = {
            source.stage: SourceBuffer(
                source.stage, keeps_history=self.stage.rerun, is_complete=source.mode is EdgeMode.COMPLETE
            )
            for source in plan.sources
        }
        if input_open:
            self.inputs[PROMPT] = SourceBuffer(PROMPT, keeps_history=self.stage.rerun)
        self.missing = len(plan.sources)
        if plan.bundle:
            self._expect_bundle(plan)
        self.open_sources = len(self.inputs)
        self.last_output_at = 0.0
        self.partial: Payload = None
        self.finish_reason: FinishReason | None = None
        self.is_detached = False
        self.is_parked = False
        self.queued_at: float | None = None
        self.started_at: float | None = None
        self.first_output_at: float | None = None
        self.finished_at: float | None = None

    def __repr__(self) -> str:
        where = f" on {self.replica.key}" if self.replica is not None else ""
        waits = f", waits for {self.wait}" if self.wait is not _NOTHING else ""
        return f"<Job {self.request.id}/{self.name} {self.state}{where}{waits}>"

    def _expect_bundle(self, plan: JobPlan) -> None:
        for key, stage, role in plan.bundle:
            self.inputs[key] = SourceBuffer(stage, keeps_history=self.stage.rerun, is_complete=True, role=role)
        self.missing += len(plan.bundle)

    @property
    def name(self) -> str:
        """Its stage, and its sibling where the request has several."""
        sibling = self.plan.sibling
        return self.stage.name if sibling == MAIN else f"{self.stage.name}/{sibling}"

    @property
    def leader(self) -> Job | None:
        """The job that this one of a companion follows to its replica."""
        leader = self.plan.leader
        return self.request.jobs[leader] if leader >= 0 else None

    @property
    def missing_roles(self) -> list[str]:
        """The companions that a joining job still waits for."""
        return list(dict.fromkeys(one.role for one in self.inputs.values() if one.finish is None and one.role != MAIN))

    @property
    def lacks_companions_only(self) -> bool:
        """Whether a joining job has all of its own sibling, and waits for companions."""
        return all(one.finish is not None for one in self.inputs.values() if one.role == MAIN)

    @property
    def is_at_replica(self) -> bool:
        """Whether a replica has it, and a credit is taken for it."""
        return self.state in AT_REPLICA

    @property
    def is_before_replica(self) -> bool:
        """Whether no replica knows of it yet."""
        return self.state in BEFORE_REPLICA

    @property
    def is_stopping(self) -> bool:
        """Whether its replica was asked to stop it, and has not."""
        return self.state is _STOPPING or self.state is _STOP_FAILED

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return not JOBS[self.state]

    @property
    def is_of_use(self) -> bool:
        """Whether something comes of it that is still wanted."""
        return not (self.is_over or self.is_detached)

    @property
    def can_rerun(self) -> bool:
        """Whether it may run again from its saved input: allowed once, while nothing of it was passed on."""
        return self.stage.rerun and self.attempts == 1 and self.order.expected == 0 and not self.is_detached

    def wait_limit_s(self) -> float:
        """How long it may wait for what it waits for; 0 for nothing."""
        limits = self.stage.limits
        match self.wait:
            case Wait.QUEUE:
                return limits.queue_timeout_s
            case Wait.DISPATCH:
                return limits.dispatch_timeout_s
            case Wait.FIRST_OUTPUT:
                return limits.first_output_timeout_s
            case Wait.CHUNK | Wait.INPUT:
                return limits.chunk_timeout_s
            case Wait.BUNDLE:
                return limits.bundle_timeout_s
            case Wait.STOP:
                return limits.stop_timeout_s
            case Wait.STUCK:
                return limits.stuck_timeout_s
            case Wait.NOTHING:
                return 0.0
            case _:
                assert_never(self.wait)

    def advance(self, trigger: JobTrigger) -> None:
        """Move through the table."""
        self.state = move(JOBS, self.state, trigger)

    def new_key(self, attempt: int) -> JobKey:
        """Begin a new attempt, with a key of its own."""
        self.attempts += 1
        self.key = JobKey(self.request.id, self.stage.name, self.plan.sibling, attempt)
        return self.key

    def place(self) -> tuple[ReplicaKey, JobKey]:
        """Where a job that a replica has is, and under which key."""
        assert self.replica is not None
        assert self.key is not None
        return self.replica.key, self.key

    def take_inputs(self) -> tuple[SourceInput, ...]:
        """Everything that is there, for the start."""
        return tuple(
            SourceInput(buffer.name, *buffer.take_due(), buffer.finish, buffer.role) for buffer in self.inputs.values()
        )

    def drop_inputs(self) -> list[Payload]:
        """Give up what was never sent, and what is out of order, for release."""
        dropped: list[Payload] = [] if self.order.is_plain else list(self.order.take_early())
        for name, buffer in self.inputs.items():
            if buffer.unsent:
                unsent = buffer.drop()
                if name not in self.plan.shared:
                    dropped += unsent
        return dropped

    def rewind(self) -> None:
        """Make all input unsent again and expect output from the beginning, for a new attempt."""
        for buffer in self.inputs.values():
            buffer.rewind()
        self.order = Sequencer()
        self.replica = None

    def timings(self) -> StageTimings:
        """When it passed its stations."""
        return StageTimings(
            self.request.submitted_at, self.queued_at, self.started_at, self.first_output_at, self.finished_at
        )


class Sample:
    """One of the samples of a request: what is aborted and ends as one. `jobs` are its own and its companions'."""

    __slots__ = ("index", "is_aborting", "jobs", "open_finals", "request", "unconfirmed")

    def __init__(self, request: Request, index: int, open_finals: int) -> None:
        self.request = request
        self.index = index
        self.open_finals = open_finals
        self.is_aborting = False
        self.unconfirmed: list[str] = []
        self.jobs: tuple[Job, ...] = ()

    def __repr__(self) -> str:
        how = ", aborting" if self.is_aborting else ""
        return f"<Sample {self.index} of {self.request.id}, {self.open_finals} finals open{how}>"

    @property
    def is_over(self) -> bool:
        """Whether each of its final stages has delivered its finish."""
        return self.open_finals == 0

    def needs(self, stage: Stage) -> bool:
        """Whether something of use has still to be done for it at a stage."""
        return any(job.stage is stage and job.is_of_use for job in self.jobs)

    @property
    def is_settled(self) -> bool:
        """Whether no replica works for it any more."""
        return not any(job.is_at_replica and not job.is_detached for job in self.jobs)


class Request(Timer):
    """One request of a client, from its submission to its terminal. Its timer is its own deadline."""

    __slots__ = (
        "abort_calls", "affinity", "companions", "deadline", "group", "id", "input_open", "input_sequence", "jobs",
        "open_finals", "params", "plan", "priority", "prompt", "samples", "sequence", "serial", "state", "submitted_at",
        "ticket",
    )  # fmt: skip

    def __init__(self, event: RequestSubmitted, plan: Plan, serial: int, now: float) -> None:
        super().__init__()
        self.id = event.request_id
        self.ticket = event.ticket
        self.prompt = event.prompt
        self.companions = event.companions
        self.group = event.group
        self.params = event.params
        self.priority = event.priority
        self.deadline = event.deadline
        self.affinity = event.affinity
        self.input_open = event.input_open
        self.input_sequence = 0
        self.plan = plan
        self.serial = serial
        self.submitted_at = now
        self.state = _HELD
        self.sequence = 0
        self.open_finals = plan.finals * plan.samples
        self.abort_calls: list[AbortCall] = []
        self.samples: tuple[Sample, ...] = ()
        self.jobs: tuple[Job, ...] = ()
        if plan.samples == 1:
            self._lay_out_one(plan, input_open=event.input_open)
        else:
            self._lay_out_several(plan, input_open=event.input_open)

    def _lay_out_one(self, plan: Plan, *, input_open: bool) -> None:
        sample = Sample(self, 0, plan.finals)
        self.samples = (sample,)
        self.jobs = sample.jobs = tuple(
            Job(self, sample, job, input_open=input_open and not job.sources and job.leader < 0) for job in plan.jobs
        )

    def _lay_out_several(self, plan: Plan, *, input_open: bool) -> None:
        self.samples = tuple(Sample(self, index, plan.finals) for index in range(plan.samples))
        self.jobs = tuple(
            Job(self, self.samples[job.sample], job, input_open=input_open and not job.sources and job.leader < 0)
            for job in plan.jobs
        )
        size = len(self.jobs) // plan.samples
        for sample in self.samples:
            sample.jobs = self.jobs[sample.index * size : (sample.index + 1) * size]

    def __repr__(self) -> str:
        jobs = " ".join(f"{job.name}={job.state}" for job in self.jobs)
        return f"<Request {self.id} {self.state} {jobs}>"

    @property
    def is_over(self) -> bool:
        """Whether it has had its terminal."""
        return not REQUESTS[self.state]

    @property
    def is_aborting(self) -> bool:
        """Whether it is being stopped, and ends when each replica has confirmed."""
        return self.state is _ABORTING

    def prompt_of(self, role: str) -> Payload:
        """What a sibling begins with."""
        return self.prompt if role == MAIN else self.companions[role]

    def unused_prompts(self) -> list[Payload]:
        """The prompts that no replica was ever given."""
        used = {job.plan.role for job in self.jobs if job.attempts}
        prompts = [] if self.prompt is None or MAIN in used else [self.prompt]
        return prompts + [self.companions[role] for role in self.plan.roles if role not in used]

    def forget(self) -> None:
        """Let go of its samples and jobs, once it is over."""
        for sample in self.samples:
            sample.jobs = ()
        self.samples = ()
        self.jobs = ()

    def advance(self, trigger: RequestTrigger) -> None:
        """Move through the table."""
        self.state = move(REQUESTS, self.state, trigger)

    def awaited(self) -> str:
        """What it is waiting for now, in words, for the text of a timeout."""
        if self.state is _HELD:
            return "admission"
        pending = [
            f"{job.wait} at stage '{job.stage.name}'" if job.wait is not _NOTHING else f"stage '{job.stage.name}'"
            for job in self.jobs
            if not job.is_over and (job.state is not _WAITING or job.wait is not _NOTHING)
        ]
        return ", ".join(pending) or "its stages"
