"""The core without a shell: the same shapes, told and answered in a plain loop, only `step` on the clock.

What a whole engine costs above this is the shell's: queues, threads, streams, and the stages that answer at once.
"""

from __future__ import annotations

import cProfile
import time
from collections import defaultdict

from podium.core.admission import EngineLimits
from podium.core.effects import Effect, EmitOutput, EndInput, EndRequest, FeedJob, StartJob
from podium.core.events import (
    Event,
    Finish,
    FinishReason,
    JobOutput,
    ReplicaJoined,
    RequestSubmitted,
    StageProduced,
    StageStarted,
)
from podium.core.identity import JobKey, ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.testing.benchmark import BenchmarkError
from podium.testing.benchmark_shape import Shape, stage_name

FINISH = Finish(FinishReason.STOP)


class CoreAlone:
    """A core with stages that are loops of a few lines. `step_s` is the time inside `step`."""

    def __init__(self, shape: Shape, profiler: cProfile.Profile | None = None) -> None:
        """With `profiler`, what `step` does is profiled."""
        self._shape = shape
        self._profiler = profiler
        self._core = Orchestrator(shape.graph(), EngineLimits(max_requests=shape.requests_at_most))
        self._fixed = {
            stage_name(stage): 0 if shape.gives_per_item(stage) else shape.outputs for stage in range(shape.stages)
        }
        self._replicas = [ReplicaKey(name, slot, 0) for name in self._fixed for slot in range(shape.replicas)]
        self._owed: dict[ReplicaKey, dict[JobKey, int]] = defaultdict(dict)
        self._given: dict[JobKey, int] = {}
        self._closed: set[JobKey] = set()
        self._events: list[Event] = [ReplicaJoined(replica) for replica in self._replicas]
        self._submitted = 0
        self.items = 0
        self.finished = 0
        self.step_s = 0.0

    def run(self, requests: int) -> float:
        """Take so many requests through. Returns µs of `step` for each. Raises BenchmarkError when counts are wrong."""
        for _ in range(min(self._shape.concurrent, requests)):
            self._submit()
        while self.finished < requests:
            events, self._events = self._events, []
            effects = self._step(events)
            for effect in effects:
                self._perform(effect, requests)
            self._produce()
        if self.items != requests * self._shape.items_per_request:
            raise BenchmarkError(f"{self._shape}: {requests} requests gave {self.items} items")
        return 1e6 * self.step_s / requests

    def _step(self, events: list[Event]) -> list[Effect]:
        if self._profiler is not None:
            self._profiler.enable()
        began = time.thread_time()
        effects = self._core.step(events, time.monotonic())
        self.step_s += time.thread_time() - began
        if self._profiler is not None:
            self._profiler.disable()
        return effects

    def _submit(self) -> None:
        self._submitted += 1
        self._events.append(
            RequestSubmitted(ticket=self._submitted, request_id=f"request-{self._submitted}", prompt="prompt")
        )

    def _perform(self, effect: Effect, requests: int) -> None:
        match effect:
            case StartJob():
                items = sum(len(source.payloads) for source in effect.inputs)
                self._given[effect.job] = 0
                self._events.append(StageStarted(effect.replica, effect.job))
                self._owe(effect.replica, effect.job, items)
                if not effect.input_open:
                    self._close(effect.replica, effect.job)
            case FeedJob():
                self._owe(effect.replica, effect.job, len(effect.payloads))
            case EndInput():
                self._close(effect.replica, effect.job)
            case EmitOutput():
                self.items += len(effect.payloads) + (effect.finish is not None)
            case EndRequest():
                self.finished += 1
                if self._submitted < requests:
                    self._submit()
            case _:
                raise BenchmarkError(f"unexpected effect {effect}")

    def _owe(self, replica: ReplicaKey, job: JobKey, items: int) -> None:
        if items and not self._fixed[job.stage]:
            self._owed[replica][job] = self._owed[replica].get(job, 0) + items

    def _close(self, replica: ReplicaKey, job: JobKey) -> None:
        self._closed.add(job)
        self._owed[replica][job] = self._owed[replica].get(job, 0) + self._fixed[job.stage]

    def _produce(self) -> None:
        """One step of every stage: an output of each job that owes any."""
        for replica, owed in self._owed.items():
            if owed:
                outputs = tuple(self._give(owed, job) for job in tuple(owed))
                self._events.append(StageProduced(replica, outputs))

    def _give(self, owed: dict[JobKey, int], job: JobKey) -> JobOutput:
        sequence = self._given[job]
        payloads: tuple[object, ...] = ("piece",) if owed[job] else ()
        owed[job] -= len(payloads)
        self._given[job] += len(payloads)
        if owed[job]:
            return JobOutput(job, sequence, payloads)
        del owed[job]
        if job not in self._closed:
            return JobOutput(job, sequence, payloads)
        self._closed.remove(job)
        del self._given[job]
        return JobOutput(job, sequence, payloads, FINISH)
