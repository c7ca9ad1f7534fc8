"""Takes the events that a stage client pushes, from whatever thread, and lets a test wait for them.

It is the driver's inbox in the conformance suite; it does nothing about what it hears.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from podium.core.events import (
    CallReturned,
    Event,
    Finish,
    InputRejected,
    JobOutput,
    ReplicaLost,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.identity import JobKey, Payload

JobEvent = StageStarted | StageStopped | StopFailed | StageFailed | InputRejected
E = TypeVar("E", StageStarted, StageStopped, StopFailed, StageFailed, InputRejected)


class EventLog:
    """Every event, in the order of its arrival. Belongs to the loop that it was made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._is_closed = False
        self.events: list[Event] = []
        self.late: list[Event] = []
        """What was pushed after `close`."""

    def __repr__(self) -> str:
        return f"<EventLog {[type(event).__name__ for event in self.events]}>"

    def sink(self, event: Event) -> None:
        """Take an event; for any thread."""
        if self._is_closed:
            self.late.append(event)
        else:
            self._loop.call_soon_threadsafe(self._take, event)

    def close(self) -> None:
        """Nothing may be pushed from now on."""
        self._is_closed = True

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so()`; it is asked after each event."""
        while not is_so():
            await self._changed.wait()

    async def wait_for(self, kind: type[E], job: JobKey, count: int = 1) -> E:
        """Wait for the event of a kind about `job`; the last of `count`."""
        await self.wait_until(lambda: len(self.of(kind, job)) >= count)
        return self.of(kind, job)[count - 1]

    async def wait_finish(self, *jobs: JobKey) -> None:
        """Wait until each of `jobs` has finished."""
        await self.wait_until(lambda: all(self.finish(job) is not None for job in jobs))

    def of(self, kind: type[E], job: JobKey) -> list[E]:
        """The events of one kind about `job`."""
        return [event for event in self.events if isinstance(event, kind) and event.job == job]

    def losses(self) -> list[ReplicaLost]:
        """Each time that the replica was lost."""
        return [event for event in self.events if isinstance(event, ReplicaLost)]

    def returns(self, call: int) -> list[CallReturned]:
        """Each answer of a call."""
        return [event for event in self.events if isinstance(event, CallReturned) and event.call == call]

    async def wait_return(self, call: int) -> CallReturned:
        """Wait for the answer of a call. Raises AssertionError when there is more than one."""
        await self.wait_until(lambda: bool(self.returns(call)))
        answers = self.returns(call)
        assert len(answers) == 1, f"call {call} was answered {len(answers)} times"
        return answers[0]

    def produced(self, job: JobKey) -> list[JobOutput]:
        """The deliveries of `job`."""
        batches = [event.outputs for event in self.events if isinstance(event, StageProduced)]
        return [output for outputs in batches for output in outputs if output.job == job]

    def payloads(self, job: JobKey) -> list[Payload]:
        """The outputs of `job`. Raises AssertionError when they are not numbered from 0 without a gap."""
        payloads: list[Payload] = []
        for output in self.produced(job):
            assert output.sequence == len(payloads), f"{job}: {output.sequence} came where {len(payloads)} was due"
            payloads += output.payloads
        return payloads

    def finish(self, job: JobKey) -> Finish | None:
        """How `job` finished. Raises AssertionError when something came after that."""
        produced = self.produced(job)
        finishes = [output.finish for output in produced if output.finish is not None]
        assert len(finishes) <= 1, f"{job} finished {len(finishes)} times"
        assert not finishes or produced[-1].finish is not None, f"{job} went on after its finish"
        return finishes[0] if finishes else None

    def about(self, job: JobKey) -> list[Event]:
        """Everything about `job`, in order."""
        return [
            event
            for event in self.events
            if (isinstance(event, JobEvent) and event.job == job)
            or (isinstance(event, StageProduced) and any(output.job == job for output in event.outputs))
        ]

    def _take(self, event: Event) -> None:
        self.events.append(event)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
