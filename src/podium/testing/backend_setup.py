"""What the tests of the backend conformance suite share: how a backend is made, read, and judged.

It holds no tests.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from podium.core.events import Finish
from podium.core.identity import MAIN, JobKey, Payload
from podium.payloads import Audio, Image, Text, join
from podium.ports.stage_backend import BackendDead, StageBackend, StageTask
from podium.testing.backend_watch import BackendWatch
from podium.testing.leftovers import run_and_find_leftovers


class SampleJob(NamedTuple):
    """A job for the backend: its input items, and the joined output that is expected of them (None: any)."""

    inputs: tuple[Payload, ...]
    expected: Payload = None
    params: Payload = None


class BackendSetup(ABC):
    """What a test class says of its backend, and what the tests use. `limit_s` is for each test, in seconds."""

    limit_s: ClassVar[float] = 30.0
    many: ClassVar[int] = 1000
    """So many jobs must leave nothing behind."""

    @abstractmethod
    def make_backend(self) -> StageBackend:
        """A new backend, not loaded."""

    @abstractmethod
    def options(self) -> Payload:
        """The options that `make_backend` uses, as `parse_options` returns them."""

    @abstractmethod
    def sample(self, number: int) -> SampleJob:
        """A short job. Jobs of different numbers have different outputs; `expected` should be given."""

    @abstractmethod
    def long_sample(self) -> SampleJob:
        """A job that gives at least one output and then goes on until it is stopped."""

    @abstractmethod
    def failing_sample(self) -> SampleJob | None:
        """A job that fails through its input; None when there is no such input."""

    def count_jobs(self, backend: StageBackend) -> int:  # noqa: ARG002 - for those who override it
        """How many jobs the backend keeps anything of; override it if that can be told."""
        return 0

    def is_foreign_thread(self, name: str) -> bool:  # noqa: ARG002 - for those who override it
        """Whether a thread that is left after `close` belongs to a library that keeps it for the process."""
        return False

    async def settle(self) -> None:
        """Let time pass in which a backend that must stand still could do something; override it for a slow engine."""
        for _ in range(20):
            await asyncio.sleep(0)

    # What the tests use.

    def run(self, test: Callable[[StageBackend, BackendWatch], Coroutine[object, object, None]]) -> None:
        """Run `test` with a loaded backend; afterwards nothing may be left, nor any fault have been seen."""

        async def run() -> None:
            async with self.loaded() as (backend, watch):
                await test(backend, watch)
            assert not watch.faults, f"the port was breached: {watch.faults}"
            assert self.count_jobs(backend) == 0, f"jobs are left: {backend!r}"

        self.check_nothing_left(run)

    def check_nothing_left(self, run: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a coroutine; no task, thread or process of it may be left."""
        left = run_and_find_leftovers(run, self.limit_s, self.is_foreign_thread)
        assert not left, f"left behind: {left}"

    @contextlib.asynccontextmanager
    async def loaded(self) -> AsyncIterator[tuple[StageBackend, BackendWatch]]:
        """A loaded backend, and a watch that reads it; closed at the end, whatever happens."""
        backend = self.make_backend()
        watch = BackendWatch(backend)
        try:
            await backend.load()
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(watch.run())
                try:
                    yield backend, watch
                finally:
                    await backend.close()
                    reader.cancel()
        finally:
            await backend.close()

    def key(self, number: int, *, sibling: str = MAIN, attempt: int = 0) -> JobKey:
        """The key of the job with this number."""
        return JobKey(f"request-{number}", "conformance", sibling, attempt)

    def task(self, job: JobKey, sample: SampleJob, *, input_open: bool = False) -> StageTask:
        """`sample` as the backend gets it; with `input_open` without its input."""
        params = self.make_backend().parse_params(self.options(), {}) if sample.params is None else sample.params
        inputs = () if input_open else sample.inputs
        return StageTask(job=job, inputs=inputs, params=params, input_open=input_open, priority=0, deadline=None)

    def submit_failing(self, backend: StageBackend, job: JobKey, sample: SampleJob) -> bool:
        """Submit a job that will fail; False when it was refused at once, as the port allows."""
        try:
            backend.submit(self.task(job, sample))
        except BackendDead:
            raise
        except Exception:  # noqa: BLE001 - the port lets `submit` raise anything
            return False
        return True

    def check_outcome(self, watch: BackendWatch, job: JobKey, sample: SampleJob) -> None:
        """`job` finished, and gave what `sample` expects."""
        end = watch.ends[job]
        assert isinstance(end, Finish), f"{job} failed: {end}"
        if sample.expected is not None:
            whole = join(watch.outputs[job])
            assert is_same(whole, sample.expected), f"{job} gave {whole!r}, not {sample.expected!r}"

    def check_partial(self, backend: StageBackend, watch: BackendWatch, job: JobKey, partial: Payload) -> None:
        """`partial` is what the capabilities promise of a stopped job."""
        if not type(backend).capabilities.partial_on_stop:
            assert partial is None
            return
        delivered = join(watch.outputs[job])
        assert begins_with(partial, delivered), f"{partial!r} does not begin with {delivered!r}, which was delivered"


def is_same(one: Payload, other: Payload) -> bool:
    """Whether two payloads are equal; sounds and pictures by their samples."""
    if isinstance(one, Audio) and isinstance(other, Audio):
        return one.sample_rate == other.sample_rate and np.array_equal(one.samples, other.samples)
    if isinstance(one, Image) and isinstance(other, Image):
        return np.array_equal(one.pixels, other.pixels)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Text) and isinstance(other, Text):
        return one.text == other.text
    return bool(one == other)


def begins_with(whole: Payload, beginning: Payload) -> bool:
    """Whether `beginning` is the first part of `whole`, or all of it. Nothing is the beginning of everything."""
    if beginning is None:
        return True
    if isinstance(whole, Text) and isinstance(beginning, Text):
        return whole.text.startswith(beginning.text)
    if isinstance(whole, Audio) and isinstance(beginning, Audio):
        part = msgspec.structs.replace(whole, samples=whole.samples[: len(beginning.samples)])
        return is_same(part, beginning)
    if isinstance(whole, list):
        pieces = beginning if isinstance(beginning, list) else [beginning]
        return is_same(whole[: len(pieces)], pieces)
    return is_same(whole, beginning)
