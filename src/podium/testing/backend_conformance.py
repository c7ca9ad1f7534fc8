"""The suite that every stage backend passes. Bring an engine of your own, and prove with it that it fits.

Derive a test class from `BackendConformance`, say how the backend is made and what jobs it can do, and run pytest. Each
test holds one sentence of `podium.ports.stage_backend`; waits are for conditions, with one limit for when they fail.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from podium.errors import Category, ConfigurationError, ErrorRecord, InvalidRequestError, Scope
from podium.ports.stage_backend import BackendDead, StageBackend
from podium.testing.backend_setup import SampleJob, begins_with, is_same
from podium.testing.backend_watch import BackendWatch
from podium.testing.control_conformance import ControlConformance

__all__ = ["BackendConformance", "SampleJob", "begins_with", "is_same"]


class BackendConformance(ControlConformance):
    """Derive from it: `class TestMyBackend(BackendConformance)`. `limit_s` is for each test, in seconds."""

    # What is declared.

    @pytest.mark.rule("ORCH-INV-007")
    def test_capabilities_are_declared(self) -> None:
        """They can be read before anything is loaded."""
        capabilities = type(self.make_backend()).capabilities
        assert capabilities.kinds
        assert capabilities.produces

    def test_unknown_options_are_refused(self) -> None:
        """With a fault that names the option and has a remedy."""
        with pytest.raises(ConfigurationError) as caught:
            type(self.make_backend()).parse_options({"no_such_option": 1})
        assert any("no_such_option" in str(fault) for fault in caught.value.faults)
        assert all(fault.remedy for fault in caught.value.faults)

    @pytest.mark.rule("ORCH-INV-005")
    def test_unknown_parameters_are_refused(self) -> None:
        """By name, and as the caller's fault."""
        with pytest.raises(InvalidRequestError, match="no_such_parameter") as caught:
            type(self.make_backend()).parse_params(self.options(), {"no_such_parameter": 1})
        assert caught.value.record.category is Category.CLIENT

    # The life of a job.

    @pytest.mark.rule("ORCH-INV-103")
    def test_a_job_gives_its_outputs_in_order_and_finishes(self) -> None:
        """Numbered from 0 without a gap; one finish, after the last output."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            backend.submit(self.task(self.key(1), self.sample(1)))
            await watch.wait_end(self.key(1))
            self.check_outcome(watch, self.key(1), self.sample(1))

        self.run(test)

    def test_jobs_do_not_mix(self) -> None:
        """Not even those of one request: the whole key counts."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            jobs = {self.key(number): number for number in range(6)}
            jobs |= {self.key(0, sibling="second"): 6, self.key(0, attempt=1): 7}
            for job, number in jobs.items():
                backend.submit(self.task(job, self.sample(number)))
            await watch.wait_end(*jobs)
            for job, number in jobs.items():
                self.check_outcome(watch, job, self.sample(number))

        self.run(test)

    @pytest.mark.rule("ORCH-INV-104")
    def test_input_may_come_piece_by_piece(self) -> None:
        """With the same outcome; and there is no finish while the input is open."""
        if not type(self.make_backend()).capabilities.streams_input:
            pytest.skip("the backend takes all input at once")

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            job, sample, other = self.key(1), self.sample(1), self.key(2)
            backend.submit(self.task(job, sample, input_open=True))
            for item in sample.inputs:
                backend.feed(job, [item])
            backend.submit(self.task(other, self.sample(2)))
            await watch.wait_end(other)
            assert job not in watch.ends, "it ended before its input did"
            backend.end_input(job)
            await watch.wait_end(job)
            self.check_outcome(watch, job, sample)

        self.run(test)

    @pytest.mark.rule("ORCH-INV-111")
    def test_calls_for_unknown_jobs_change_nothing(self) -> None:
        """Neither for one that there never was, nor for one that has ended."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            backend.submit(self.task(self.key(1), self.sample(1)))
            await watch.wait_end(self.key(1))
            for job in (self.key(1), self.key(99)):
                backend.feed(job, self.sample(1).inputs)
                backend.end_input(job)
                assert await watch.stop(job) is None
            backend.submit(self.task(self.key(2), self.sample(2)))
            await watch.wait_end(self.key(2))
            self.check_outcome(watch, self.key(2), self.sample(2))

        self.run(test)

    @pytest.mark.rule("ORCH-INV-201", "ORCH-INV-200")
    def test_a_failing_job_leaves_the_others(self) -> None:
        """It raises at its submission, or ends with an error of its own that names request and stage."""
        failing = self.failing_sample()
        if failing is None:
            pytest.skip("no input makes a job fail")

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            backend.submit(self.task(self.key(1), self.sample(1)))
            taken = self.submit_failing(backend, self.key(2), failing)
            backend.submit(self.task(self.key(3), self.sample(3)))
            await watch.wait_end(self.key(1), self.key(3), *([self.key(2)] if taken else []))
            for number in (1, 3):
                self.check_outcome(watch, self.key(number), self.sample(number))
            if taken:
                error = watch.ends[self.key(2)]
                assert isinstance(error, ErrorRecord)
                assert (error.scope, error.request_id) == (Scope.REQUEST, self.key(2).request)
                assert error.stage is not None

        self.run(test)

    # Stopping.

    @pytest.mark.rule("ORCH-INV-205", "ORCH-INV-206")
    def test_a_stop_is_physical_and_returns_what_there_is(self) -> None:
        """Nothing comes after it returned; what it returns begins with everything that was delivered."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            job = self.key(1)
            backend.submit(self.task(job, self.long_sample()))
            await watch.wait_outputs(job)
            assert job not in watch.ends, "the long sample ended of its own"
            self.check_partial(backend, watch, job, await watch.stop(job))
            backend.submit(self.task(self.key(2), self.sample(2)))
            await watch.wait_end(self.key(2))
            self.check_outcome(watch, self.key(2), self.sample(2))

        self.run(test)

    @pytest.mark.rule("ORCH-INV-211")
    def test_a_stop_may_be_repeated(self) -> None:
        """At the same time, and afterwards."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            job = self.key(1)
            backend.submit(self.task(job, self.long_sample()))
            await watch.wait_outputs(job)
            await asyncio.gather(watch.stop(job), watch.stop(job))
            assert await watch.stop(job) is None

        self.run(test)

    @pytest.mark.rule("ORCH-INV-210")
    def test_a_job_can_be_stopped_at_once(self) -> None:
        """Before it had any chance to begin, with its input open or not."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            input_open = type(backend).capabilities.streams_input
            backend.submit(self.task(self.key(1), self.long_sample()))
            backend.submit(self.task(self.key(2), self.long_sample(), input_open=input_open))
            for number in (2, 1):
                self.check_partial(backend, watch, self.key(number), await watch.stop(self.key(number)))

        self.run(test)

    def test_a_stop_leaves_other_jobs(self) -> None:
        """A job that runs beside gives all of its outputs; a stop between does not wait for it."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            backend.submit(self.task(self.key(1), self.long_sample()))
            backend.submit(self.task(self.key(2), self.long_sample()))
            backend.submit(self.task(self.key(3), self.sample(3)))
            await watch.wait_outputs(self.key(1))
            await watch.stop(self.key(1))
            await watch.wait_end(self.key(3))
            self.check_outcome(watch, self.key(3), self.sample(3))
            assert self.key(2) not in watch.ends
            await watch.stop(self.key(2))

        self.run(test)

    # The end.

    @pytest.mark.rule("ORCH-INV-302")
    def test_close_ends_running_jobs_and_may_be_repeated(self) -> None:
        """Whoever waits for outputs hears of it, then and later."""

        async def run() -> None:
            async with self.loaded() as (backend, watch):
                backend.submit(self.task(self.key(1), self.long_sample()))
                backend.submit(self.task(self.key(2), self.long_sample()))
                await watch.wait_outputs(self.key(1))
                await asyncio.gather(backend.close(), backend.close())
                await backend.close()
                with pytest.raises(BackendDead):
                    await backend.next_outputs()
                assert self.count_jobs(backend) == 0

        self.check_nothing_left(run)

    @pytest.mark.rule("ORCH-INV-302")
    def test_close_is_safe_before_and_during_load(self) -> None:
        """A load that is overtaken by `close` ends, one way or the other."""

        async def run() -> None:
            await self.make_backend().close()
            backend = self.make_backend()
            async with asyncio.TaskGroup() as group:
                loading = group.create_task(_load_quietly(backend))
                await asyncio.sleep(0)
                await backend.close()
                await loading
            await backend.close()

        self.check_nothing_left(run)

    @pytest.mark.rule("ORCH-INV-302")
    def test_close_is_safe_after_a_cancelled_load(self) -> None:
        """The shell limits the time of a load by cancelling it."""

        async def run() -> None:
            backend = self.make_backend()
            async with asyncio.TaskGroup() as group:
                loading = group.create_task(backend.load())
                await asyncio.sleep(0)
                loading.cancel()
            await backend.close()

        self.check_nothing_left(run)

    @pytest.mark.rule("ORCH-INV-213")
    def test_many_jobs_leave_nothing(self) -> None:
        """Finished, stopped or failed, in waves of sixteen."""
        failing = self.failing_sample()

        def submit(backend: StageBackend, number: int) -> bool:
            if failing is not None and number % 16 == 2:
                return self.submit_failing(backend, self.key(number), failing)
            backend.submit(self.task(self.key(number), self.sample(number)))
            return True

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            for first in range(0, self.many, 16):
                numbers = range(first, min(first + 16, self.many))
                taken = [number for number in numbers if submit(backend, number)]
                stopped = [number for number in taken if number % 4 == 1]
                await asyncio.gather(*(watch.stop(self.key(number)) for number in stopped))
                await watch.wait_end(*(self.key(number) for number in taken if number not in stopped))
            assert self.count_jobs(backend) == 0, f"jobs are left: {backend!r}"

        self.run(test)


async def _load_quietly(backend: StageBackend) -> None:
    with contextlib.suppress(Exception):  # the port lets a load that was overtaken raise anything
        await backend.load()
