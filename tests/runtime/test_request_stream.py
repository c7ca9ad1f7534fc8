"""One request as its caller sees it: items in order, its end once, and a way out at every moment."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

from podium.core.effects import EmitOutput, EndRequest, Outcome, RefuseRequest, StageTimings
from podium.core.events import Finish, FinishReason
from podium.core.graph import Modality
from podium.errors import ErrorKind, ErrorRecord, OverloadedError, Scope, StageFailedError
from podium.payloads import Audio, Text
from podium.runtime.outputs import OmniOutput
from podium.runtime.request_stream import RequestStream
from tests.support.core_world import make_stage, streaming

STAGES = {
    "thinker": make_stage("thinker", output="text"),
    "speaker": make_stage("speaker", streaming("thinker"), output="speech"),
    "plain": make_stage("plain"),
}
ERROR = ErrorRecord(kind=ErrorKind.STAGE_FAILED, scope=Scope.REQUEST, message="it broke", stage="thinker")
TIMINGS = StageTimings(1.0, 2.0, 3.0, 4.0, 5.0)


class Caller:
    """A stream, and the tickets that it cancelled."""

    def __init__(self, max_undelivered: int = 100) -> None:
        self.cancelled: list[int] = []
        self.stream: RequestStream = RequestStream("r1", 7, STAGES, self._cancel, max_undelivered)

    def _cancel(self, stream: RequestStream) -> None:
        self.cancelled.append(stream.ticket)


def text(sequence: int, *pieces: str) -> EmitOutput:
    return EmitOutput(7, "thinker", sequence, tuple(map(Text, pieces)), 10.0 + sequence)


def finish(
    sequence: int, reason: FinishReason = FinishReason.STOP, *, stage: str = "thinker", partial: object = None
) -> EmitOutput:
    last = stage == "speaker"
    return EmitOutput(7, stage, sequence, (), 20.0, 0, 0, Finish(reason, {"tokens": 3}), partial, TIMINGS, last)


def end(outcome: Outcome = Outcome.COMPLETED, error: ErrorRecord | None = None) -> EndRequest:
    return EndRequest(7, "r1", outcome, 30.0, error, {"thinker": TIMINGS})


async def rest(stream: RequestStream) -> list[OmniOutput]:
    return [item async for item in stream]


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.rule("ORCH-INV-103", "ORCH-INV-105", "ORCH-INV-106")
async def test_items_are_numbered_and_say_what_they_are() -> None:
    stream = Caller().stream
    for effect in (text(0, "a", "b"), finish(2), EmitOutput(7, "speaker", 3, ("sound",), 15.0)):
        stream.take(effect)
    stream.take(finish(4, FinishReason.LENGTH, stage="speaker"))
    stream.take(end())
    items = await rest(stream)
    assert [item.sequence for item in items] == [0, 1, 2, 3, 4]
    assert [item.output for item in items] == ["text", "text", "text", "speech", "speech"]
    assert [item.stage for item in items] == ["thinker"] * 3 + ["speaker"] * 2
    assert [item.delta for item in items] == [Text("a"), Text("b"), None, "sound", None]
    assert [item.stage_finished for item in items] == [False, False, True, False, True]
    assert [item.request_finished for item in items] == [False] * 4 + [True]
    assert [item.finish_reason for item in items] == [None, None, FinishReason.STOP, None, FinishReason.LENGTH]
    assert {item.modality for item in items} == {Modality.TEXT}
    assert {item.request_id for item in items} == {"r1"}
    assert items[2].usage == {"tokens": 3}
    assert items[2].timings == TIMINGS
    assert (stream.outcome, stream.error, stream.timeline) == (Outcome.COMPLETED, None, {"thinker": TIMINGS})
    assert await rest(stream) == [], "the end stays the end"


async def test_a_stage_without_an_output_name_goes_by_its_own() -> None:
    stream = Caller().stream
    stream.take(EmitOutput(7, "plain", 0, ("x",), 1.0))
    stream.take(end())
    assert [item.output for item in await rest(stream)] == ["plain"]


async def test_items_come_as_they_arrive() -> None:
    stream = Caller().stream
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(anext(stream))
        await turns()
        assert not waiting.done()
        stream.take(text(0, "a"))
    assert waiting.result().delta == Text("a")
    assert repr(stream) == "<RequestStream r1 open, 0 items undelivered>"
    stream.take(end())
    assert repr(stream) == "<RequestStream r1 completed, 0 items undelivered>"


@pytest.mark.case("B079")
async def test_an_error_is_raised_once_and_after_what_came_before() -> None:
    caller = Caller()
    caller.stream.take(text(0, "a"))
    caller.stream.take(end(Outcome.FAILED, ERROR))
    assert (await anext(caller.stream)).delta == Text("a")
    with pytest.raises(StageFailedError, match="it broke") as caught:
        await anext(caller.stream)
    assert caught.value.record == ERROR
    with pytest.raises(StopAsyncIteration):
        await anext(caller.stream)
    await caller.stream.aclose()
    assert caller.cancelled == []


async def test_a_refusal_is_the_first_item() -> None:
    stream = Caller().stream
    stream.take(RefuseRequest(7, "r1", ErrorRecord(kind=ErrorKind.OVERLOADED, scope=Scope.ENGINE, message="full")))
    with pytest.raises(OverloadedError, match="full"):
        await anext(stream)
    assert stream.outcome is Outcome.FAILED


async def test_sounds_that_cannot_be_joined_stay_apart() -> None:
    stream = Caller().stream
    sounds = (Audio(np.zeros(2, np.float32), 8000), Audio(np.zeros(2, np.float32), 16000))
    stream.take(EmitOutput(7, "speaker", 0, sounds, 1.0))
    stream.take(end())
    assert (await stream.collect()).outputs == {"speech": list(sounds)}


# Leaving


@pytest.mark.rule("ORCH-INV-212")
async def test_closing_cancels_once() -> None:
    caller = Caller()
    caller.stream.take(text(0, "unread"))
    await caller.stream.aclose()
    await caller.stream.aclose()
    assert caller.cancelled == [7]
    assert await rest(caller.stream) == []


@pytest.mark.rule("ORCH-INV-208", "ORCH-INV-212")
async def test_closing_ends_the_iteration_of_another_task() -> None:
    caller = Caller()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(rest(caller.stream))
        await turns()
        await caller.stream.aclose()
        await turns()
        has_ended = reading.done()
        reading.cancel()
    assert has_ended
    assert reading.result() == []
    assert caller.cancelled == [7]


@pytest.mark.rule("ORCH-INV-212")
async def test_a_break_inside_a_block_cancels() -> None:
    caller = Caller()
    caller.stream.take(text(0, "a", "b"))
    async with caller.stream as stream:
        async for _ in stream:
            break
    assert caller.cancelled == [7]


@pytest.mark.rule("ORCH-INV-212")
async def test_an_exception_inside_a_block_cancels() -> None:
    caller = Caller()
    with pytest.raises(LookupError):
        async with caller.stream:
            raise LookupError
    assert caller.cancelled == [7]


@pytest.mark.rule("ORCH-INV-212")
async def test_a_cancelled_task_cancels() -> None:
    caller = Caller()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(anext(caller.stream))
        await turns()
        waiting.cancel()
    assert waiting.cancelled()
    assert caller.cancelled == [7]


@pytest.mark.rule("ORCH-INV-212")
async def test_dropping_it_cancels() -> None:
    caller = Caller()
    caller.stream.take(text(0, "a", "b"))
    async for _ in caller.stream:
        break
    assert caller.cancelled == []
    del caller.stream
    gc.collect()
    assert caller.cancelled == [7]


async def test_leaving_after_the_end_cancels_nothing() -> None:
    caller = Caller()
    caller.stream.take(end())
    await caller.stream.aclose()
    del caller.stream
    assert caller.cancelled == []


async def test_a_discarded_stream_cancels_nothing() -> None:
    caller = Caller()
    caller.stream.discard()
    del caller.stream
    assert caller.cancelled == []


@pytest.mark.rule("ORCH-INV-111")
async def test_what_comes_after_leaving_or_after_the_end_is_dropped() -> None:
    left, ended = Caller().stream, Caller().stream
    await left.aclose()
    left.take(text(0, "late"))
    ended.take(end())
    ended.take(text(0, "late"))
    ended.take(end(Outcome.FAILED, ERROR))
    assert await rest(left) == await rest(ended) == []
    assert (left.outcome, ended.outcome) == (None, Outcome.COMPLETED)


async def test_one_at_a_time_may_wait() -> None:
    stream = Caller().stream
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(anext(stream))
        await turns()
        with pytest.raises(RuntimeError, match="request 'r1' is iterated twice at the same time"):
            await anext(stream)
        stream.take(text(0, "a"))
    assert waiting.result().delta == Text("a")
    await stream.aclose()


@pytest.mark.rule("ORCH-INV-204")
async def test_a_caller_that_does_not_read_loses_the_request() -> None:
    caller = Caller(max_undelivered=3)
    for sequence in range(6):
        caller.stream.take(text(sequence, "x"))
    assert caller.cancelled == [7]
    with pytest.raises(StageFailedError, match=r"more than 3 outputs were not read by the caller \(max_undelivered\)"):
        await rest(caller.stream)
    assert caller.stream.error is not None
    assert caller.stream.error.kind is ErrorKind.BUFFER_OVERFLOW
    caller.stream.take(end(Outcome.ABORTED))
    assert caller.stream.outcome is Outcome.FAILED


@pytest.mark.rule("ORCH-INV-101", "ORCH-INV-103")
async def test_the_last_item_is_not_one_too_many() -> None:
    """A request that is over is not failed for what its caller has yet to read."""
    caller = Caller(max_undelivered=2)
    for effect in (text(0, "a", "b"), finish(2, stage="speaker"), end()):
        caller.stream.take(effect)
    assert [item.request_finished for item in await rest(caller.stream)] == [False, False, True]
    assert caller.stream.outcome is Outcome.COMPLETED
    assert caller.cancelled == []


async def test_cancelling_for_a_caller_out_of_reach_cancels() -> None:
    caller = Caller()
    caller.stream.cancel_request()
    assert caller.cancelled == [7]
    caller.stream.discard()


# Collecting


@pytest.mark.case("B075")
async def test_collecting_joins_what_came() -> None:
    stream = Caller().stream
    for effect in (text(0, "Hel", "lo"), finish(2), finish(3, FinishReason.LENGTH, stage="speaker"), end()):
        stream.take(effect)
    result = await stream.collect()
    assert result.outputs == {"text": Text("Hello"), "speech": None}
    assert result.finish_reasons == {"text": FinishReason.STOP, "speech": FinishReason.LENGTH}
    assert result.usage == {"text": {"tokens": 3}, "speech": {"tokens": 3}}
    assert (result.request_id, result.outcome, result.error) == ("r1", Outcome.COMPLETED, None)
    assert result.timeline == {"thinker": TIMINGS}


@pytest.mark.rule("ORCH-INV-205")
async def test_a_partial_stands_for_the_whole() -> None:
    """It is cumulative, whatever came before it."""
    stream = Caller().stream
    for effect in (text(0, "Hel"), finish(1, FinishReason.ABORT, partial=Text("Hello wo"))):
        stream.take(effect)
    stream.take(end(Outcome.ABORTED))
    result = await stream.collect()
    assert result.outputs == {"text": Text("Hello wo")}
    assert result.outcome is Outcome.ABORTED


async def test_collecting_a_failed_request() -> None:
    streams = [Caller().stream for _ in range(2)]
    for stream in streams:
        stream.take(text(0, "Hel"))
        stream.take(end(Outcome.FAILED, ERROR))
    with pytest.raises(StageFailedError, match="it broke"):
        await streams[0].collect()
    result = await streams[1].collect_whatever()
    assert result.outputs == {"text": Text("Hel")}
    assert isinstance(result.error, StageFailedError)
    assert result.outcome is Outcome.FAILED


async def test_collecting_what_was_left() -> None:
    stream = Caller().stream
    await stream.aclose()
    assert (await stream.collect()).outcome is Outcome.ABORTED
