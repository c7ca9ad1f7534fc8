"""Where control calls leave the caller's side: what is refused there, and what becomes of each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import pytest

from podium.core.effects import ControlRecord, ReplyControl
from podium.core.events import ControlRequested
from podium.core.operations import CallMethod, PauseMode, Resume
from podium.errors import (
    KINDS,
    ControlError,
    ControlTimeoutError,
    EngineStoppedError,
    ErrorKind,
    ErrorRecord,
    InvalidRequestError,
    RequestError,
    Scope,
    UnsupportedError,
)
from podium.ports.stage_backend import Capabilities
from podium.runtime import control_desk
from podium.runtime.control_desk import ControlDesk
from podium.runtime.host import STOPPED
from podium.runtime.outputs import ControlReport
from podium.runtime.rpc_result_router import RpcResultRouter
from podium.testing.fake_backend import FakeBackend
from podium.testing.virtual_clock import VirtualClock
from tests.support.shell_world import until

ABLE = FakeBackend.capabilities
UNABLE = msgspec.structs.replace(
    ABLE, calls=frozenset(), pause_modes=frozenset({PauseMode.ABORT, PauseMode.WAIT}), sleep_levels={}
)
OK = ControlRecord("a", 0, ok=True, value=7)
BAD = ControlRecord(
    "b", 0, ok=False, error=ErrorRecord(kind=ErrorKind.CONTROL_FAILED, scope=Scope.REPLICA, message="x")
)

FOR_GOOD = (
    "level: what stage 'a' gives up at level 2 does not come back with a wake-up; "
    "pass force=True, and load it anew afterwards"
)


class Counter:
    """A desk whose calls are answered by the test. `posted` has what came over it."""

    def __init__(self, answer: Callable[[int], ReplyControl] | None = None, **capabilities: Capabilities) -> None:
        self.posted: list[ControlRequested] = []
        self.router: RpcResultRouter[ReplyControl] = RpcResultRouter()
        self._answer = answer
        self.desk = ControlDesk(
            capabilities or {"a": ABLE, "b": ABLE, "c": UNABLE}, VirtualClock(100.0), self.router, self._post
        )

    def _post(self, event: ControlRequested) -> None:
        self.posted.append(event)
        if self._answer is not None:
            self.router.resolve(event.call, self._answer(event.call))


def succeeding() -> Counter:
    return Counter(lambda call: ReplyControl(call, (OK,)))


def failing(kind: ErrorKind) -> Counter:
    error = ErrorRecord(kind=kind, scope=Scope.REPLICA, stage="b", replica=0, message="it broke")
    return Counter(lambda call: ReplyControl(call, (OK, BAD), error))


class TestAnswers:
    @pytest.mark.rule("ORCH-INV-230")
    async def test_a_success_is_a_report_with_the_record_of_each_replica(self) -> None:
        counter = succeeding()
        report = await counter.desk.ask(Resume(), ["a"], 2.5, ["c"])
        assert report == ControlReport((OK,), ("c",))
        assert counter.posted == [ControlRequested(1, Resume(), ("a",), 102.5)]
        assert repr(counter.desk) == "<ControlDesk a b c, 0 calls open>"

    @pytest.mark.rule("ORCH-INV-231", "ORCH-INV-200")
    @pytest.mark.case("B100")
    @pytest.mark.parametrize("kind", [kind for kind in ErrorKind if issubclass(KINDS[kind].exception, ControlError)])
    async def test_a_failure_is_raised_as_its_kind_with_the_other_answers(self, kind: ErrorKind) -> None:
        counter = failing(kind)
        with pytest.raises(ControlError, match="it broke") as caught:
            await counter.desk.ask(Resume(), ["a", "b"], 1.0)
        assert type(caught.value) is KINDS[kind].exception
        assert caught.value.results == (OK, BAD)
        record = caught.value.record
        assert (record.stage, record.replica, record.is_retryable) == ("b", 0, KINDS[kind].retryable)
        assert len(counter.router) == 0

    @pytest.mark.parametrize("kind", [ErrorKind.ENGINE_STOPPED, ErrorKind.OVERLOADED, ErrorKind.INVALID_REQUEST])
    async def test_what_is_no_failure_of_control_keeps_its_own_class(self, kind: ErrorKind) -> None:
        with pytest.raises(KINDS[kind].exception) as caught:
            await failing(kind).desk.ask(Resume(), ["a"], 1.0)
        assert type(caught.value) is KINDS[kind].exception

    @pytest.mark.case("B102")
    async def test_a_loop_that_does_not_answer_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(control_desk, "ANSWER_GRACE_S", 0.0)
        counter = Counter()
        with pytest.raises(ControlTimeoutError) as caught:
            await counter.desk.ask(Resume(), ["a"], 0.001)
        assert str(caught.value) == "the engine's loop did not answer a control call within 0.001 s"
        assert (caught.value.record.scope, caught.value.record.awaited) == (
            Scope.ENGINE,
            "the answer of the engine's loop",
        )
        assert len(counter.router) == 0

    @pytest.mark.rule("ORCH-INV-230")
    async def test_who_leaves_early_leaves_nothing_and_a_number_is_used_once(self) -> None:
        counter = Counter()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(counter.desk.ask(Resume(), ["a"], 60.0))
            await until(lambda: len(counter.posted) == 1)
            asking.cancel()
        assert len(counter.router) == 0
        counter.router.resolve(1, ReplyControl(1, (OK,)))
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(counter.desk.ask(Resume(), ["a"], 60.0))
            await until(lambda: len(counter.posted) == 2)
            assert not asking.done(), "the late answer is not for this call"
            counter.router.resolve(counter.posted[1].call, ReplyControl(2, ()))
        assert [event.call for event in counter.posted] == [1, 2]
        assert asking.result() == ControlReport(())

    async def test_an_engine_that_does_not_serve_says_so(self) -> None:
        def refuse(event: ControlRequested) -> None:
            raise STOPPED.to_exception()

        router: RpcResultRouter[ReplyControl] = RpcResultRouter()
        desk = ControlDesk({"a": ABLE}, VirtualClock(), router, refuse)
        with pytest.raises(EngineStoppedError):
            await desk.ask(Resume(), ["a"], 1.0)
        assert len(router) == 0

    @pytest.mark.parametrize("limit", [0, -1.0, "soon", float("nan"), True])
    async def test_a_limit_is_a_positive_number(self, limit: float) -> None:
        counter = succeeding()
        with pytest.raises(InvalidRequestError, match="timeout_s: "):
            await counter.desk.ask(Resume(), ["a"], limit)
        assert counter.posted == []


class TestCalls:
    async def test_without_stages_it_goes_to_all_that_can(self) -> None:
        counter = succeeding()
        report = await counter.desk.call("reset_prefix_cache", {"x": 1}, None, 1.0)
        assert counter.posted[0].operation == CallMethod("reset_prefix_cache", {"x": 1})
        assert (counter.posted[0].stages, report.not_applicable) == (("a", "b"), ("c",))

    async def test_stages_are_in_the_order_of_the_pipeline(self) -> None:
        counter = succeeding()
        await counter.desk.call("reset_prefix_cache", {}, ["b", "a", "b"], 1.0)
        assert counter.posted[0].stages == ("a", "b")

    @pytest.mark.rule("ORCH-INV-231")
    @pytest.mark.parametrize("stages", [["a", "c"], ["c"]])
    async def test_a_named_stage_that_cannot_is_refused(self, stages: list[str]) -> None:
        counter = succeeding()
        with pytest.raises(UnsupportedError) as caught:
            await counter.desk.call("reset_prefix_cache", {}, stages, 1.0)
        assert str(caught.value) == "stage 'c' has no 'reset_prefix_cache'"
        assert (caught.value.stage, caught.value.status, caught.value.record.is_retryable) == ("c", 501, False)
        assert counter.posted == []

    async def test_so_is_a_call_that_no_stage_can_answer(self) -> None:
        counter = Counter(None, a=UNABLE, c=UNABLE)
        with pytest.raises(UnsupportedError, match="stage 'a' has no 'list_loras'"):
            await counter.desk.call("list_loras", {}, None, 1.0)
        assert counter.posted == []


Question = Callable[[ControlDesk], object]

REFUSED: Mapping[str, tuple[Question, type[RequestError], str]] = {
    "a text": (lambda desk: desk.names("a"), InvalidRequestError, "stages: is a str; pass a list of names"),
    "unknown": (
        lambda desk: desk.names(["thinker"]),
        InvalidRequestError,
        "stages: there is no stage 'thinker'; use one of: a, b, c",
    ),
    "no stage": (
        lambda desk: desk.names([]),
        InvalidRequestError,
        "stages: none is named; leave it out to mean every stage",
    ),
    "mode": (
        lambda desk: desk.check_mode(["a", "c"], PauseMode.KEEP),
        UnsupportedError,
        "mode: stage 'c' cannot pause with 'keep'; use abort or wait",
    ),
    "for good": (
        lambda desk: desk.sleep_tags(["a"], 2, None, force=False),
        InvalidRequestError,
        FOR_GOOD,
    ),
    "tag to sleep": (
        lambda desk: desk.sleep_tags(["a"], 1, ["scheduling"], force=False),
        InvalidRequestError,
        "tags: stage 'a' has no 'scheduling'; use cache, weights",
    ),
    "tag to wake": (
        lambda desk: desk.wake_tags(["a"], ["kv"]),
        InvalidRequestError,
        "tags: stage 'a' has no 'kv'; use cache, scheduling, weights",
    ),
    "tags as text": (
        lambda desk: desk.wake_tags(["a"], "cache"),
        InvalidRequestError,
        "tags: is a str; pass a list of tags",
    ),
    "no tag": (
        lambda desk: desk.wake_tags(["a"], []),
        InvalidRequestError,
        "tags: none is named; leave them out to mean all",
    ),
}


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_the_remedy(name: str) -> None:
    question, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        question(Counter().desk)
    assert (type(caught.value), str(caught.value)) == (kind, message)


@pytest.mark.rule("ORCH-INV-233")
def test_tags_are_those_of_the_level_unless_some_are_named() -> None:
    desk = Counter().desk
    assert desk.sleep_tags(["a"], 0, None, force=False) == {"a": ("scheduling",)}
    assert desk.sleep_tags(["a", "b"], 1, {"weights"}, force=False) == {"a": ("weights",), "b": ("weights",)}
    assert desk.sleep_tags(["a"], 2, None, force=True) == {"a": ("cache", "weights")}
    assert desk.wake_tags(["b"], None) == {"b": ("cache", "scheduling", "weights")}
    assert desk.wake_tags(["b"], ("weights", "cache", "weights")) == {"b": ("cache", "weights")}


def test_all_stages_are_meant_when_none_is_named() -> None:
    desk = Counter().desk
    assert desk.names(None) == ("a", "b", "c")
    assert desk.names({"c", "a"}) == ("a", "c")
