"""The suite finds what it is for: each backend here breaks one sentence of the port, and its test says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from podium.core.events import JobOutput
from podium.core.identity import JobKey, Payload
from podium.payloads import Audio, Image, Text
from podium.ports.stage_backend import BackendOutput, StageTask
from podium.testing.backend_conformance import BackendConformance, begins_with, is_same
from podium.testing.fake_backend import FakeBackend, FakeOptions
from tests.testing import test_fake_backend as fakes


class Repeats(FakeBackend):
    async def next_outputs(self) -> Sequence[BackendOutput]:
        outputs = await super().next_outputs()
        return [*outputs, *outputs]


class Gaps(FakeBackend):
    def produce(self, job: JobKey, *payloads: Payload) -> None:
        found = self._jobs[job]
        self.put(JobOutput(job, len(found.generated) + 1, payloads))
        found.generated += payloads


class MixesRequests(FakeBackend):
    def produce(self, job: JobKey, *payloads: Payload) -> None:
        super().produce(next(iter(self.tasks)), *payloads)


class EndsEarly(FakeBackend):
    def feed(self, job: JobKey, inputs: Sequence[Payload]) -> None:
        super().feed(job, inputs)
        super().end_input(job)


class GoesOnAfterStop(FakeBackend):
    async def stop(self, job: JobKey) -> Payload:
        known = job in self.tasks
        partial = await super().stop(job)
        if known:
            self.put(JobOutput(job, 3, (Text("late"),)))
        return partial


class ForgetsPrefix(FakeBackend):
    async def stop(self, job: JobKey) -> Payload:
        await super().stop(job)
        return Text("something else")


class RefusesSecondStop(FakeBackend):
    async def stop(self, job: JobKey) -> Payload:
        if job not in self.tasks:
            raise KeyError(job)
        return await super().stop(job)


class AnswersAnything(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        return None


class PausesInName(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        return None if method == "pause" else await super().call(method, arguments)


class PausesTooEarly(FakeBackend):
    """It leaves what a step made for later."""

    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        value = await super().call(method, arguments)
        if arguments.get("mode") == "keep":
            for job in self.tasks:
                self.produce(job, Text("late"))
        return value


class DropsNewcomers(FakeBackend):
    def submit(self, task: StageTask) -> None:
        super().submit(task)
        if self.paused is not None:
            del self._jobs[task.job]


class AbortsInSilence(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        if arguments.get("mode") == "abort":
            self._jobs.clear()
        return await super().call(method, arguments)


class WaitsForNobody(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        if arguments.get("mode") == "wait":
            arguments = {"mode": "keep"}
        return await super().call(method, arguments)


class ResumesAfterThePause(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        if method == "resume":
            await self.wait_until(lambda: self._pausing is self.paused)
        return await super().call(method, arguments)


class SleepsAtWork(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        if method == "sleep" and self.paused is None:
            return None
        return await super().call(method, arguments)


class WakesToWork(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        value = await super().call(method, arguments)
        if method == "wake_up" and not self.asleep:
            await super().call("resume", {})
        return value


class CannotReset(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        return False if method.startswith("reset") else await super().call(method, arguments)


class TakesAnyMode(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        return await super().call(method, {"mode": "keep"} if arguments.get("mode") == "sideways" else arguments)


class DeclaresNoLevels(FakeBackend):
    capabilities = msgspec.structs.replace(FakeBackend.capabilities, sleep_levels={})


class AnswersAfterItsEnd(FakeBackend):
    async def call(self, method: str, arguments: Mapping[str, Payload]) -> Payload:
        return None if method == "resume" else await super().call(method, arguments)


class TakesAnyParameter(FakeBackend):
    @classmethod
    def parse_params(cls, options: Payload, values: Mapping[str, object]) -> FakeOptions:  # type: ignore[override]
        return FakeOptions()


class TakesAnyOption(FakeBackend):
    @classmethod
    def parse_options(cls, values: Mapping[str, object]) -> FakeOptions:
        return FakeOptions()


class KeepsJobs(FakeBackend):
    @property
    def tasks(self) -> Mapping[JobKey, object]:  # type: ignore[override]
        return {told.job: None for told in self.told if told.job is not None}


class NeverClosed(FakeBackend):
    async def close(self) -> None:
        self.release_stops()


@pytest.mark.rule("ORCH-INV-307")
@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Repeats, BackendConformance.test_a_job_gives_its_outputs_in_order_and_finishes),
        (Gaps, BackendConformance.test_a_job_gives_its_outputs_in_order_and_finishes),
        (MixesRequests, BackendConformance.test_jobs_do_not_mix),
        (EndsEarly, BackendConformance.test_input_may_come_piece_by_piece),
        (GoesOnAfterStop, BackendConformance.test_a_stop_is_physical_and_returns_what_there_is),
        (ForgetsPrefix, BackendConformance.test_a_stop_is_physical_and_returns_what_there_is),
        (RefusesSecondStop, BackendConformance.test_a_stop_may_be_repeated),
        (RefusesSecondStop, BackendConformance.test_calls_for_unknown_jobs_change_nothing),
        (AnswersAnything, BackendConformance.test_an_unknown_call_is_refused),
        (PausesInName, BackendConformance.test_nothing_starts_during_a_pause),
        (DropsNewcomers, BackendConformance.test_nothing_starts_during_a_pause),
        (PausesTooEarly, BackendConformance.test_what_is_kept_stands_still_and_goes_on),
        (AbortsInSilence, BackendConformance.test_an_aborting_pause_ends_what_runs),
        (WaitsForNobody, BackendConformance.test_a_pause_that_waits_does_not_keep_a_resume),
        (ResumesAfterThePause, BackendConformance.test_a_pause_that_waits_does_not_keep_a_resume),
        (SleepsAtWork, BackendConformance.test_a_wake_up_takes_memory_back_and_starts_nothing),
        (WakesToWork, BackendConformance.test_a_wake_up_takes_memory_back_and_starts_nothing),
        (CannotReset, BackendConformance.test_caches_are_reset),
        (TakesAnyMode, BackendConformance.test_a_mode_that_is_not_offered_is_refused),
        (DeclaresNoLevels, BackendConformance.test_what_is_declared_of_calls_fits_together),
        (AnswersAfterItsEnd, BackendConformance.test_close_ends_calls_that_wait),
        (AnswersAfterItsEnd, BackendConformance.test_pauses_and_resumes_may_be_repeated),
        (TakesAnyParameter, BackendConformance.test_unknown_parameters_are_refused),
        (TakesAnyOption, BackendConformance.test_unknown_options_are_refused),
        (KeepsJobs, BackendConformance.test_many_jobs_leave_nothing),
        (NeverClosed, BackendConformance.test_close_ends_running_jobs_and_may_be_repeated),
    ],
)
def test_a_breach_is_found(kind: type[FakeBackend], test: object) -> None:
    class Suite(fakes.TestConformance):
        limit_s = 0.5  # only for the breach that makes a wait endless
        many = 32

        def make_backend(self) -> FakeBackend:
            return kind()

    assert callable(test)
    with pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError, KeyError)):
        test(Suite())


def test_payloads_are_compared_by_what_they_hold() -> None:
    import numpy as np  # noqa: PLC0415 - only here

    ones, zeros = np.ones(4, dtype=np.float32), np.zeros(4, dtype=np.float32)
    sound, picture = Audio(ones, 8), Image(np.ones((2, 2, 3), dtype=np.uint8))
    assert is_same(sound, Audio(ones.copy(), 8))
    assert not is_same(sound, Audio(ones, 9))
    assert not is_same(sound, Audio(zeros, 8))
    assert is_same(picture, Image(picture.pixels.copy()))
    assert is_same(Text("a", (1,)), Text("a", (2,)))
    assert is_same([sound, 1], [sound, 1])
    assert not is_same([sound, 1], [sound])
    assert begins_with(sound, Audio(ones[:2], 8))
    assert not begins_with(sound, Audio(zeros[:2], 8))
    assert begins_with(Text("ab"), Text("a"))
    assert not begins_with(Text("ab"), Text("b"))
    assert begins_with([1, 2, 3], [1, 2])
    assert begins_with([1, 2, 3], 1)
    assert begins_with(Text("a"), None)
    assert begins_with(5, 5)
