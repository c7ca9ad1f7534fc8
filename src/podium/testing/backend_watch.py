"""Reads what a backend delivers, and holds it to the port while it does: numbering, one end, nothing after the end.

It is the receiver in the conformance suite; it decides nothing about what the outputs should be.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from podium.core.events import Finish, JobOutput
from podium.core.identity import JobKey, Payload
from podium.errors import ErrorRecord
from podium.ports.stage_backend import BackendDead, BackendOutput, JobFailed, LoadReport, StageBackend


class BackendWatch:
    """What came of each job so far. `faults` has every breach of the port, in words."""

    def __init__(self, backend: StageBackend) -> None:
        self._backend = backend
        self._changed = asyncio.Event()
        self.outputs: defaultdict[JobKey, list[Payload]] = defaultdict(list)
        self.ends: dict[JobKey, Finish | ErrorRecord] = {}
        self.stopped: set[JobKey] = set()
        self.faults: list[str] = []
        self.death: BackendDead | None = None

    async def run(self) -> None:
        """Read until the backend is dead."""
        while self.death is None:
            try:
                batch = await self._backend.next_outputs()
            except BackendDead as death:
                self.death = death
            else:
                self._take(batch)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def stop(self, job: JobKey) -> Payload:
        """Stop a job; whatever comes of it afterwards is a fault."""
        partial = await self._backend.stop(job)
        self.stopped.add(job)
        return partial

    async def wait_end(self, *jobs: JobKey) -> None:
        """Wait until each of `jobs` finished or failed."""
        await self._wait(lambda: all(job in self.ends for job in jobs))

    async def wait_outputs(self, job: JobKey, count: int = 1) -> None:
        """Wait until `job` has given at least `count` outputs, or has ended."""
        await self._wait(lambda: len(self.outputs[job]) >= count or job in self.ends)

    async def _wait(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self.death is not None:
                raise self.death
            await self._changed.wait()

    def _take(self, batch: Sequence[BackendOutput]) -> None:
        if not batch:
            self.faults.append("next_outputs returned an empty batch")
        for output in batch:
            if isinstance(output, LoadReport):
                continue
            kind = type(output).__name__
            if output.job in self.stopped:
                self.faults.append(f"{kind} of {output.job} came after its stop had returned")
            if output.job in self.ends:
                self.faults.append(f"{kind} of {output.job} came after its end")
            if isinstance(output, JobOutput):
                self._take_output(output)
            elif isinstance(output, JobFailed):
                self.ends[output.job] = output.error

    def _take_output(self, output: JobOutput) -> None:
        known = self.outputs[output.job]
        if output.sequence != len(known):
            self.faults.append(f"{output.job}: the number {output.sequence} came where {len(known)} was due")
        if not output.payloads and output.finish is None:
            self.faults.append(f"{output.job}: an output came with neither payload nor finish")
        known += output.payloads
        if output.finish is not None:
            self.ends[output.job] = output.finish
