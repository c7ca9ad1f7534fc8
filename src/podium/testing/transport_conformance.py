"""The suite that every stage client passes, whatever place it gives to a replica.

Derive a test class from `TransportConformance`, say how the client is made, and run pytest. Each test holds a sentence
of `podium.ports.stage_client`; behind the client is the fake backend, whose scripts travel as input.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from podium.core.events import InputRejected, StageFailed, StageStarted, StageStopped, StopFailed
from podium.core.identity import Payload
from podium.errors import Category, ErrorKind, Scope
from podium.payloads import Text
from podium.ports.stage_client import OutboxFullError, StageClient
from podium.testing.call_conformance import CallConformance
from podium.testing.event_log import EventLog
from podium.testing.fake_backend import Loading, Script, Then
from podium.testing.fake_processor import At, Trouble
from podium.testing.transport_setup import HANGING, REPLICA, SOURCE, ReplicaSetup, Rig, key

__all__ = ["HANGING", "REPLICA", "SOURCE", "ReplicaSetup", "Rig", "TransportConformance", "key"]


class TransportConformance(CallConformance):
    """Derive from it: `class TestMyClient(TransportConformance)`. `limit_s` is for each test, in seconds."""

    # Starting.

    @pytest.mark.rule("ORCH-INV-301")
    def test_start_raises_what_kept_the_replica_from_serving(self) -> None:
        """And leaves nothing, once closed."""

        async def run() -> None:
            client, log = self.new(Loading.FAIL), EventLog()
            with pytest.raises(Exception, match="told not to load"):
                await client.start(log.sink)
            await client.close()
            assert log.events == []

        self.check_nothing_left(run)

    @pytest.mark.rule("ORCH-INV-204", "ORCH-INV-302")
    def test_a_start_that_takes_too_long_can_be_given_up(self) -> None:
        """The fleet cancels it, and closes the client."""

        async def run() -> None:
            client, log = self.new(Loading.HANG), EventLog()
            async with asyncio.TaskGroup() as group:
                starting = group.create_task(client.start(log.sink))
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not starting.done()
                starting.cancel()
            await client.close()
            assert log.events == []

        self.check_nothing_left(run)

    @pytest.mark.rule("ORCH-INV-302")
    def test_close_is_safe_before_and_during_start(self) -> None:
        """A start that is overtaken ends, one way or the other."""

        async def run() -> None:
            await self.new().close()
            client, log = self.new(Loading.HANG), EventLog()
            async with asyncio.TaskGroup() as group:
                starting = group.create_task(_start_quietly(client, log))
                for _ in range(5):
                    await asyncio.sleep(0)
                await client.close()
                await starting
            log.close()
            await client.close()
            assert not log.late, f"pushed after close: {log.late}"

        self.check_nothing_left(run)

    # Jobs.

    @pytest.mark.rule("ORCH-INV-103")
    def test_a_job_gives_its_outputs_and_its_finish(self) -> None:
        """Numbered from 0 without a gap; nothing after the finish. It is started before it is finished."""

        async def test(rig: Rig) -> None:
            job = rig.start(1, Text("a"), Script(outputs=(Text("b"), Text("c"))), Text("d"))
            await rig.log.wait_finish(job)
            assert rig.log.payloads(job) == [Text("a"), Text("b"), Text("c"), Text("d")]
            await rig.check_alive()
            assert len(rig.log.of(StageStarted, job)) == 1, "the start was pushed more than once"
            started = rig.log.of(StageStarted, job)[0]
            assert started.replica == REPLICA
            assert started in rig.log.about(job)[:-1], "the last of all is the finish"

        self.run(test)

    def test_a_start_is_reported_without_any_output(self) -> None:
        """A job that runs is no longer on its way."""

        async def test(rig: Rig) -> None:
            job = rig.start(1, HANGING)
            await rig.log.wait_for(StageStarted, job)
            waiting = rig.start(2, input_open=True)
            await rig.log.wait_for(StageStarted, waiting)

        self.run(test)

    @pytest.mark.rule("ORCH-INV-104")
    def test_input_reaches_the_backend_in_order(self) -> None:
        """Piece by piece, through the processor; the end last."""

        async def test(rig: Rig) -> None:
            job = rig.start(1, Text("0"), input_open=True)
            for number in range(1, 50):
                rig.feed(job, number, Text(str(number)))
            await rig.check_alive()
            assert rig.log.finish(job) is None, "its input is open"
            rig.end(job)
            await rig.log.wait_finish(job)
            assert rig.log.payloads(job) == [Text(str(number)) for number in range(50)]

        self.run(test)

    @pytest.mark.rule("ORCH-INV-201")
    def test_jobs_do_not_mix(self) -> None:
        """However their commands are interleaved."""

        async def test(rig: Rig) -> None:
            jobs = [rig.start(number, input_open=True) for number in range(16)]
            for sequence in range(10):
                for job in jobs:
                    rig.feed(job, sequence, Text(f"{job.request}:{sequence}"))
            for job in reversed(jobs):
                rig.end(job)
            await rig.log.wait_finish(*jobs)
            for job in jobs:
                assert rig.log.payloads(job) == [Text(f"{job.request}:{sequence}") for sequence in range(10)]

        self.run(test)

    @pytest.mark.rule("ORCH-INV-111", "ORCH-INV-211")
    def test_commands_for_jobs_that_are_not_there_change_nothing(self) -> None:
        """They have ended, or never were; a stop is confirmed all the same."""

        async def test(rig: Rig) -> None:
            ended = rig.start(1, Text("a"))
            await rig.log.wait_finish(ended)
            for job in (ended, key(99)):
                rig.feed(job, 1, Text("b"))
                rig.end(job)
                rig.stop(job)
                stopped = await rig.log.wait_for(StageStopped, job)
                assert (stopped.replica, stopped.partial) == (REPLICA, None)
            await rig.check_alive()
            assert rig.log.payloads(ended) == [Text("a")]
            assert rig.log.payloads(key(99)) == []

        self.run(test)

    # Stopping.

    @pytest.mark.rule("ORCH-INV-205", "ORCH-INV-207")
    def test_a_stop_is_confirmed_with_what_there_is(self) -> None:
        """After the outputs that were complete; nothing of the job comes later."""

        async def test(rig: Rig) -> None:
            job = rig.start(1, Text("a"), Script(outputs=(Text("b"),), then=Then.HANG), input_open=True)
            rig.stop(job)
            stopped = await rig.log.wait_for(StageStopped, job)
            assert stopped.partial == Text("ab")
            assert rig.log.payloads(job) == [Text("a"), Text("b")]
            rig.feed(job, 1, Text("c"))
            await rig.check_alive()
            assert rig.log.about(job)[-1] is stopped

        self.run(test)

    @pytest.mark.rule("ORCH-INV-206")
    def test_a_stop_that_fails_is_reported_and_can_be_repeated(self) -> None:
        """Nothing was forgotten: the repetition returns the same prefix."""

        async def test(rig: Rig) -> None:
            job = rig.start(1, Text("a"), Script(then=Then.HANG, stop_failures=2))
            for attempt in (1, 2):
                rig.stop(job)
                failed = await rig.log.wait_for(StopFailed, job, attempt)
                assert failed.error.scope is Scope.REQUEST
                assert failed.error.stage == REPLICA.stage
            assert rig.log.of(StageStopped, job) == []
            rig.stop(job)
            assert (await rig.log.wait_for(StageStopped, job)).partial == Text("a")

        self.run(test)

    @pytest.mark.rule("ORCH-INV-103", "ORCH-INV-216")
    def test_a_stop_that_hangs_delays_nothing_else(self) -> None:
        """Neither outputs nor stops of other jobs; and `close` ends it."""

        async def test(rig: Rig) -> None:
            stuck = rig.start(1, Script(then=Then.HANG, hang_stop=True))
            other = rig.start(2, HANGING)
            rig.stop(stuck)
            rig.stop(other)
            await rig.log.wait_for(StageStopped, other)
            await rig.check_alive()
            assert rig.log.of(StageStopped, stuck) == []

        self.run(test)

    # Failures.

    @pytest.mark.rule("ORCH-INV-200", "ORCH-INV-201")
    def test_a_job_that_fails_is_reported_and_leaves_the_others(self) -> None:
        """With the backend's own record, after the outputs that were complete."""

        async def test(rig: Rig) -> None:
            other = rig.start(1, Text("a"), input_open=True)
            job = rig.start(2, Text("a"), Script(then=Then.FAIL))
            failed = await rig.log.wait_for(StageFailed, job)
            assert (failed.error.kind, failed.error.stage) == (ErrorKind.STAGE_FAILED, REPLICA.stage)
            assert rig.log.payloads(job) == [Text("a")]
            assert rig.log.about(job)[-1] is failed
            rig.feed(other, 1, Text("b"))
            rig.end(other)
            await rig.log.wait_finish(other)
            assert rig.log.payloads(other) == [Text("a"), Text("b")]

        self.run(test)

    @pytest.mark.rule("ORCH-INV-200", "ORCH-INV-201")
    @pytest.mark.parametrize(
        ("item", "kind"),
        [
            (Script(then=Then.REFUSE), ErrorKind.INVALID_REQUEST),
            (Script(then=Then.RAISE), ErrorKind.STAGE_FAILED),
            (Trouble(At.FEED, is_clients_fault=True), ErrorKind.INVALID_REQUEST),
            (Trouble(At.END, is_clients_fault=True), ErrorKind.INVALID_REQUEST),
            (Trouble(At.FEED), ErrorKind.PROCESSOR_FAILED),
            (Trouble(At.END), ErrorKind.PROCESSOR_FAILED),
        ],
    )
    def test_what_user_code_raises_at_the_start_fails_the_job(self, item: Payload, kind: ErrorKind) -> None:
        """As the client's fault only when it says so; whose fault it is can be read from the record."""

        async def test(rig: Rig) -> None:
            job = rig.start(1, item)
            error = (await rig.log.wait_for(StageFailed, job)).error
            assert (error.kind, error.scope, error.stage) == (kind, Scope.REQUEST, REPLICA.stage)
            is_clients = kind is ErrorKind.INVALID_REQUEST
            assert error.category is (Category.CLIENT if is_clients else Category.SERVER)
            await rig.check_alive()
            assert len(rig.log.about(job)) == 1

        self.run(test)

    @pytest.mark.rule("ORCH-INV-004", "ORCH-INV-201")
    @pytest.mark.parametrize(
        ("item", "kind"),
        [
            (Script(then=Then.REFUSE), ErrorKind.INVALID_REQUEST),
            (Script(then=Then.RAISE), ErrorKind.STAGE_FAILED),
            (Trouble(At.FEED, is_clients_fault=True), ErrorKind.INVALID_REQUEST),
            (Trouble(At.FEED), ErrorKind.PROCESSOR_FAILED),
            (Trouble(At.END), ErrorKind.PROCESSOR_FAILED),
        ],
    )
    def test_what_user_code_raises_later_rejects_the_input(self, item: Payload, kind: ErrorKind) -> None:
        """The job has to be stopped, as it may be running; it gets no more input until then."""

        async def test(rig: Rig) -> None:
            job = rig.start(1, Text("a"), input_open=True)
            rig.feed(job, 1, item)
            rig.end(job)
            error = (await rig.log.wait_for(InputRejected, job)).error
            assert (error.kind, error.scope, error.stage) == (kind, Scope.REQUEST, REPLICA.stage)
            rig.feed(job, 2, Text("not given on"))
            rig.stop(job)
            stopped = await rig.log.wait_for(StageStopped, job)
            assert stopped.partial == Text("a")
            await rig.check_alive()
            assert rig.log.payloads(job) == [Text("a")]
            assert len(rig.log.of(InputRejected, job)) == 1

        self.run(test)

    @pytest.mark.rule("ORCH-INV-202")
    def test_the_loss_of_the_replica_is_pushed_once(self) -> None:
        """As a record with scope `replica`; nothing comes after it, whatever is posted."""

        async def test(rig: Rig) -> None:
            running = rig.start(1, HANGING, input_open=True)
            rig.start(2, Script(then=Then.DIE))
            await rig.log.wait_until(lambda: bool(rig.log.losses()))
            count = len(rig.log.events)
            with suppress(OutboxFullError):  # a replica that is gone may refuse, or ignore
                rig.feed(running, 1, Text("a"))
                rig.start(3, Text("a"))
            rig.stop(running)
            for _ in range(10):
                await asyncio.sleep(0)
            assert rig.log.events[count:] == []
            assert len(rig.log.losses()) == 1, "the loss was pushed more than once"
            lost = rig.log.losses()[0]
            assert lost.replica == REPLICA
            assert (lost.error.kind, lost.error.scope) == (ErrorKind.REPLICA_LOST, Scope.REPLICA)
            assert (lost.error.stage, lost.error.replica) == (REPLICA.stage, REPLICA.slot)

        self.run(test)

    # Limits, and the end.

    @pytest.mark.rule("ORCH-INV-204")
    def test_a_full_outbox_refuses_data_but_never_a_stop(self) -> None:
        """What was taken is delivered without a gap."""
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
            rig.stop(job)
            stopped = await rig.log.wait_for(StageStopped, job)
            assert stopped.partial == Text("x" * taken)

        self.run(test)

    @pytest.mark.rule("ORCH-INV-302")
    def test_close_ends_everything_and_may_be_repeated(self) -> None:
        """With jobs that run, and stops underway; nothing is pushed afterwards."""

        async def run() -> None:
            async with self.started() as rig:
                for number in range(8):
                    rig.start(number, Text("a"), HANGING, input_open=True)
                hanging = rig.start(9, Script(then=Then.HANG, hang_stop=True))
                rig.stop(hanging)
                await rig.check_alive()
                await asyncio.gather(rig.client.close(), rig.client.close())
                rig.log.close()

        self.check_nothing_left(run)

    @pytest.mark.rule("ORCH-INV-213")
    def test_many_jobs_leave_nothing(self) -> None:
        """Finished, failed, rejected or stopped, in waves of sixteen."""
        kinds = (Text("a"), Script(then=Then.FAIL), Script(then=Then.REFUSE), HANGING)

        async def test(rig: Rig) -> None:
            for first in range(0, self.many, 16):
                jobs = [rig.start(number, kinds[number % 4]) for number in range(first, first + 16)]
                for job in jobs[3::4]:
                    rig.stop(job)
                await rig.log.wait_finish(*jobs[0::4])
                for job in jobs[1::4] + jobs[2::4]:
                    await rig.log.wait_for(StageFailed, job)
                for job in jobs[3::4]:
                    await rig.log.wait_for(StageStopped, job)
                rig.log.events.clear()
            assert self.count_jobs(rig.client) == 0, f"jobs are left: {rig.client!r}"

        self.run(test)


async def _start_quietly(client: StageClient, log: EventLog) -> None:
    with suppress(Exception):  # the port lets a start that was overtaken raise anything
        await client.start(log.sink)
