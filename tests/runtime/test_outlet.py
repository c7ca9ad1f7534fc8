"""The way back to callers: one crossing for a burst, to the loop that asked, and nothing kept for those who left."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest

from podium.core.effects import EmitOutput, EndRequest, Outcome, RefuseRequest, ReplyAbort, ReplyControl
from podium.errors import EngineStoppedError, ErrorKind, ErrorRecord, Scope
from podium.runtime import outlet as outlet_module
from podium.runtime.host import DEAD
from podium.runtime.outlet import CallerOutlet, Mailbox
from podium.runtime.request_stream import RequestStream
from podium.runtime.rpc_result_router import RpcResultRouter
from tests.support.core_world import make_stage

STAGES = {"solo": make_stage("solo", output="text")}


def new_stream(ticket: int, cancelled: list[int] | None = None, *, limit: int = 100) -> RequestStream:
    def cancel(stream: RequestStream) -> None:
        if cancelled is not None:
            cancelled.append(stream.ticket)

    return RequestStream(f"r{ticket}", ticket, STAGES, cancel, limit)


def deliver(outlet: CallerOutlet, *effects: EmitOutput | EndRequest | RefuseRequest | ReplyAbort) -> None:
    """As the driver does it in one turn."""
    for effect in effects:
        outlet.deliver(effect)
    outlet.flush()


def new_outlet() -> CallerOutlet:
    return CallerOutlet(RpcResultRouter(), RpcResultRouter())


def output(ticket: int, sequence: int, *payloads: object) -> EmitOutput:
    return EmitOutput(ticket, "solo", sequence, payloads, 0.0)


def end(ticket: int, outcome: Outcome = Outcome.COMPLETED) -> EndRequest:
    return EndRequest(ticket, f"r{ticket}", outcome, 0.0)


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def deltas(stream: RequestStream) -> list[object]:
    return [item.delta async for item in stream]


async def test_each_stream_gets_its_own_in_order() -> None:
    outlet = new_outlet()
    streams = [new_stream(ticket) for ticket in range(3)]
    for stream in streams:
        outlet.register(stream)
    assert repr(outlet) == "<CallerOutlet 3 streams>"
    for sequence in range(5):
        for ticket in range(3):
            deliver(outlet, output(ticket, sequence, (ticket, sequence)))
    for ticket in range(3):
        deliver(outlet, end(ticket))
    assert len(outlet) == 0, "a terminal is the last that is delivered"
    for ticket, stream in enumerate(streams):
        assert await deltas(stream) == [(ticket, sequence) for sequence in range(5)]


@pytest.mark.case("B026")
async def test_a_burst_crosses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crossings = 0
    loop = asyncio.get_running_loop()
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counted(callback: Callable[[], object]) -> object:
        nonlocal crossings
        crossings += 1
        return call_soon_threadsafe(callback)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    outlet, stream = new_outlet(), new_stream(1, limit=10_000)
    outlet.register(stream)

    def burst() -> None:
        deliver(outlet, *(output(1, sequence, sequence) for sequence in range(1000)))

    in_a_thread(burst)
    in_a_thread(lambda: deliver(outlet, end(1)))
    assert await deltas(stream) == list(range(1000))
    assert crossings == 1


@pytest.mark.rule("ORCH-INV-111")
async def test_what_nobody_waits_for_is_dropped() -> None:
    outlet = new_outlet()
    deliver(outlet, output(7, 0, "late"))
    deliver(outlet, end(7))
    deliver(outlet, RefuseRequest(8, "r8", DEAD))
    deliver(outlet, ReplyAbort(9, ()))
    assert len(outlet) == 0


async def test_a_forgotten_ticket_gets_nothing() -> None:
    outlet, stream = new_outlet(), new_stream(1)
    outlet.register(stream)
    outlet.forget(1)
    outlet.forget(1)
    deliver(outlet, end(1))
    await asyncio.sleep(0)
    assert stream.outcome is None
    stream.discard()


@pytest.mark.rule("ORCH-INV-212")
async def test_a_stream_that_nobody_holds_is_not_kept_alive() -> None:
    """Leaving a loop early, by `break` or by an exception, drops the stream; that cancels its request."""
    cancelled: list[int] = []
    outlet = new_outlet()
    outlet.register(new_stream(1, cancelled))
    gc.collect()
    assert cancelled == [1]
    deliver(outlet, output(1, 0, "late"))
    deliver(outlet, end(1))
    assert len(outlet) == 0


@pytest.mark.rule("ORCH-INV-212")
def test_a_caller_whose_loop_is_closed_loses_its_requests() -> None:
    cancelled: list[int] = []
    outlet, streams = new_outlet(), [new_stream(ticket, cancelled) for ticket in (1, 2)]

    async def register() -> None:
        for stream in streams:
            outlet.register(stream)

    asyncio.run(register())
    deliver(outlet, output(1, 0, "nobody is there"))
    assert cancelled == [1]
    deliver(outlet, end(2))
    assert len(outlet) == 0


def test_nothing_piles_up_for_a_loop_that_was_closed_with_letters_on_their_way() -> None:
    async def make() -> Mailbox:
        return Mailbox(asyncio.get_running_loop())

    with asyncio.Runner() as runner:
        mailbox = runner.run(make())
        stream = new_stream(1)
        assert mailbox.try_put(stream, output(1, 0, "on its way"))
        assert repr(mailbox) == "<Mailbox 1 letters>"
    assert not mailbox.try_put(stream, output(1, 1, "too late"))
    assert repr(mailbox) == "<Mailbox 0 letters>"


@pytest.mark.rule("ORCH-INV-204")
async def test_a_loop_that_takes_nothing_loses_its_streams_not_the_engines_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet_module, "LETTER_LIMIT", 3)
    cancelled: list[int] = []
    outlet, stream = new_outlet(), new_stream(1, cancelled)
    outlet.register(stream)
    deliver(outlet, *(output(1, sequence, sequence) for sequence in range(50)))
    assert cancelled == [1]
    assert len(outlet) == 0
    result = await stream.collect_whatever()
    assert result.outputs["text"] == [0, 1, 2]
    assert stream.error is not None
    assert stream.error.kind is ErrorKind.BUFFER_OVERFLOW


@pytest.mark.case("B096")
def test_streams_of_two_loops_get_their_own() -> None:
    """And a loop that is gone is not remembered once another comes."""
    outlet = new_outlet()

    async def use(ticket: int) -> list[object]:
        stream = new_stream(ticket)
        outlet.register(stream)
        in_a_thread(lambda: deliver(outlet, output(ticket, 0, f"for {ticket}")))
        in_a_thread(lambda: deliver(outlet, end(ticket)))
        return await deltas(stream)

    assert [asyncio.run(use(ticket)) for ticket in range(20)] == [[f"for {ticket}"] for ticket in range(20)]
    assert len(outlet._mailboxes) == 1


def test_loops_may_come_and_go_in_many_threads() -> None:
    outlet = new_outlet()
    got: list[object] = []

    async def use(ticket: int) -> None:
        stream = new_stream(ticket)
        outlet.register(stream)
        deliver(outlet, output(ticket, 0, ticket))
        deliver(outlet, end(ticket))
        got.extend(await deltas(stream))

    threads = [
        threading.Thread(target=lambda first=first: [asyncio.run(use(first + n)) for n in range(25)])
        for first in range(0, 200, 25)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(repr, got)) == sorted(map(repr, range(200)))


@pytest.mark.rule("ORCH-INV-101", "ORCH-INV-304")
async def test_what_was_delivered_before_a_turn_broke_arrives() -> None:
    """The terminal of a request whose turn never came to its end: nobody else would send it."""
    outlet, stream = new_outlet(), new_stream(1)
    outlet.register(stream)
    outlet.deliver(output(1, 0, "the last"))
    outlet.deliver(end(1))
    outlet.fail_everything(DEAD)
    async with asyncio.timeout(5):
        assert await deltas(stream) == ["the last"]


@pytest.mark.rule("ORCH-INV-304")
async def test_the_end_reaches_every_stream_and_every_waiter() -> None:
    router: RpcResultRouter[ReplyAbort] = RpcResultRouter()
    outlet = CallerOutlet(router, RpcResultRouter())
    streams = [new_stream(ticket) for ticket in range(3)]
    for stream in streams:
        outlet.register(stream)
    deliver(outlet, output(0, 0, "before"))
    _, answer = router.open()
    outlet.fail_everything(DEAD)
    assert len(outlet) == 0
    with pytest.raises(EngineStoppedError):
        answer.result(0)
    assert (await anext(streams[0])).delta == "before"
    for stream in streams:
        with pytest.raises(EngineStoppedError, match="internal error"):
            await anext(stream)


async def test_an_answer_finds_its_call() -> None:
    router: RpcResultRouter[ReplyAbort] = RpcResultRouter()
    call, answer = router.open()
    reply = ReplyAbort(call, ())
    deliver(CallerOutlet(router, RpcResultRouter()), reply)
    assert answer.result(0) is reply


async def test_a_refusal_is_the_streams_error() -> None:
    outlet, stream = new_outlet(), new_stream(1)
    outlet.register(stream)
    error = ErrorRecord(kind=ErrorKind.OVERLOADED, scope=Scope.ENGINE, message="full", retry_after_s=1.0)
    deliver(outlet, RefuseRequest(1, "r1", error))
    assert len(outlet) == 0
    assert (await stream.collect_whatever()).error is not None
    assert stream.error == error


@pytest.mark.rule("ORCH-INV-232", "ORCH-INV-205")
@pytest.mark.case("B108")
async def test_an_answer_never_overtakes_the_outputs_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    aborts: RpcResultRouter[ReplyAbort] = RpcResultRouter()
    controls: RpcResultRouter[ReplyControl] = RpcResultRouter()
    outlet = CallerOutlet(aborts, controls)
    stream = new_stream(1)
    outlet.register(stream)
    (abort, abort_reply), (control, control_reply) = aborts.open(), controls.open()
    order: list[str] = []
    monkeypatch.setattr(Mailbox, "send", lambda _: order.append("outputs"))
    abort_reply.add_done_callback(lambda _: order.append("abort"))
    control_reply.add_done_callback(lambda _: order.append("control"))
    outlet.deliver(output(1, 0, "x"))
    outlet.deliver(ReplyAbort(abort, ()))
    outlet.deliver(ReplyControl(control, ()))
    outlet.flush()
    outlet.flush()
    assert order == ["outputs", "abort", "control"]
