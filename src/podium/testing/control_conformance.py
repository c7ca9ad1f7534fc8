"""The part of the backend conformance suite that is about control calls: pausing, sleeping, and what is refused.

Each test goes through what the backend declares, and skips what it does not offer. It is part of `BackendConformance`.
"""

from __future__ import annotations

import asyncio

import pytest

from podium.core.events import Finish, FinishReason
from podium.core.identity import JobKey
from podium.core.operations import PauseMode
from podium.errors import ControlRejectedError, InvalidRequestError, RequestError, UnsupportedError
from podium.ports.stage_backend import BackendDead, StageBackend
from podium.testing.backend_setup import BackendSetup
from podium.testing.backend_watch import BackendWatch

KNOWN_CALLS = frozenset(
    {
        *("sleep", "wake_up", "reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache", "collective_rpc"),
        *("update_weights", "start_profile", "stop_profile", "add_lora", "remove_lora", "list_loras"),
    }
)
RESETS = ("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache")
NO_LEVEL = 99


class ControlConformance(BackendSetup):
    """What holds for the control calls of every backend."""

    def need_mode(self, mode: PauseMode) -> None:
        """Skip the test for a backend that does not pause in this mode."""
        if mode not in type(self.make_backend()).capabilities.pause_modes:
            pytest.skip(f"the backend does not pause with '{mode}'")

    async def check_standstill(self, backend: StageBackend, watch: BackendWatch, *jobs: JobKey) -> None:
        """Nothing comes of `jobs` while time passes."""
        before = [len(watch.outputs[job]) for job in jobs]
        await self.settle()
        assert [len(watch.outputs[job]) for job in jobs] == before, f"outputs came during a pause: {backend!r}"
        assert not any(job in watch.ends for job in jobs), f"a job ended during a pause: {backend!r}"

    async def check_works(self, backend: StageBackend, watch: BackendWatch, number: int) -> None:
        """A new job is served as ever."""
        job = self.key(number)
        backend.submit(self.task(job, self.sample(number)))
        await watch.wait_end(job)
        self.check_outcome(watch, job, self.sample(number))

    # What is refused.

    @pytest.mark.rule("ORCH-INV-007")
    def test_what_is_declared_of_calls_fits_together(self) -> None:
        """Sleeping is offered with its levels or not at all."""
        capabilities = type(self.make_backend()).capabilities
        assert capabilities.pause_modes, "every backend can be paused"
        assert ("sleep" in capabilities.calls) == ("wake_up" in capabilities.calls) == bool(capabilities.sleep_levels)
        assert capabilities.irreversible_levels <= capabilities.sleep_levels.keys()
        assert not {"pause", "resume"} & capabilities.calls, "every backend has these; they are not declared"

    @pytest.mark.rule("ORCH-INV-231")
    @pytest.mark.case("B013")
    def test_an_unknown_call_is_refused(self) -> None:
        """It is never answered with success; no more than one that the backend does not declare."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:  # noqa: ARG001 - the shape of a test
            for method in ("no_such_method", *sorted(KNOWN_CALLS - type(backend).capabilities.calls)):
                with pytest.raises(UnsupportedError, match=method):
                    await backend.call(method, {})

        self.run(test)

    @pytest.mark.rule("ORCH-INV-231")
    def test_a_mode_that_is_not_offered_is_refused(self) -> None:
        """And nothing is paused by it."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            for mode in frozenset(PauseMode) - type(backend).capabilities.pause_modes:
                with pytest.raises(UnsupportedError):
                    await backend.call("pause", {"mode": mode})
            with pytest.raises(InvalidRequestError):
                await backend.call("pause", {"mode": "sideways"})
            await self.check_works(backend, watch, 1)

        self.run(test)

    # Pausing.

    @pytest.mark.rule("ORCH-INV-232")
    @pytest.mark.case("B014")
    def test_nothing_starts_during_a_pause(self) -> None:
        """In whatever mode: what is submitted meanwhile is served after the resume, in full."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            for number, mode in enumerate(sorted(type(backend).capabilities.pause_modes)):
                await backend.call("pause", {"mode": mode})
                job = self.key(number)
                backend.submit(self.task(job, self.sample(number)))
                await self.check_standstill(backend, watch, job)
                await backend.call("resume", {})
                await watch.wait_end(job)
                self.check_outcome(watch, job, self.sample(number))

        self.run(test)

    @pytest.mark.rule("ORCH-INV-236")
    def test_pauses_and_resumes_may_be_repeated(self) -> None:
        """And come without the other before."""

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            await backend.call("resume", {})
            for mode in sorted(type(backend).capabilities.pause_modes) * 2:
                await backend.call("pause", {"mode": mode})
            await backend.call("resume", {})
            await backend.call("resume", {})
            await self.check_works(backend, watch, 1)

        self.run(test)

    @pytest.mark.rule("ORCH-INV-232", "ORCH-INV-239")
    @pytest.mark.case("B014", "B108")
    def test_what_is_kept_stands_still_and_goes_on(self) -> None:
        """Every output of a step that ran has come before the pause returns; after the resume nothing is missing."""
        self.need_mode(PauseMode.KEEP)

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            long, short = self.key(1), self.key(2)
            backend.submit(self.task(long, self.long_sample()))
            await watch.wait_outputs(long)
            backend.submit(self.task(short, self.sample(2)))
            await backend.call("pause", {"mode": PauseMode.KEEP})
            running = [job for job in (long, short) if job not in watch.ends]
            await self.check_standstill(backend, watch, *running)
            await backend.call("resume", {})
            await watch.wait_end(short)
            self.check_outcome(watch, short, self.sample(2))
            self.check_partial(backend, watch, long, await watch.stop(long))

        self.run(test)

    @pytest.mark.rule("ORCH-INV-210", "ORCH-INV-205")
    def test_a_job_can_be_stopped_during_a_pause(self) -> None:
        """One that stands still gives its prefix; one that has not begun leaves nothing."""
        self.need_mode(PauseMode.KEEP)

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            frozen, fresh = self.key(1), self.key(2)
            backend.submit(self.task(frozen, self.long_sample()))
            await watch.wait_outputs(frozen)
            await backend.call("pause", {"mode": PauseMode.KEEP})
            backend.submit(self.task(fresh, self.long_sample()))
            for job in (fresh, frozen):
                self.check_partial(backend, watch, job, await watch.stop(job))
            await backend.call("resume", {})
            await self.check_works(backend, watch, 3)

        self.run(test)

    @pytest.mark.rule("ORCH-INV-205", "ORCH-INV-232")
    def test_an_aborting_pause_ends_what_runs(self) -> None:
        """Each job has its finish, with the reason `abort`, before the pause returns; also when it stood still."""
        self.need_mode(PauseMode.ABORT)
        may_keep = PauseMode.KEEP in type(self.make_backend()).capabilities.pause_modes

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            for number, freezes in enumerate([False, True] if may_keep else [False]):
                job = self.key(number)
                backend.submit(self.task(job, self.long_sample()))
                await watch.wait_outputs(job)
                if freezes:
                    await backend.call("pause", {"mode": PauseMode.KEEP})
                await backend.call("pause", {"mode": PauseMode.ABORT})
                end = watch.ends.get(job)
                assert isinstance(end, Finish), f"{job} has no finish after an aborting pause: {backend!r}"
                assert end.reason is FinishReason.ABORT
                assert await watch.stop(job) is None, "it ended before"
                await backend.call("resume", {})
            await self.check_works(backend, watch, 3)

        self.run(test)

    @pytest.mark.rule("ORCH-INV-232")
    def test_a_waiting_pause_lets_what_runs_end(self) -> None:
        """It returns when that is over; also what stood still since an earlier pause goes on to its end."""
        self.need_mode(PauseMode.WAIT)
        may_keep = PauseMode.KEEP in type(self.make_backend()).capabilities.pause_modes

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            for number, freezes in enumerate([False, True] if may_keep else [False]):
                job = self.key(number)
                backend.submit(self.task(job, self.sample(number)))
                if freezes:
                    await backend.call("pause", {"mode": PauseMode.KEEP})
                await backend.call("pause", {"mode": PauseMode.WAIT})
                self.check_outcome(watch, job, self.sample(number))
                await backend.call("resume", {})

        self.run(test)

    @pytest.mark.rule("ORCH-INV-236", "ORCH-INV-230")
    def test_a_pause_that_waits_does_not_keep_a_resume(self) -> None:
        """The resume succeeds at once; the pause ends, with an error, and changes nothing later."""
        self.need_mode(PauseMode.WAIT)

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            long = self.key(1)
            backend.submit(self.task(long, self.long_sample()))
            await watch.wait_outputs(long)
            async with asyncio.TaskGroup() as group:
                pause = group.create_task(_outcome(backend, "pause", mode=PauseMode.WAIT))
                await self.settle()
                assert not pause.done(), "it returned while a job was running"
                await backend.call("resume", {})
            assert isinstance(pause.result(), RequestError)
            await self.check_works(backend, watch, 2)
            self.check_partial(backend, watch, long, await watch.stop(long))

        self.run(test)

    # Sleeping.

    @pytest.mark.rule("ORCH-INV-233", "ORCH-INV-234")
    @pytest.mark.case("B016", "B019", "B056")
    def test_a_wake_up_takes_memory_back_and_starts_nothing(self) -> None:
        """A backend sleeps only while it is paused, and is resumed only when all of it is awake."""
        levels = dict(type(self.make_backend()).capabilities.sleep_levels)
        if not levels:
            pytest.skip("the backend does not sleep")
        may_lose = type(self.make_backend()).capabilities.irreversible_levels

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            with pytest.raises(UnsupportedError):
                await backend.call("sleep", {"level": NO_LEVEL, "tags": ()})
            for level in sorted(levels.keys() - may_lose):
                tags = tuple(sorted(levels[level]))
                with pytest.raises(ControlRejectedError):
                    await backend.call("sleep", {"level": level, "tags": tags})
                await backend.call("pause", {"mode": PauseMode.WAIT})
                await backend.call("sleep", {"level": level, "tags": tags})
                job = self.key(level)
                backend.submit(self.task(job, self.sample(level)))
                for tag in tags:
                    with pytest.raises(ControlRejectedError):
                        await backend.call("resume", {})
                    await backend.call("wake_up", {"tags": (tag,)})
                await backend.call("wake_up", {"tags": tags})
                await self.check_standstill(backend, watch, job)
                await backend.call("resume", {})
                await watch.wait_end(job)
                self.check_outcome(watch, job, self.sample(level))

        self.run(test)

    # Everything else.

    @pytest.mark.rule("ORCH-INV-237")
    def test_caches_are_reset(self) -> None:
        """It says whether it could: it can when nothing runs."""
        resets = [method for method in RESETS if method in type(self.make_backend()).capabilities.calls]
        if not resets:
            pytest.skip("the backend has no caches")

        async def test(backend: StageBackend, watch: BackendWatch) -> None:
            await self.check_works(backend, watch, 1)
            for method in resets:
                assert await backend.call(method, {}) is not False
            await self.check_works(backend, watch, 1 + self.many)

        self.run(test)

    @pytest.mark.rule("ORCH-INV-302")
    def test_close_ends_calls_that_wait(self) -> None:
        """And jobs that stand still."""

        async def run() -> None:
            async with self.loaded() as (backend, watch):
                backend.submit(self.task(self.key(1), self.long_sample()))
                await watch.wait_outputs(self.key(1))
                async with asyncio.TaskGroup() as group:
                    pause = group.create_task(_outcome(backend, "pause", mode=PauseMode.WAIT))
                    await self.settle()
                    backend.submit(self.task(self.key(2), self.long_sample()))
                    await backend.close()
                assert pause.result() is not None
                with pytest.raises(BackendDead):
                    await backend.call("resume", {})
                assert self.count_jobs(backend) == 0

        self.need_mode(PauseMode.WAIT)
        self.check_nothing_left(run)


async def _outcome(backend: StageBackend, method: str, **arguments: object) -> Exception | None:
    """What a call raised; None when it succeeded."""
    try:
        await backend.call(method, arguments)
    except Exception as error:  # noqa: BLE001 - the port lets a call raise anything
        return error
    return None
