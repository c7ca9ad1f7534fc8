"""The whole core under random events: `podium.testing.model_waits.TimedModel` judges each step from outside.

Callers and operators are in `tests.support.core_callers`; replicas and time are here.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from podium.core.events import (
    CallReturned,
    FinishReason,
    InputRejected,
    ReplicaDrained,
    ReplicaLost,
    ReplicaReported,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.identity import MAIN
from podium.core.lifecycle import ReplicaState
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind
from podium.testing.model_records import JobModel, TicketModel
from tests.support.core_callers import Callers, few, index, pick
from tests.support.core_producers import Handle, Producer
from tests.support.core_world import a_loss, an_error

STEPS_UNTIL_QUIET = 400
"""Far more deadlines than any run can leave behind."""


class CoreMachine(Callers):
    """Callers, replicas and time, all of them unreasonable."""

    # Replicas

    def working(self) -> list[Producer]:
        """The jobs that a replica works on, as far as it knows."""
        return [one for one in self.producers if is_working(self.model.jobs.get(one.start.job))]

    def before_joining(self) -> list[Producer]:
        """Those of them whose output is joined with that of others."""
        tickets = {ticket.event.request_id: ticket for ticket in self.model.open_tickets() if ticket.roles}
        return [
            one for one in self.working() if one.start.job.stage in joined_stages(tickets.get(one.start.job.request))
        ]

    def stopping(self) -> list[Producer]:
        """The jobs that a replica was asked to stop, and has not."""
        return [one for one in self.producers if is_stopping(self.model.jobs.get(one.start.job))]

    @precondition(lambda self: self.working())
    @rule(which=index)
    def start(self, which: int) -> None:
        start = pick(self.working(), which).start
        self.tell(StageStarted(start.replica, start.job))

    @precondition(lambda self: self.working())
    @rule()
    def start_every_job(self) -> None:
        self.tell(*(StageStarted(one.start.replica, one.start.job) for one in self.working()))

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def produce(self, which: int, count: int) -> None:
        self.deliver(pick(self.working(), which), 0, count)

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def produce_for_some(self, which: int, count: int) -> None:
        """One delivery for several jobs of a replica."""
        replica = pick(self.working(), which).start.replica
        jobs = [producer for producer in self.working() if producer.start.replica == replica]
        self.tell(StageProduced(replica, tuple(job.output(0, count, None) for job in jobs)))

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def finish(self, which: int, count: int) -> None:
        self.deliver(pick(self.working(), which), 0, count, FinishReason.STOP)

    @precondition(lambda self: self.working())
    @rule(which=index, count=few)
    def finish_oldest(self, which: int, count: int) -> None:
        self.deliver(pick(self.working(), -1 - which), 0, count, FinishReason.LENGTH)

    @precondition(lambda self: self.before_joining())
    @rule(which=index, is_own=st.sampled_from([True, True, False]))
    def finish_before_joining(self, which: int, is_own: bool) -> None:
        """A sample, or a companion of it, comes to where they are joined; the one does not wait for the other."""
        jobs = self.before_joining()
        self.deliver(
            pick([one for one in jobs if is_own == (one.start.job.role == MAIN)] or jobs, which),
            0,
            1,
            FinishReason.STOP,
        )

    @precondition(lambda self: self.producers)
    @rule(
        which=index,
        offset=st.sampled_from([1, 1, -1, -2, 0]),
        count=few,
        finish=st.sampled_from([None, None, None, FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR]),
    )
    def deliver_oddly(self, which: int, offset: int, count: int, finish: FinishReason | None) -> None:
        """Early or repeated chunks, and any finish; of any job there ever was, or of one that works."""
        self.deliver(pick(self.working() or self.producers, which), offset, count, finish)

    @precondition(lambda self: self.producers)
    @rule(which=index, count=few, finish=st.sampled_from([None, FinishReason.STOP, FinishReason.ABORT]))
    def deliver_late(self, which: int, count: int, finish: FinishReason | None) -> None:
        """Output of a job that is being stopped, or is over."""
        self.deliver(pick(self.stopping() or self.producers, which), 0, count, finish)

    @precondition(lambda self: any(one.gap for one in self.working()))
    @rule(which=index)
    def fill_gap(self, which: int) -> None:
        producer = pick([one for one in self.working() if one.gap], which)
        self.deliver(producer, min(producer.gap) - len(producer.told), 2)

    def deliver(self, producer: Producer, offset: int, count: int, finish: FinishReason | None = None) -> None:
        self.tell(StageProduced(producer.start.replica, (producer.output(offset, count, finish),)))

    @precondition(lambda self: self.stopping())
    @rule(which=index, partial=st.booleans())
    def confirm_stop(self, which: int, partial: bool) -> None:
        start = pick(self.stopping(), which).start
        self.tell(StageStopped(start.replica, start.job, Handle(f"partial of {start.job}") if partial else None))

    @precondition(lambda self: self.producers)
    @rule(which=index, what=st.sampled_from(["fail", "reject", "stop", "fail to stop", "fail to stop"]))
    def let_job_go_wrong(self, which: int, what: str) -> None:
        start = pick(self.stopping() or self.producers if "stop" in what else self.producers, which).start
        match what:
            case "fail":
                self.tell(StageFailed(start.replica, start.job, an_error()))
            case "reject":
                self.tell(InputRejected(start.replica, start.job, an_error("bad input", ErrorKind.PROCESSOR_FAILED)))
            case "stop":
                self.tell(StageStopped(start.replica, start.job, Handle("a partial that nobody asked for")))
            case _:
                self.tell(StopFailed(start.replica, start.job, an_error("the stop failed")))

    @rule(which=index, load=few, member=st.integers(0, 1))
    def report(self, which: int, load: int, member: int) -> None:
        self.tell(ReplicaReported(pick(self.replicas, which), load, member))

    @rule(
        which=index, what=st.sampled_from(["lose", "drain", "replace", "give up", "join", "join again", "join again"])
    )
    def change_replicas(self, which: int, what: str) -> None:
        replica = pick(self.replicas, which)
        match what:
            case "lose":
                self.tell(ReplicaLost(replica, a_loss()))
            case "drain":
                self.tell(ReplicaDrained(replica))
            case "replace":
                self.tell(ReplicaDrained(replica, replica._replace(generation=replica.generation + 1)))
            case "give up":
                self.give_up_successors()
            case "join":
                self.bring_up(replica)
            case _:
                gone = [key for key, state in self.model.replicas.items() if state is ReplicaState.GONE]
                for key in gone[-3:]:
                    self.bring_up(key._replace(generation=key.generation + 1))

    def give_up_successors(self) -> None:
        for successor in list(self.model.returning.values()):
            self.tell(ReplicaLost(successor, a_loss()))

    @precondition(lambda self: self.history)
    @rule(which=st.integers(0, 30))
    def repeat_what_came(self, which: int) -> None:
        """Anything that replicas said comes again, late; with payloads of its own."""
        event = pick(self.history, which)
        if isinstance(event, StageStarted | StageFailed | StopFailed | InputRejected | ReplicaLost | ReplicaDrained):
            self.tell(event)
        elif isinstance(event, CallReturned):
            self.tell(msgspec.structs.replace(event, value=Handle("late value")))
        elif isinstance(event, StageStopped):
            self.tell(msgspec.structs.replace(event, partial=Handle("late partial")))
        elif isinstance(event, StageProduced):
            outputs = (
                msgspec.structs.replace(output, payloads=tuple(Handle(f"late {one}") for one in output.payloads))
                for output in event.outputs
            )
            self.tell(msgspec.structs.replace(event, outputs=tuple(outputs)))

    @precondition(lambda self: self.core.is_idle and not self.batch)
    @rule()
    def replace_the_second_core(self) -> None:
        """A core that goes on from a snapshot of an idle one does as that one does."""
        self.twin = Orchestrator(self.core.graph, self.core.limits, self.core.snapshot())

    # Time

    @rule(seconds=st.sampled_from([0.1, 0.1, 0.5, 1.0, 5.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.end_batch()
        self.now += seconds
        self.tell()

    @precondition(lambda self: self.core.next_deadline() is not None)
    @rule()
    def reach_the_next_deadline(self) -> None:
        self.end_batch()
        self.now = self.core.next_deadline() or self.now
        self.tell()

    def teardown(self) -> None:
        """Nobody answers any more: everything ends within its limits, and nothing is left."""
        if self.is_broken:  # a complaint about what is left would hide the one about how it came to that
            return
        self.end_batch()
        self.give_up_successors()  # whoever replaces a replica says in time when it does not come
        for _ in range(STEPS_UNTIL_QUIET):
            deadline = self.core.next_deadline()
            if deadline is None:
                break
            self.now = deadline
            self.tell()
        self.model.check_is_over(self.core.statistics())


def joined_stages(ticket: TicketModel | None) -> frozenset[str]:
    """The stages that run for companions too."""
    return frozenset() if ticket is None else ticket.joined


def is_working(job: JobModel | None) -> bool:
    """Whether a replica has the job, and was not asked to stop it."""
    return job is not None and not job.is_over and not job.is_asked_to_stop


def is_stopping(job: JobModel | None) -> bool:
    """Whether a replica was asked to stop the job, and has not confirmed."""
    return job is not None and not job.is_over and job.is_asked_to_stop


TestCore = pytest.mark.rule(
    "ORCH-INV-003", "ORCH-INV-100", "ORCH-INV-101", "ORCH-INV-102", "ORCH-INV-103", "ORCH-INV-104", "ORCH-INV-107",
    "ORCH-INV-109", "ORCH-INV-110", "ORCH-INV-112", "ORCH-INV-113", "ORCH-INV-114", "ORCH-INV-115", "ORCH-INV-118",
    "ORCH-INV-201", "ORCH-INV-207", "ORCH-INV-209", "ORCH-INV-213",
)(CoreMachine.TestCase)  # fmt: skip
TestCore = pytest.mark.timeout(600)(TestCore)  # a failure is shrunk for up to five minutes
TestCore.settings = settings(
    max_examples=max(200, settings.default.max_examples if settings.default else 0), stateful_step_count=60
)
