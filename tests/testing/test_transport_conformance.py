"""The suite finds what it is for: each client here breaks one sentence of the port, and its test says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from podium.core.effects import CallReplica, FeedJob, StopJob
from podium.core.events import CallReturned, Event, ReplicaLost, StageFailed, StageProduced, StageStarted, StageStopped
from podium.errors import ErrorKind
from podium.ports.stage_backend import Placement
from podium.ports.stage_client import EventSink, StageClient, StageCommand
from podium.testing.transport_conformance import REPLICA, ReplicaSetup, TransportConformance
from podium.transports.in_process import in_process_client


class Wrapped:
    """The client of this process, until a subclass spoils it."""

    def __init__(self, setup: ReplicaSetup) -> None:
        self.replica = setup.replica
        self.client = in_process_client(*setup, Placement.LOOP)
        self.pushed: list[Event] = []
        self.sink: EventSink = self.pushed.append

    async def start(self, sink: EventSink) -> None:
        self.sink = sink
        await self.client.start(partial(self.push, sink))

    def push(self, sink: EventSink, event: Event) -> None:
        sink(event)

    def post(self, command: StageCommand) -> None:
        self.client.post(command)

    async def close(self) -> None:
        await self.client.close()


class RepeatsOutputs(Wrapped):
    def push(self, sink: EventSink, event: Event) -> None:
        sink(event)
        if isinstance(event, StageProduced):
            sink(event)


class ReportsNoStart(Wrapped):
    def push(self, sink: EventSink, event: Event) -> None:
        if not isinstance(event, StageStarted):
            sink(event)


class ReportsLossTwice(Wrapped):
    def push(self, sink: EventSink, event: Event) -> None:
        sink(event)
        if isinstance(event, ReplicaLost):
            sink(event)


class BlamesTheClient(Wrapped):
    def push(self, sink: EventSink, event: Event) -> None:
        if isinstance(event, StageFailed):
            error = msgspec.structs.replace(event.error, kind=ErrorKind.INVALID_REQUEST)
            event = msgspec.structs.replace(event, error=error)
        sink(event)


class ForgetsPartial(Wrapped):
    def push(self, sink: EventSink, event: Event) -> None:
        sink(msgspec.structs.replace(event, partial=None) if isinstance(event, StageStopped) else event)


class DropsInput(Wrapped):
    def post(self, command: StageCommand) -> None:
        if not (isinstance(command, FeedJob) and command.sequence == 7):
            super().post(command)


class DropsStops(Wrapped):
    def post(self, command: StageCommand) -> None:
        if not isinstance(command, StopJob):
            super().post(command)


class DropsCalls(Wrapped):
    def post(self, command: StageCommand) -> None:
        if not isinstance(command, CallReplica):
            super().post(command)


class AnswersTwice(Wrapped):
    def push(self, sink: EventSink, event: Event) -> None:
        sink(event)
        if isinstance(event, CallReturned):
            sink(event)


class AnswersWithSuccess(Wrapped):
    def push(self, sink: EventSink, event: Event) -> None:
        sink(msgspec.structs.replace(event, error=None) if isinstance(event, CallReturned) else event)


class CallsNothingSupported(Wrapped):
    """It blames what the engine can do for what went wrong."""

    def push(self, sink: EventSink, event: Event) -> None:
        if isinstance(event, CallReturned) and event.error is not None:
            error = msgspec.structs.replace(event.error, kind=ErrorKind.UNSUPPORTED)
            event = msgspec.structs.replace(event, error=error)
        sink(event)


class HoldsDataDuringCalls(Wrapped):
    """What is posted while a call is open waits for its answer."""

    def __init__(self, setup: ReplicaSetup) -> None:
        super().__init__(setup)
        self.open: set[int] = set()
        self.waiting: list[StageCommand] = []

    def post(self, command: StageCommand) -> None:
        if self.open:
            self.waiting.append(command)
            return
        if isinstance(command, CallReplica):
            self.open.add(command.call)
        super().post(command)

    def push(self, sink: EventSink, event: Event) -> None:
        sink(event)
        if isinstance(event, CallReturned):
            self.open.discard(event.call)
            waiting, self.waiting = self.waiting, []
            for command in waiting:
                self.post(command)


class DelaysOutputs(Wrapped):
    """Answers overtake the outputs that came before them."""

    def __init__(self, setup: ReplicaSetup) -> None:
        super().__init__(setup)
        self.delayed: list[Event] = []

    def push(self, sink: EventSink, event: Event) -> None:
        if isinstance(event, StageProduced):
            self.delayed.append(event)
            return
        sink(event)
        for late in self.delayed:
            sink(late)
        self.delayed.clear()


class SpeaksAfterClose(Wrapped):
    async def close(self) -> None:
        await super().close()
        self.sink(StageStarted(REPLICA, self.last))

    def post(self, command: StageCommand) -> None:
        if not isinstance(command, CallReplica):
            self.last = command.job
        super().post(command)


class ServesAnyway(Wrapped):
    async def start(self, sink: EventSink) -> None:
        with pytest.raises(Exception, match="not to load"):
            await super().start(sink)


@pytest.mark.rule("ORCH-INV-307")
@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (RepeatsOutputs, TransportConformance.test_a_job_gives_its_outputs_and_its_finish),
        (ReportsNoStart, TransportConformance.test_a_start_is_reported_without_any_output),
        (ReportsLossTwice, TransportConformance.test_the_loss_of_the_replica_is_pushed_once),
        (BlamesTheClient, TransportConformance.test_a_job_that_fails_is_reported_and_leaves_the_others),
        (ForgetsPartial, TransportConformance.test_a_stop_is_confirmed_with_what_there_is),
        (DropsInput, TransportConformance.test_input_reaches_the_backend_in_order),
        (DropsStops, TransportConformance.test_commands_for_jobs_that_are_not_there_change_nothing),
        (DropsCalls, TransportConformance.test_a_call_is_answered_once),
        (AnswersTwice, TransportConformance.test_a_call_is_answered_once),
        (AnswersWithSuccess, TransportConformance.test_a_call_that_fails_says_so),
        (CallsNothingSupported, TransportConformance.test_a_call_that_fails_says_so),
        (HoldsDataDuringCalls, TransportConformance.test_a_call_that_hangs_delays_nothing),
        (HoldsDataDuringCalls, TransportConformance.test_a_slow_call_is_overtaken),
        (DelaysOutputs, TransportConformance.test_the_answer_of_a_pause_comes_behind_the_outputs),
        (SpeaksAfterClose, TransportConformance.test_jobs_do_not_mix),
        (ServesAnyway, TransportConformance.test_start_raises_what_kept_the_replica_from_serving),
    ],
)
def test_a_breach_is_found(kind: type[Wrapped], test: Callable[[TransportConformance], None]) -> None:
    class Suite(TransportConformance):
        limit_s = 0.5  # only for the breach that makes a wait endless

        def make_client(self, setup: ReplicaSetup) -> StageClient:
            return kind(setup)

    with pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError)):
        test(Suite())
