"""The part of the transport conformance suite that is about control calls: they always arrive, and wait for nothing.

It is part of `TransportConformance`; behind the client is the fake backend.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from podium.core.events import CallReturned, StageStopped
from podium.core.operations import PauseMode
from podium.errors import ErrorKind, Scope
from podium.payloads import Text
from podium.ports.stage_client import OutboxFullError
from podium.testing.fake_backend import Answer, CallScript
from podium.testing.transport_setup import HANGING, REPLICA, Rig, TransportSetup


class CallConformance(TransportSetup):
    """What holds for the control calls of every client."""

    @pytest.mark.rule("ORCH-INV-230", "ORCH-INV-237")
    def test_a_call_is_answered_once(self) -> None:
        """With what the backend returned, from the replica that was called; whatever the number of calls."""

        async def test(rig: Rig) -> None:
            for number in range(100):
                rig.call(number, "collective_rpc", method=f"method-{number}")
            for number in range(100):
                answer = await rig.log.wait_return(number)
                assert (answer.replica, answer.error) == (REPLICA, None)
                assert answer.value == [{"method": f"method-{number}"}]
            await rig.check_alive()
            assert all(len(rig.log.returns(number)) == 1 for number in range(100)), "a call was answered twice"

        self.run(test)

    @pytest.mark.rule("ORCH-INV-231", "ORCH-INV-200")
    @pytest.mark.case("B013", "B045")
    def test_a_call_that_fails_says_so(self) -> None:
        """With stage and replica; only what cannot be done at all is unsupported."""

        async def test(rig: Rig) -> None:
            rig.call(1, "reset_prefix_cache")
            rig.call(2, "add_lora", name="a", path="b")
            rig.call(3, "no_such_method")
            rig.call(4, "sleep", level=0, tags=())
            kinds = [(await rig.log.wait_return(number)).error for number in (1, 2, 3, 4)]
            for error, kind in zip(kinds, _KINDS, strict=True):
                assert error is not None
                assert (error.kind, error.stage, error.replica) == (kind, REPLICA.stage, REPLICA.slot)
                assert error.scope is not Scope.REQUEST
            await rig.check_alive()
            rig.call(5, "reset_prefix_cache")
            assert (await rig.log.wait_return(5)).value is True

        failing, unsupported = CallScript(then=Answer.FAIL), CallScript(then=Answer.UNSUPPORTED)
        self.run(test, reset_prefix_cache=failing, add_lora=unsupported)

    @pytest.mark.rule("ORCH-INV-230")
    @pytest.mark.case("B102")
    def test_a_call_that_hangs_delays_nothing(self) -> None:
        """Neither data, nor stops, nor other calls; and `close` ends it."""

        async def test(rig: Rig) -> None:
            rig.call(1, "reset_mm_cache")
            running = rig.start(1, Text("a"), input_open=True)
            rig.call(2, "collective_rpc", method="m")
            assert (await rig.log.wait_return(2)).error is None
            rig.feed(running, 1, Text("b"))
            rig.end(running)
            await rig.log.wait_finish(running)
            hanging = rig.start(2, HANGING)
            rig.stop(hanging)
            await rig.log.wait_for(StageStopped, hanging)
            await rig.check_alive()
            assert rig.log.returns(1) == []

        self.run(test, reset_mm_cache=CallScript(then=Answer.HANG))

    @pytest.mark.rule("ORCH-INV-230")
    def test_a_slow_call_is_overtaken(self) -> None:
        """Calls do not wait for each other."""

        async def test(rig: Rig) -> None:
            rig.call(1, "list_loras")
            rig.call(2, "collective_rpc", method="m")
            await rig.log.wait_return(1)
            numbers = [event.call for event in rig.log.events if isinstance(event, CallReturned)]
            assert numbers == [2, 1]

        hanging, releasing = CallScript(then=Answer.HANG), CallScript(then=Answer.RELEASE)
        self.run(test, list_loras=hanging, collective_rpc=releasing)

    @pytest.mark.rule("ORCH-INV-230", "ORCH-INV-204")
    def test_a_full_outbox_takes_calls(self) -> None:
        """Data never keeps a call from leaving."""
        if self.outbox_limit is None:
            pytest.skip("no command ever waits in an outbox")
        attempts = 1000 * self.outbox_limit

        async def test(rig: Rig) -> None:
            job = rig.start(1, input_open=True)
            taken = 0
            with suppress(OutboxFullError):
                while taken < attempts:
                    rig.feed(job, taken, Text("x"))
                    taken += 1
            assert taken < attempts, f"the outbox took {taken} commands at once"
            rig.call(1, "collective_rpc", method="m")
            assert (await rig.log.wait_return(1)).error is None

        self.run(test)

    @pytest.mark.rule("ORCH-INV-232", "ORCH-INV-103")
    @pytest.mark.case("B014", "B108")
    def test_the_answer_of_a_pause_comes_behind_the_outputs(self) -> None:
        """Of steps that ran; jobs that are started later give nothing until the resume was asked for."""

        async def test(rig: Rig) -> None:
            running = rig.start(1, *map(Text, "abc"), input_open=True)
            rig.call(1, "pause", mode=PauseMode.KEEP)
            answer = await rig.log.wait_return(1)
            assert answer.error is None
            assert len(rig.log.payloads(running)) == 3
            assert rig.log.events[-1] is answer, "outputs came behind the answer"
            later = rig.start(2, Text("d"))
            rig.feed(running, 1, Text("d"))
            rig.call(2, "collective_rpc", method="m")
            await rig.log.wait_return(2)
            assert rig.log.payloads(later) == []
            assert len(rig.log.payloads(running)) == 3
            rig.call(3, "resume")
            rig.end(running)
            await rig.log.wait_finish(later, running)
            assert len(rig.log.payloads(running)) == 4

        self.run(test)

    @pytest.mark.rule("ORCH-INV-202", "ORCH-INV-230")
    def test_a_replica_that_dies_of_a_call_is_lost(self) -> None:
        """Its loss is the answer of every call that was open, and of those that come later."""

        async def test(rig: Rig) -> None:
            rig.call(1, "reset_mm_cache")
            rig.call(2, "reset_prefix_cache")
            await rig.log.wait_until(lambda: bool(rig.log.losses()))
            rig.call(3, "collective_rpc", method="m")
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(rig.log.losses()) == 1
            assert [rig.log.returns(number) for number in (1, 2, 3)] == [[], [], []]

        dying, hanging = CallScript(then=Answer.DIE), CallScript(then=Answer.HANG)
        self.run(test, reset_prefix_cache=dying, reset_mm_cache=hanging)


_KINDS = (ErrorKind.CONTROL_FAILED, ErrorKind.UNSUPPORTED, ErrorKind.UNSUPPORTED, ErrorKind.CONTROL_REJECTED)
