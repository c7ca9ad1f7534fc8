"""Hosted functions in every form: the conformance suite, then what is special about hosting."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from podium.backends.function import FunctionBackend, FunctionOptions
from podium.core.events import Finish, FinishReason
from podium.core.identity import MAIN, JobKey, Payload
from podium.core.operations import PauseMode
from podium.errors import (
    Category,
    ConfigurationError,
    ErrorKind,
    ErrorRecord,
    InvalidRequestError,
    Scope,
    StartError,
    SupersededError,
)
from podium.payloads import Text
from podium.ports.stage_backend import StageBackend, StageTask
from podium.testing.backend_conformance import BackendConformance, SampleJob
from podium.testing.backend_watch import BackendWatch
from tests.backends import hosted
from tests.backends.hosted import Stuck, Wrong

HOSTED = "tests.backends.hosted"


def key(name: str) -> JobKey:
    return JobKey(name, "stage", MAIN, 0)


def task(name: str, *inputs: object, input_open: bool = False, params: Payload = None) -> StageTask:
    return StageTask(job=key(name), inputs=inputs, params=params, input_open=input_open, priority=0, deadline=None)


def options(function: str, **others: object) -> FunctionOptions:
    return FunctionBackend.parse_options({"function": f"{HOSTED}:{function}", **others})


@asynccontextmanager
async def hosting(function: str, **others: object) -> AsyncIterator[tuple[FunctionBackend, BackendWatch]]:
    """A loaded backend with a watch; closed at the end. No test takes more than ten seconds."""
    backend = FunctionBackend("stage", options(function, **others))
    watch = BackendWatch(backend)
    async with asyncio.timeout(10):
        try:
            await backend.load()
            async with asyncio.TaskGroup() as group:
                group.create_task(watch.run())
                yield backend, watch
                await backend.close()
        finally:
            await backend.close()
    assert watch.faults == []


async def outputs_of(backend: FunctionBackend, watch: BackendWatch, the_task: StageTask) -> list[Payload]:
    backend.submit(the_task)
    await watch.wait_end(the_task.job)
    assert watch.ends[the_task.job] == Finish(FinishReason.STOP, {"items": len(the_task.inputs)})
    return watch.outputs[the_task.job]


async def wait_reached(stuck: Stuck) -> None:
    """Until a thread is at `stuck`, without a poll."""
    await asyncio.get_running_loop().run_in_executor(None, stuck.reached.wait, 10)


class FunctionConformance(BackendConformance):
    function: ClassVar[str]
    others: ClassVar[dict[str, object]] = {}

    def options(self) -> FunctionOptions:
        return options(self.function, **self.others)

    def make_backend(self) -> FunctionBackend:
        return FunctionBackend("stage", self.options())

    def sample(self, number: int) -> SampleJob:
        return SampleJob((Text(f"<{number}"), Text(">")), Text(f"<{number}>"))

    def failing_sample(self) -> SampleJob:
        return SampleJob((Text("fine"), Wrong(ValueError("this item is wrong"))))

    def count_jobs(self, backend: StageBackend) -> int:
        assert isinstance(backend, FunctionBackend)
        return backend.count_jobs()


class TestThreadedConformance(FunctionConformance):
    """A job without an end is a generator; closing it takes the thread of no other job."""

    function = "forever_or_letters"

    def long_sample(self) -> SampleJob:
        return SampleJob((hosted.FOREVER,))


class TestThreadsConformance(TestThreadedConformance):
    others: ClassVar[dict[str, object]] = {"workers": 3, "max_buffered": 2}


class TestAsyncConformance(FunctionConformance):
    function = "async_forever_or_letters"

    def long_sample(self) -> SampleJob:
        return SampleJob((hosted.FOREVER,))


class TestAsyncWithLittleRoomConformance(TestAsyncConformance):
    others: ClassVar[dict[str, object]] = {"max_buffered": 2}


class TestInlineConformance(FunctionConformance):
    """A function that returns at once has no end of its own while its input is open."""

    function = "letters"
    others: ClassVar[dict[str, object]] = {"blocking": False}

    def long_sample(self) -> SampleJob:
        pytest.skip("a function that returns at once is never in the middle of something")


# The forms of what is hosted.


@pytest.mark.parametrize("blocking", [True, False])
async def test_plain_functions(blocking: bool) -> None:
    async with hosting("echo", blocking=blocking) as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", 1, 2, 3)) == [1, 2, 3]
    async with hosting("nothing", blocking=blocking) as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", 1, 2)) == []
    async with hosting("letters", blocking=blocking) as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", Text("ab"), Text("c"))) == [Text("a"), Text("b"), Text("c")]
    async with hosting("sparse", blocking=blocking) as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", 1, 2)) == [1, 2]


async def test_async_functions() -> None:
    async with hosting("async_echo") as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", 1, 2, 3)) == [1, 2, 3]
    async with hosting("async_letters") as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", Text("ab"), Text("c"))) == [Text("a"), Text("b"), Text("c")]


async def test_a_class_is_made_with_its_arguments() -> None:
    async with hosting("Prefix", arguments={"prefix": "> "}) as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", Text("a"))) == [Text("> a")]


async def test_a_function_with_arguments_makes_the_callable() -> None:
    async with hosting("make_prefix", arguments={"prefix": "> "}) as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", Text("a"))) == [Text("> a")]
    async with hosting("make_prefix", arguments={}) as (backend, watch):
        assert await outputs_of(backend, watch, task("r1", Text("a"))) == [Text("a")]


@pytest.mark.parametrize("name", ["Twice", "AsyncTwice", "twice"])
async def test_parameters_reach_a_stage_function(name: str) -> None:
    async with hosting(name) as (backend, watch):
        sign = "!" if name == "twice" else ""
        params = FunctionBackend.parse_params(options(name), {"times": 3, "word": "b"})
        assert await outputs_of(backend, watch, task("r1", Text("a"), params=params)) == [Text(f"ab{sign}" * 3)]
        assert await outputs_of(backend, watch, task("r2", Text("a"))) == [Text(f"a{sign}" * 2)], "the defaults"


async def test_a_job_may_have_state_of_its_own() -> None:
    hosted.Counter.closed.clear()
    async with hosting("Counter") as (backend, watch):
        backend.submit(task("r1", "a", "b", input_open=True))
        assert await outputs_of(backend, watch, task("r2", "a")) == [1]
        backend.feed(key("r1"), ["c"])
        backend.end_input(key("r1"))
        await watch.wait_end(key("r1"))
        assert watch.outputs[key("r1")] == [1, 2, 3]
        assert hosted.Counter.closed == []
    assert hosted.Counter.closed == ["podium-stage-0"], "released once, in a worker thread"


async def test_blocking_code_never_runs_on_the_loop() -> None:
    async with hosting("Twice") as (backend, _watch):
        made = backend.hosted
        assert isinstance(made, hosted.Twice)
        assert made.thread == "podium-stage-0"


# Options and parameters.


@pytest.mark.parametrize(
    ("values", "faults"),
    [
        ({}, ["options.function: is missing; give it a value"]),
        (
            {"function": "nowhere"},
            ["options.function: 'nowhere' is not an import path; write it as package.module:name"],
        ),
        (
            {"function": "no_such_package:run"},
            [
                (
                    "options.function: 'no_such_package:run' cannot be imported: ModuleNotFoundError: "
                    "No module named 'no_such_package'; install or correct the module 'no_such_package'"
                )
            ],
        ),
        (
            {"function": f"{HOSTED}:ecco"},
            [f"options.function: '{HOSTED}:ecco' names nothing in module '{HOSTED}'; did you mean '{HOSTED}:echo'?"],
        ),
        (
            {"function": f"{HOSTED}:NOT_CALLABLE"},
            [f"options.function: '{HOSTED}:NOT_CALLABLE' is a int, which cannot be called; name a function or a class"],
        ),
        (
            {"function": f"{HOSTED}:echo", "worker": 2, "workers": 0, "blocking": "no"},
            [
                "options.worker: is unknown; did you mean 'workers'?",
                "options.blocking: expected `bool`, got `str`; correct the value",
                "options.workers: expected `int` >= 1; correct the value",
            ],
        ),
        (
            {"function": f"{HOSTED}:twice", "arguments": {}},
            ["options.arguments: cannot be given to an instance; remove them, or name its class"],
        ),
    ],
)
def test_bad_options_are_refused_with_every_fault(values: dict[str, object], faults: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FunctionBackend.parse_options(values)
    assert [str(fault) for fault in caught.value.faults] == faults


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tims": 2}, "params.tims: is unknown; did you mean 'times'?"),
        ({"times": "x"}, "params.times: expected `int`, got `str`; correct the value"),
        (
            {"times": 1, "other": 1, "word": 3},
            "params.other: is unknown; use one of: times, word; params.word: expected",
        ),
    ],
)
def test_bad_parameters_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        FunctionBackend.parse_params(options("Twice"), values)
    assert caught.value.record.message.startswith(message)


def test_a_function_without_parameters_takes_none() -> None:
    assert FunctionBackend.parse_params(options("echo"), {}) is None
    with pytest.raises(InvalidRequestError, match=r"params\.speed: this stage takes no parameters"):
        FunctionBackend.parse_params(options("echo"), {"speed": 2})


# Failures.


@pytest.mark.rule("ORCH-INV-200", "ORCH-INV-201")
@pytest.mark.parametrize(
    ("function", "blocking"),
    [("echo", True), ("echo", False), ("letters", True), ("async_echo", True), ("async_letters", True)],
)
@pytest.mark.parametrize("error", [ValueError("secret"), SystemExit(3), StopIteration(), asyncio.CancelledError()])
async def test_whatever_user_code_raises_fails_its_job_only(
    function: str, blocking: bool, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "podium"):
        async with hosting(function, blocking=blocking) as (backend, watch):
            backend.submit(task("bad", Wrong(error), Text("never reached")))
            await watch.wait_end(key("bad"))
            assert watch.outputs[key("bad")] == []
            failed = watch.ends[key("bad")]
            assert await outputs_of(backend, watch, task("good", Text("a"))) == [Text("a")]
    assert isinstance(failed, ErrorRecord)
    assert (failed.kind, failed.scope, failed.request_id, failed.stage) == (
        ErrorKind.STAGE_FAILED,
        Scope.REQUEST,
        "bad",
        "stage",
    )
    assert failed.message.startswith("stage 'stage' raised ")
    assert "secret" not in failed.message
    (logged,) = caplog.records
    assert logged.getMessage() == "stage 'stage' failed request 'bad'"
    assert logged.exc_info is not None


@pytest.mark.rule("ORCH-INV-200")
@pytest.mark.parametrize(("function", "blocking"), [("echo", True), ("echo", False), ("async_echo", True)])
async def test_a_fault_of_the_client_stays_one(function: str, blocking: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with hosting(function, blocking=blocking) as (backend, watch):
        backend.submit(task("bad", Wrong(InvalidRequestError.because("text: is too long; shorten it"))))
        await watch.wait_end(key("bad"))
        failed = watch.ends[key("bad")]
    assert isinstance(failed, ErrorRecord)
    assert (failed.category, failed.message) == (Category.CLIENT, "text: is too long; shorten it")
    assert (failed.request_id, failed.stage) == ("bad", "stage")
    assert caplog.records == []


async def test_outputs_before_a_failure_are_delivered() -> None:
    async with hosting("echo") as (backend, watch):
        backend.submit(task("r1", 1, 2, Wrong(ValueError())))
        await watch.wait_end(key("r1"))
        assert watch.outputs[key("r1")] == [1, 2]


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_function_that_hides_that_it_is_async_fails(blocking: bool) -> None:
    async with hosting("hides_that_it_is_async", blocking=blocking) as (backend, watch):
        backend.submit(task("r1", 1))
        await watch.wait_end(key("r1"))
        failed = watch.ends[key("r1")]
        assert isinstance(failed, ErrorRecord)
        assert failed.message == "stage 'stage' raised TypeError"


# Limits.


@pytest.mark.rule("ORCH-INV-204")
async def test_too_much_waiting_input_fails_the_job() -> None:
    async with hosting("echo", max_buffered=2) as (backend, watch):
        stuck = Stuck()
        backend.submit(task("r1", stuck, input_open=True))
        await wait_reached(stuck)
        backend.feed(key("r1"), [1, 2])
        backend.feed(key("r1"), [3])
        await asyncio.sleep(0)
        assert key("r1") not in watch.ends, "the step that runs cannot be interrupted"
        stuck.gate.set()
        await watch.wait_end(key("r1"))
        failed = watch.ends[key("r1")]
        assert isinstance(failed, ErrorRecord)
        assert failed.kind is ErrorKind.BUFFER_OVERFLOW
        assert failed.message == (
            "stage 'stage': 3 input items are waiting, the limit is 2; raise the option max_buffered"
        )
        assert await outputs_of(backend, watch, task("r2", 1)) == [1]


async def test_too_much_input_ends_what_is_awaited() -> None:
    async with hosting("async_letters", max_buffered=1) as (backend, watch):
        backend.submit(task("r1", Stuck(), input_open=True))
        await watch.wait_outputs(key("r1"))
        backend.feed(key("r1"), [Text("a"), Text("b")])
        await watch.wait_end(key("r1"))
        failed = watch.ends[key("r1")]
        assert isinstance(failed, ErrorRecord)
        assert failed.kind is ErrorKind.BUFFER_OVERFLOW


async def test_a_generator_that_never_ends_fails_where_nothing_could_stop_it() -> None:
    async with hosting("forever", blocking=False, max_buffered=10) as (backend, watch):
        backend.submit(task("r1", "a"))
        await watch.wait_end(key("r1"))
        failed = watch.ends[key("r1")]
        assert isinstance(failed, ErrorRecord)
        assert failed.kind is ErrorKind.BUFFER_OVERFLOW


@pytest.mark.parametrize("function", ["forever", "async_forever"])
async def test_a_fast_generator_waits_for_its_outputs_to_be_taken(function: str) -> None:
    backend = FunctionBackend("stage", options(function, max_buffered=3))
    await backend.load()
    backend.submit(task("r1", "a"))
    seen = 0
    while seen < 12:
        for output in await backend.next_outputs():
            assert len(output.payloads) <= 3  # type: ignore[union-attr]
            seen += len(output.payloads)  # type: ignore[union-attr]
    await backend.close()


# Threads.


async def test_jobs_take_turns_between_steps() -> None:
    """With one worker an endless generator does not keep another job from being served."""
    async with hosting("forever_or_letters") as (backend, watch):
        backend.submit(task("endless", hosted.FOREVER))
        assert await outputs_of(backend, watch, task("short", Text("ab"))) == [Text("a"), Text("b")]
        await watch.stop(key("endless"))


async def test_jobs_run_at_the_same_time_up_to_the_workers() -> None:
    async with hosting("echo", workers=2) as (backend, watch):
        stuck = [Stuck() for _ in range(3)]
        for number, item in enumerate(stuck):
            backend.submit(task(f"r{number}", item))
        await wait_reached(stuck[0])
        await wait_reached(stuck[1])
        assert not stuck[2].reached.is_set()
        stuck[1].gate.set()
        await wait_reached(stuck[2])
        for item in stuck:
            item.gate.set()
        await watch.wait_end(*(key(f"r{number}") for number in range(3)))


@pytest.mark.rule("ORCH-INV-206")
async def test_a_stop_waits_for_the_step_that_runs_and_delivers_it() -> None:
    async with hosting("echo") as (backend, watch):
        stuck = Stuck()
        backend.submit(task("r1", stuck, "never served"))
        await wait_reached(stuck)
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(watch.stop(key("r1")))
            await asyncio.sleep(0)
            assert not stop.done()
            stuck.gate.set()
        assert watch.outputs[key("r1")] == [stuck]


async def test_a_job_that_waits_for_a_thread_is_stopped_at_once() -> None:
    async with hosting("echo") as (backend, watch):
        stuck, never = Stuck(), Stuck()
        backend.submit(task("r1", stuck))
        await wait_reached(stuck)
        backend.submit(task("r2", never))
        await watch.stop(key("r2"))
        assert backend.count_jobs() == 1
        stuck.gate.set()
        await watch.wait_end(key("r1"))
        assert not never.reached.is_set()


@pytest.mark.rule("ORCH-INV-206")
async def test_a_stop_that_was_given_up_can_be_repeated() -> None:
    async with hosting("echo") as (backend, watch):
        stuck = Stuck()
        backend.submit(task("r1", stuck))
        await wait_reached(stuck)
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(backend.stop(key("r1")))
            await asyncio.sleep(0)
            stop.cancel()
        assert backend.count_jobs() == 1, "nothing is forgotten before the step has ended"
        stuck.gate.set()
        await watch.stop(key("r1"))
        assert backend.count_jobs() == 0


async def test_async_code_is_cancelled_and_cleans_up() -> None:
    hosted.cleaned.clear()
    async with hosting("async_with_cleanup") as (backend, watch):
        backend.submit(task("r1", "a"))
        await watch.wait_outputs(key("r1"))
        await watch.stop(key("r1"))
        assert hosted.cleaned == ["a"]


@pytest.mark.parametrize("function", ["fails_at_cleanup", "async_fails_at_cleanup"])
async def test_cleanup_that_raises_is_logged_and_stops_all_the_same(
    function: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "podium"):
        async with hosting(function) as (backend, watch):
            backend.submit(task("r1", "a"))
            await watch.wait_outputs(key("r1"))
            await watch.stop(key("r1"))
            assert key("r1") not in watch.ends
    assert [record.getMessage() for record in caplog.records] == ["stage 'stage' failed request 'r1'"]


# Load and close.


async def test_a_class_that_cannot_be_made_keeps_the_stage_from_starting() -> None:
    backend = FunctionBackend("stage", options("Broken"))
    with pytest.raises(RuntimeError, match="no weights"):
        await backend.load()
    await backend.close()


async def test_what_a_factory_makes_has_to_be_callable() -> None:
    backend = FunctionBackend("stage", options("make_nothing", arguments={}))
    with pytest.raises(StartError, match=r"stage 'stage' did not start: .* made a int, which cannot be called"):
        await backend.load()
    await backend.close()


@pytest.mark.rule("ORCH-INV-302")
async def test_close_during_a_slow_load_waits_and_releases(caplog: pytest.LogCaptureFixture) -> None:
    stuck = hosted.SlowToLoad.stuck
    stuck.gate.clear()
    hosted.SlowToLoad.closed.clear()
    backend = FunctionBackend("stage", options("SlowToLoad"))
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(load_refused(backend))
        await wait_reached(stuck)
        closing = group.create_task(backend.close())
        await asyncio.sleep(0)
        assert not closing.done()
        stuck.gate.set()
    assert "closed while it was loading" in loading.result()
    assert len(hosted.SlowToLoad.closed) == 1
    assert caplog.records[-1].getMessage() == f"stage 'stage': closing {HOSTED}:SlowToLoad failed"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("podium-")]


async def load_refused(backend: FunctionBackend) -> str:
    with pytest.raises(StartError) as caught:
        await backend.load()
    return str(caught.value)


async def test_a_backend_that_is_not_loaded_takes_nothing() -> None:
    backend = FunctionBackend("stage", options("echo"))
    with pytest.raises(RuntimeError, match="stage 'stage' is not loaded"):
        backend.submit(task("r1"))
    await backend.close()


async def test_a_job_is_submitted_once() -> None:
    async with hosting("echo") as (backend, _watch):
        backend.submit(task("r1", input_open=True))
        with pytest.raises(ValueError, match="was submitted before"):
            backend.submit(task("r1"))


async def test_it_can_be_looked_at() -> None:
    backend = FunctionBackend("stage", options("echo"))
    assert repr(backend) == f"<FunctionBackend stage {HOSTED}:echo loading jobs=0>"
    await backend.load()
    backend.submit(task("r1", input_open=True))
    assert repr(backend) == f"<FunctionBackend stage {HOSTED}:echo ready jobs=1>"
    await backend.close()
    assert repr(backend) == f"<FunctionBackend stage {HOSTED}:echo closed jobs=0>"


# Pausing, beyond what the conformance suite asks of every backend.


@pytest.mark.rule("ORCH-INV-232")
@pytest.mark.case("B108")
async def test_a_pause_waits_for_the_step_that_runs_and_nothing_follows() -> None:
    """Neither the next item of the job, nor another job that waits for the thread."""
    async with hosting("echo") as (backend, watch):
        stuck = Stuck()
        backend.submit(task("r1", stuck, 2))
        backend.submit(task("r2", 3))
        await wait_reached(stuck)
        async with asyncio.TaskGroup() as group:
            pause = group.create_task(backend.call("pause", {"mode": PauseMode.KEEP}))
            await asyncio.sleep(0)
            assert not pause.done()
            stuck.gate.set()
        assert watch.outputs[key("r1")] == [stuck]
        assert watch.outputs[key("r2")] == []
        await backend.call("resume", {})
        await watch.wait_end(key("r1"), key("r2"))
        assert watch.outputs[key("r1")] == [stuck, 2]
        assert watch.outputs[key("r2")] == [3]


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-236")
async def test_async_code_that_waits_is_a_step_that_runs() -> None:
    """A pause does not cut it off; a resume ends the pause, and the job can be stopped."""
    async with hosting("async_letters") as (backend, watch):
        backend.submit(task("r1", Stuck()))
        await watch.wait_outputs(key("r1"))
        async with asyncio.TaskGroup() as group:
            pause = group.create_task(_raised(backend.call("pause", {"mode": PauseMode.KEEP})))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not pause.done()
            await backend.call("resume", {})
        assert isinstance(pause.result(), SupersededError)
        assert await watch.stop(key("r1")) == Text("begun")


@pytest.mark.rule("ORCH-INV-205")
async def test_an_aborting_pause_lets_code_clean_up() -> None:
    hosted.cleaned.clear()
    async with hosting("async_with_cleanup") as (backend, watch):
        backend.submit(task("r1", 1))
        await watch.wait_outputs(key("r1"))
        await backend.call("pause", {"mode": PauseMode.ABORT})
        assert watch.ends[key("r1")] == Finish(FinishReason.ABORT, {"items": 0})
        assert watch.outputs[key("r1")] == [1]
    assert hosted.cleaned == [1]


@pytest.mark.rule("ORCH-INV-232")
@pytest.mark.parametrize(("function", "blocking"), [("letters", True), ("letters", False), ("async_letters", True)])
async def test_items_that_come_during_a_pause_are_served_after_it(function: str, blocking: bool) -> None:
    """Of a job that was there before, and of one that was not; the ends of their inputs, too."""
    async with hosting(function, blocking=blocking) as (backend, watch):
        backend.submit(task("r1", input_open=True))
        backend.feed(key("r1"), [Text("a")])
        await watch.wait_outputs(key("r1"))
        await backend.call("pause", {"mode": PauseMode.KEEP})
        backend.submit(task("r2", input_open=True))
        for name in ("r1", "r2"):
            backend.feed(key(name), [Text("bc")])
            backend.end_input(key(name))
        for _ in range(10):
            await asyncio.sleep(0)
        assert [len(watch.outputs[key(name)]) for name in ("r1", "r2")] == [1, 0]
        await backend.call("resume", {})
        await watch.wait_end(key("r1"), key("r2"))
        assert watch.outputs[key("r1")] == [Text("a"), Text("b"), Text("c")]
        assert watch.outputs[key("r2")] == [Text("b"), Text("c")]


async def _raised(work: Coroutine[object, object, object]) -> object:
    outcomes = await asyncio.gather(work, return_exceptions=True)
    return outcomes[0]


@pytest.mark.rule("ORCH-INV-210", "ORCH-INV-206")
async def test_a_pause_does_not_keep_a_stop_from_ending() -> None:
    """A generator that waits for the thread to be closed is closed there, whatever comes between."""
    async with hosting("forever_or_letters") as (backend, watch):
        stuck = Stuck()
        backend.submit(task("r1", hosted.FOREVER))
        await watch.wait_outputs(key("r1"))
        backend.submit(task("r2", stuck))
        await wait_reached(stuck)
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(watch.stop(key("r1")))
            await asyncio.sleep(0)
            pause = group.create_task(backend.call("pause", {"mode": PauseMode.KEEP}))
            await asyncio.sleep(0)
            assert not stop.done()
            assert not pause.done()
            stuck.gate.set()
        assert isinstance(stop.result(), Text)
        await watch.stop(key("r2"))


@pytest.mark.rule("ORCH-INV-116")
@pytest.mark.parametrize("blocking", [True, False])
async def test_a_function_may_say_which_way_a_request_goes_on(blocking: bool) -> None:
    async with hosting("sort", blocking=blocking) as (backend, watch):
        backend.submit(task("r", "x"))
        await watch.wait_end(key("r"))
        assert watch.ends[key("r")] == Finish(FinishReason.STOP, {"items": 1}, "right")
        assert watch.outputs[key("r")] == ["x"]
