"""One replica at work: what a backend and a processor do, and do wrong, becomes events; it decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, TypeVar

import msgspec
import pytest

from podium.core.effects import EndInput, FeedJob, SourceInput, StartJob, StopJob
from podium.core.events import (
    Event,
    FinishReason,
    InputRejected,
    ReplicaLost,
    ReplicaReported,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.graph import Modality
from podium.core.identity import MAIN, PROMPT, JobKey, Payload, ReplicaKey
from podium.errors import Category, ErrorKind, ErrorRecord, InvalidRequestError, Scope
from podium.payloads import Text
from podium.ports.input_processor import BundleMember, BundleProcessor, Processor
from podium.ports.stage_backend import BackendDead, BackendOutput, Capabilities, JobFailed, StageTask
from podium.testing.fake_backend import FakeBackend, FakeOptions, Script, Then
from podium.testing.fake_processor import At, FakeProcessor, Trouble
from podium.transports.worker import StageWorker
from tests.support.shell_world import until

REPLICA = ReplicaKey("talker", 2, 5)
SOURCES: Mapping[str, Modality] = {"thinker": Modality.TEXT}
E = TypeVar("E", bound=Event)


def key(number: int = 1) -> JobKey:
    return JobKey(f"r{number}", "talker", MAIN, number)


class WholeInputBackend(FakeBackend):
    """Takes a job with all of its input only, and says itself when it begins."""

    capabilities: ClassVar[Capabilities] = msgspec.structs.replace(
        FakeBackend.capabilities, streams_input=False, reports_start=True
    )


class Desk:
    """A worker, and everything that it pushed."""

    def __init__(self, backend: FakeBackend, sources: Mapping[str, Modality], processor: Processor) -> None:
        self.backend = backend
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        self.worker = StageWorker(REPLICA, backend, processor, sources, self._push)

    def start(self, *items: Payload, number: int = 1, input_open: bool = False, prompt: Payload = None) -> JobKey:
        job = key(number)
        finish = None if input_open else FinishReason.STOP
        inputs = tuple(SourceInput(name, 0, items, finish) for name in self._source_names(items, finish))
        self.worker.take(
            StartJob(
                replica=REPLICA,
                job=job,
                prompt=prompt,
                params="params",
                inputs=inputs,
                input_open=input_open,
                priority=3,
                deadline=9.0,
            )
        )
        return job

    def _source_names(self, items: Sequence[Payload], finish: FinishReason | None) -> Sequence[str]:
        return () if not items and finish is None else tuple(self.worker._sources)

    def feed(self, job: JobKey, *items: Payload, source: str = "thinker") -> None:
        self.worker.take(FeedJob(REPLICA, job, source, 0, items))

    def end(self, job: JobKey, source: str = "thinker") -> None:
        self.worker.take(EndInput(REPLICA, job, source, FinishReason.STOP))

    def stop(self, job: JobKey) -> None:
        self.worker.take(StopJob(REPLICA, job))

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def next(self, kind: type[E], count: int = 1) -> E:
        while len(self.of(kind)) < count:
            await self._changed.wait()
        return self.of(kind)[count - 1]

    def payloads(self) -> list[Payload]:
        return [item for event in self.of(StageProduced) for output in event.outputs for item in output.payloads]

    def told(self) -> list[tuple[str, tuple[Payload, ...]]]:
        return [(told.method, told.inputs) for told in self.backend.told]

    def _push(self, event: Event) -> None:
        self.events.append(event)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@asynccontextmanager
async def desk(
    backend: FakeBackend | None = None,
    sources: Mapping[str, Modality] = SOURCES,
    processor: Processor | None = None,
) -> AsyncIterator[Desk]:
    """A worker that delivers, until it is cancelled."""
    desk = Desk(backend or FakeBackend("talker"), sources, processor or FakeProcessor())
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        running = group.create_task(desk.worker.run())
        yield desk
        running.cancel()
    assert running.cancelled() or running.exception() is None


# Starting and feeding


async def test_a_job_gets_its_input_through_the_processor() -> None:
    async with desk() as d:
        job = d.start(Text("a"), Text("b"))
        await d.next(StageProduced)
        (task,) = [told for told in d.backend.told if told.method == "submit"]
        assert task.inputs == (Text("a"), Text("b"))
        assert d.payloads() == [Text("a"), Text("b")]
        assert [type(event) for event in d.events] == [StageStarted, StageProduced]
        assert all(isinstance(event, StageStarted | StageProduced) and event.replica == REPLICA for event in d.events)
        assert d.of(StageStarted)[0].job == job


async def test_a_task_says_everything_that_the_backend_needs() -> None:
    async with desk(FakeBackend("talker", FakeOptions(by_hand=True))) as d:
        job = d.start(Text("a"), input_open=True)
        assert d.backend.tasks == {
            job: StageTask(job=job, inputs=(Text("a"),), params="params", input_open=True, priority=3, deadline=9.0)
        }


@pytest.mark.rule("ORCH-INV-104")
async def test_input_is_fed_in_order_and_ended_once() -> None:
    async with desk() as d:
        job = d.start(Text("a"), input_open=True)
        d.feed(job, Text("b"))
        d.feed(job, Text("c"), Text("d"))
        d.end(job)
        await d.backend.wait_until(lambda: not d.backend.tasks)
        assert d.told() == [
            ("submit", (Text("a"),)),
            ("feed", (Text("b"),)),
            ("feed", (Text("c"), Text("d"))),
            ("end_input", ()),
        ]
        assert repr(d.worker) == "<StageWorker talker[2]@5, 0 open inputs, 0 stopping>"


async def test_a_stage_that_begins_gets_the_prompt() -> None:
    async with desk(sources={}) as d:
        d.start(prompt=Text("the prompt"))
        await d.next(StageProduced)
        assert d.payloads() == [Text("the prompt")]


async def test_an_open_prompt_is_continued() -> None:
    async with desk(sources={}) as d:
        job = d.start(prompt=Text("once"), input_open=True)
        d.feed(job, Text("upon"), source=PROMPT)
        d.end(job, PROMPT)
        await d.backend.wait_until(lambda: not d.backend.tasks)
        assert [method for method, _ in d.told()] == ["submit", "feed", "end_input"]


@pytest.mark.rule("ORCH-INV-116")
async def test_a_join_ends_with_its_last_source() -> None:
    sources = {"thinker": Modality.TEXT, "singer": Modality.SPEECH}
    async with desk(sources=sources) as d:
        job = d.start(input_open=True)
        d.end(job, "thinker")
        d.feed(job, Text("late"), source="singer")
        assert ("end_input", ()) not in d.told()
        d.end(job, "singer")
        assert d.told()[-1] == ("end_input", ())


@pytest.mark.case("B062")
async def test_a_backend_without_streaming_gets_all_at_once() -> None:
    """The same input as one that streams, only later; and the replica counts as busy with it meanwhile."""
    async with desk(WholeInputBackend("talker")) as d:
        job = d.start(Text("a"), input_open=True)
        d.feed(job, Text("b"))
        assert d.told() == []
        assert [type(event) for event in d.events] == [StageStarted]
        d.end(job)
        assert d.told() == [("submit", (Text("a"), Text("b")))]
        await d.next(StageProduced)
        assert d.payloads() == [Text("a"), Text("b")]
        assert len(d.of(StageStarted)) == 1


async def test_a_backend_may_say_itself_when_it_begins() -> None:
    async with desk(WholeInputBackend("talker", FakeOptions(by_hand=True))) as d:
        job = d.start(Text("a"))
        assert d.events == []
        d.backend.announce(job)
        assert (await d.next(StageStarted)).job == job


@pytest.mark.rule("ORCH-INV-111")
async def test_commands_for_jobs_that_are_over_change_nothing() -> None:
    async with desk() as d:
        d.feed(key(9), Text("x"))
        d.end(key(9))
        assert d.told() == []
        d.stop(key(9))
        assert (await d.next(StageStopped)).partial is None


# Output


@pytest.mark.case("B097")
async def test_what_a_replica_says_of_its_load_is_passed_on_in_its_place() -> None:
    async with desk(FakeBackend("talker", FakeOptions(by_hand=True))) as d:
        job = d.start(Text("a"))
        d.backend.produce(job, "1")
        d.backend.report(7, member=1)
        d.backend.produce(job, "2")
        report = await d.next(ReplicaReported)
        assert report == ReplicaReported(REPLICA, 7, 1)
        assert [type(event) for event in d.events[1:]] == [StageProduced, ReplicaReported, StageProduced]


async def test_outputs_of_a_batch_travel_together_and_keep_their_order() -> None:
    async with desk(FakeBackend("talker", FakeOptions(by_hand=True))) as d:
        one, other = d.start(Text("a"), number=1), d.start(Text("b"), number=2)
        d.backend.produce(one, "1")
        d.backend.produce(other, "2")
        d.backend.announce(other)
        d.backend.produce(one, "3")
        d.backend.fail(other)
        await d.next(StageFailed)
        kinds = [type(event) for event in d.events[2:]]
        assert kinds == [StageProduced, StageStarted, StageProduced, StageFailed]
        assert d.payloads() == ["1", "2", "3"]


async def test_an_early_finish_ends_the_input() -> None:
    async with desk() as d:
        job = d.start(Script(outputs=(Text("enough"),), then=Then.FINISH), input_open=True)
        await d.next(StageProduced)
        d.feed(job, Text("too late"))
        d.end(job)
        assert [method for method, _ in d.told()] == ["submit"]


# What goes wrong


@pytest.mark.rule("ORCH-INV-004", "ORCH-INV-200", "ORCH-INV-201")
@pytest.mark.parametrize(
    ("item", "kind", "category"),
    [
        (Trouble(At.FEED), ErrorKind.PROCESSOR_FAILED, Category.SERVER),
        (Trouble(At.FEED, is_clients_fault=True), ErrorKind.INVALID_REQUEST, Category.CLIENT),
        (Trouble(At.END), ErrorKind.PROCESSOR_FAILED, Category.SERVER),
        (Script(then=Then.RAISE), ErrorKind.STAGE_FAILED, Category.SERVER),
        (Script(then=Then.REFUSE), ErrorKind.INVALID_REQUEST, Category.CLIENT),
    ],
)
async def test_what_is_raised_at_the_start_fails_that_job(
    item: Payload, kind: ErrorKind, category: Category, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk() as d:
        d.start(item, number=1)
        (failed,) = d.of(StageFailed)
        assert failed.job == key(1)
        assert (failed.error.kind, failed.error.category, failed.error.scope) == (kind, category, Scope.REQUEST)
        assert (failed.error.stage, failed.error.replica) == ("talker", 2)
        d.start(Text("well"), number=2)
        await d.next(StageProduced)
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(logged) == (1 if category is Category.SERVER else 0), "a client's fault is no error of ours"
    assert all("r1" in record.getMessage() and record.exc_info for record in logged)


@pytest.mark.rule("ORCH-INV-004", "ORCH-INV-201")
@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (Trouble(At.FEED), ErrorKind.PROCESSOR_FAILED),
        (Trouble(At.FEED, is_clients_fault=True), ErrorKind.INVALID_REQUEST),
        (Script(then=Then.RAISE), ErrorKind.STAGE_FAILED),
        (Script(then=Then.REFUSE), ErrorKind.INVALID_REQUEST),
    ],
)
async def test_what_is_raised_later_rejects_the_input_and_leaves_the_job(item: Payload, kind: ErrorKind) -> None:
    """It is for the core to stop it."""
    async with desk() as d:
        job = d.start(Text("a"), input_open=True)
        d.feed(job, item)
        (rejected,) = d.of(InputRejected)
        assert (rejected.job, rejected.error.kind, rejected.error.stage) == (job, kind, "talker")
        d.feed(job, Text("x"))
        d.end(job)
        assert len(d.of(InputRejected)) == 1
        assert job in d.backend.tasks
        d.stop(job)
        assert (await d.next(StageStopped)).partial == Text("a")


async def test_a_processor_that_raises_at_the_end_rejects_it() -> None:
    async with desk() as d:
        job = d.start(Trouble(At.END), input_open=True)
        d.end(job)
        assert d.of(InputRejected)[0].error.kind is ErrorKind.PROCESSOR_FAILED


class BadBackend(FakeBackend):
    """Raises `raises` from one method, once it is armed."""

    def __init__(self, method: str, raises: BaseException) -> None:
        super().__init__("talker")
        self._method, self._raises = method, raises

    def _maybe(self, method: str) -> None:
        if method == self._method:
            raise self._raises

    def submit(self, task: StageTask) -> None:
        self._maybe("submit")
        super().submit(task)

    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        self._maybe("feed")
        super().feed(job, inputs)

    def end_input(self, job: JobKey) -> None:
        self._maybe("end_input")
        super().end_input(job)

    async def stop(self, job: JobKey) -> Payload:
        self._maybe("stop")
        return await super().stop(job)

    async def next_outputs(self) -> Sequence[BackendOutput]:
        outputs = await super().next_outputs()
        self._maybe("next_outputs")
        return outputs


def drive(d: Desk) -> None:
    """Use every method of a backend once."""
    job = d.start(Text("a"), input_open=True)
    d.feed(job, Text("b"))
    d.end(job)
    d.stop(d.start(Script(then=Then.HANG), number=2))


@pytest.mark.rule("ORCH-INV-201")
@pytest.mark.parametrize(
    ("method", "expected"),
    [("submit", StageFailed), ("feed", InputRejected), ("end_input", InputRejected), ("stop", StopFailed)],
)
async def test_a_method_that_raises_hurts_one_job(method: str, expected: type[Event]) -> None:
    async with desk(BadBackend(method, LookupError("no such thing"))) as d:
        drive(d)
        event = await d.next(expected)
        assert isinstance(event, StageFailed | InputRejected | StopFailed)
        assert "LookupError" in event.error.message
        assert event.error.category is Category.SERVER
        assert d.of(ReplicaLost) == []


@pytest.mark.rule("ORCH-INV-202")
@pytest.mark.parametrize("method", ["submit", "feed", "end_input", "stop", "next_outputs"])
async def test_a_death_seen_anywhere_is_the_loss_of_the_replica_once(method: str) -> None:
    async with desk(BadBackend(method, BackendDead("the engine is gone"))) as d:
        drive(d)
        lost = await d.next(ReplicaLost)
        assert lost.replica == REPLICA
        assert (lost.error.kind, lost.error.scope, lost.error.stage, lost.error.replica) == (
            ErrorKind.REPLICA_LOST,
            Scope.REPLICA,
            "talker",
            2,
        )
        assert lost.error.message == "replica 2 of stage 'talker' died: the engine is gone"
        told = len(d.backend.told)
        drive(d)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(d.of(ReplicaLost)) == 1
        assert len(d.backend.told) == told, "a backend that is gone is asked nothing"


@pytest.mark.rule("ORCH-INV-202")
@pytest.mark.case("B107")
@pytest.mark.parametrize(
    "raises", [RuntimeError("broken pipe"), InvalidRequestError.because("not yours"), asyncio.CancelledError()]
)
async def test_a_backend_that_cannot_deliver_is_lost(raises: BaseException) -> None:
    """Also when it lets out a cancellation that nobody asked for, or an error that blames a client: 5xx."""
    async with desk(BadBackend("next_outputs", raises)) as d:
        d.start(Text("a"))
        lost = await d.next(ReplicaLost)
        assert lost.error.category is Category.SERVER
        assert lost.error.message == f"replica 2 of stage 'talker' died: {type(raises).__name__}", "no foreign text"


async def test_a_failure_that_a_backend_reports_is_placed() -> None:
    error = ErrorRecord(kind=ErrorKind.STAGE_FAILED, scope=Scope.REQUEST, message="out of tokens")
    async with desk(FakeBackend("talker", FakeOptions(by_hand=True))) as d:
        job = d.start(Text("a"), input_open=True)
        d.backend.put(JobFailed(job, error))
        failed = await d.next(StageFailed)
        assert (failed.error.stage, failed.error.replica, failed.error.message) == ("talker", 2, "out of tokens")
        d.feed(job, Text("x"))
        assert [method for method, _ in d.told()] == ["submit"], "its input is over too"


# Stopping


@pytest.mark.rule("ORCH-INV-205")
async def test_a_stop_is_confirmed_with_what_there_is() -> None:
    async with desk() as d:
        job = d.start(Script(outputs=(Text("so "), Text("far")), then=Then.HANG), input_open=True)
        d.stop(job)
        d.feed(job, Text("x"))
        stopped = await d.next(StageStopped)
        assert stopped == StageStopped(REPLICA, job, Text("so far"))
        assert d.payloads() == [Text("so "), Text("far")], "what was complete before comes before"
        assert [type(event) for event in d.events] == [StageStarted, StageProduced, StageStopped]


@pytest.mark.rule("ORCH-INV-206")
async def test_a_stop_that_fails_can_be_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async with desk() as d:
        job = d.start(Script(outputs=(Text("x"),), then=Then.HANG, stop_failures=1))
        d.stop(job)
        failed = await d.next(StopFailed)
        assert failed.error.kind is ErrorKind.STOP_UNCONFIRMED
        assert failed.error.message == "stage 'talker' could not stop 'r1': it raised RuntimeError"
        assert "the fake backend was told not to stop" in caplog.text, "the log has what the client does not need"
        d.stop(job)
        assert (await d.next(StageStopped)).partial == Text("x")


async def test_a_stop_underway_is_not_repeated() -> None:
    async with desk() as d:
        job = d.start(Script(then=Then.HANG, hang_stop=True))
        d.stop(job)
        d.stop(job)
        await d.backend.wait_until(lambda: ("stop", ()) in d.told())
        d.stop(job)
        assert repr(d.worker) == "<StageWorker talker[2]@5, 0 open inputs, 1 stopping>"
        d.backend.release_stops()
        await d.next(StageStopped)
        assert d.told().count(("stop", ())) == 1


async def test_a_stop_that_says_why_it_failed_is_quoted() -> None:
    error = ErrorRecord(kind=ErrorKind.STOP_UNCONFIRMED, scope=Scope.REQUEST, message="two steps still run")
    async with desk(BadBackend("stop", error.to_exception())) as d:
        d.stop(d.start(Script(then=Then.HANG)))
        assert (await d.next(StopFailed)).error.message == "two steps still run"


async def test_a_stop_before_the_first_turn_is_not_lost() -> None:
    """A command may come between the start of a replica and the first turn of its deliveries."""
    d = Desk(FakeBackend("talker"), SOURCES, FakeProcessor())
    d.stop(d.start(Script(then=Then.HANG)))
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        running = group.create_task(d.worker.run())
        await d.next(StageStopped)
        running.cancel()


async def test_what_waits_for_its_input_is_stopped_without_the_backend() -> None:
    async with desk(WholeInputBackend("talker")) as d:
        job = d.start(Text("a"), input_open=True)
        d.stop(job)
        assert d.of(StageStopped) == [StageStopped(REPLICA, job)]
        d.end(job)
        assert d.told() == []


@pytest.mark.rule("ORCH-INV-216")
async def test_a_stop_that_hangs_delays_nothing_else() -> None:
    async with desk() as d:
        hanging = d.start(Script(then=Then.HANG, hang_stop=True), number=1)
        d.stop(hanging)
        other = d.start(Script(then=Then.HANG), number=2)
        d.stop(other)
        assert (await d.next(StageStopped)).job == other
        d.start(Text("a"), number=3)
        await d.next(StageProduced)
        d.backend.release_stops()
        assert (await d.next(StageStopped, 2)).job == hanging


@pytest.mark.rule("ORCH-INV-302")
async def test_cancelling_it_ends_its_stops_too() -> None:
    async with desk() as d:
        d.stop(d.start(Script(then=Then.HANG, hang_stop=True)))
        await d.backend.wait_until(lambda: ("stop", ()) in d.told())
    assert repr(d.worker).endswith("0 stopping>")


async def test_many_jobs_leave_nothing() -> None:
    async with desk() as d:
        for number in range(2000):
            script = [Text("x"), Script(then=Then.HANG), Script(then=Then.FAIL), Trouble(At.FEED)][number % 4]
            job = d.start(script, number=number, input_open=number % 8 < 4)
            if number % 4 < 2:
                d.stop(job)
        await d.backend.wait_until(lambda: not d.backend.tasks)
        await until(lambda: "0 open inputs, 0 stopping" in repr(d.worker))
    assert d.worker._open_inputs == {}
    assert len(d.of(StageStopped)) == 1000


# Bundles


class Joining(BundleProcessor):
    """Gives each member as a text; refuses an empty prompt, and breaks on `break`."""

    def __init__(self, options: Payload = None) -> None:
        """Nothing is needed."""

    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> Payload:
        return dict(values)

    def join(self, job: JobKey, prompt: Payload, bundle: Sequence[BundleMember]) -> Sequence[Payload]:
        if prompt == "":
            raise InvalidRequestError.because("prompt: is empty; give one")
        if prompt == "break":
            raise LookupError(str(job))
        return [Text(f"{one.role}:{source}={items}") for one in bundle for source, items in one.outputs.items()]


@asynccontextmanager
async def joining_desk() -> AsyncIterator[Desk]:
    async with desk(sources={"a": Modality.TEXT, "t": Modality.TEXT}, processor=Joining()) as d:
        yield d


def start_bundle(d: Desk, prompt: Payload) -> JobKey:
    job = key()
    inputs = tuple(
        SourceInput(source, 0, (f"{source} of {role}",), FinishReason.STOP, role)
        for role in (MAIN, "negative")
        for source in ("a", "t")
    )
    d.worker.take(
        StartJob(
            replica=REPLICA,
            job=job,
            prompt=prompt,
            params="params",
            inputs=inputs,
            input_open=False,
            priority=3,
            deadline=9.0,
        )
    )
    return job


@pytest.mark.rule("ORCH-INV-113")
async def test_a_bundle_is_joined_in_one_call() -> None:
    async with joining_desk() as d:
        start_bundle(d, "prompt")
        await d.next(StageProduced)
        (task,) = [told for told in d.backend.told if told.method == "submit"]
        assert task.inputs == tuple(
            Text(f"{role}:{source}=('{source} of {role}',)") for role in (MAIN, "negative") for source in ("a", "t")
        )
        assert not d.worker._open_inputs


@pytest.mark.rule("ORCH-INV-004")
@pytest.mark.parametrize(("prompt", "kind"), [("", ErrorKind.INVALID_REQUEST), ("break", ErrorKind.PROCESSOR_FAILED)])
async def test_a_bundle_that_cannot_be_joined_fails_its_job(prompt: str, kind: ErrorKind) -> None:
    async with joining_desk() as d:
        start_bundle(d, prompt)
        failed = await d.next(StageFailed)
        assert (failed.error.kind, failed.error.stage) == (kind, "talker")
        assert not d.backend.told
