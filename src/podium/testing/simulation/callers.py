"""Those who use the engine of a world: they ask, read, dawdle, leave, are cancelled, or let go of what they got.

They note what they got, in the order in which they got it, and nothing else.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from random import Random

from podium.errors import EngineStoppedError, ErrorKind, RequestError
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.request_stream import RequestStream
from podium.testing.simulation.surroundings import Surroundings
from podium.testing.simulation.truth import Use

IDS = ("r", "r1", "r11", "r1-1", "main", "a")
"""Ids that contain each other, or look like other names."""
DEADLINES_S = (0.001, 0.05, 0.5, 30.0)


class Manner(StrEnum):
    """How a caller treats a stream."""

    READ = "read"
    DAWDLE = "dawdle"
    LATE = "late"
    LEAVE = "leave"
    CANCEL = "cancel"
    DROP = "drop"


class Caller:
    """One caller with one request."""

    def __init__(self, use: Use, around: Surroundings, engine: AsyncOmniEngine, draw: Random) -> None:
        weather = around.weather
        self._use = use
        self._around = around
        self._truth = around.truth
        self._engine = engine
        self._draw = draw
        self._at_s = 0.0 if weather.storm else draw.choice((0.0, 0.01, 0.1, 1.0)) * draw.random()
        self._leaves_after_s = 0.05 if weather.storm else draw.choice((0.0, 0.02, 0.3, 3.0 if weather.tight else 100.0))
        manners = (Manner.LEAVE, Manner.CANCEL, Manner.DROP) if draw.random() < weather.leave else tuple(Manner)[:3]
        is_brief = weather.tight or weather.polled
        self._late_s = draw.choice((1.0, 10.0 if is_brief else 500.0))
        self._manner = manners[1] if weather.storm and manners[1] is Manner.CANCEL else draw.choice(manners)
        outputs = engine.outputs
        if draw.random() < 0.4:
            use.outputs = tuple(draw.sample(outputs, draw.randint(1, len(outputs))))
        if draw.random() < weather.deadline:
            use.deadline_s = 0.05 if weather.storm else draw.choice(DEADLINES_S)
        self._priority = draw.choice((0, 0, 0, -1, 5))

    async def run(self) -> None:
        """Ask, and do with the stream as its manner is."""
        await asyncio.sleep(self._at_s)
        try:
            stream = self._submit()
        except EngineStoppedError:
            self._truth.see("not taken", self._use.prompt)
            return
        try:
            await self._follow(stream)
        except RequestError as error:
            self._use.error = error.record
        if not self._use.has_left:
            self._use.ended_at = self._now()
            self._use.outcome = stream.outcome
            self._truth.expect(stream.outcome is not None, f"{self._use} ended without an outcome")
            self._truth.expect(stream.error == self._use.error, f"{self._use} raised {self._use.error}, not its error")
            self._truth.expect([item async for item in stream] == [], f"{self._use} got something after its end")
        end = self._use.error.kind if self._use.error is not None else self._use.outcome or "left"
        self._truth.see(f"end {end}", self._use.prompt)

    def _submit(self) -> RequestStream:
        use = self._use
        stream = self._engine.generate(
            use.prompt,
            outputs=use.outputs,
            request_id=use.request_id,
            priority=self._priority,
            deadline_s=use.deadline_s,
        )
        use.ticket = stream.ticket
        use.submitted_at = self._now()
        if use.deadline_s is not None:
            self._truth.causes[use.number].add(ErrorKind.DEADLINE_EXCEEDED)
        return stream

    async def _follow(self, stream: RequestStream) -> None:
        match self._manner:
            case Manner.READ:
                await self._read(stream)
            case Manner.DAWDLE:
                await self._read(stream, pause_s=0.2)
            case Manner.LATE:
                await asyncio.sleep(self._late_s)
                await self._read(stream)
            case Manner.LEAVE:
                await self._leave(stream)
            case Manner.CANCEL:
                await self._be_cancelled(stream)
            case Manner.DROP:
                await asyncio.sleep(self._leaves_after_s)
                self._use.has_left = True

    async def _read(self, stream: RequestStream, pause_s: float = 0.0, count: int | None = None) -> bool:
        """Read `count` items, or all; whether there was an end."""
        async for item in stream:
            self._use.items.append(item)
            if len(self._use.items) == count:
                return False
            if pause_s:
                await asyncio.sleep(pause_s)
        return True

    async def _leave(self, stream: RequestStream) -> None:
        async with stream:
            self._use.has_left = not await self._read(stream, count=self._draw.choice((1, 2, 5)))

    async def _be_cancelled(self, stream: RequestStream) -> None:
        try:
            async with asyncio.timeout(self._leaves_after_s):
                await self._read(stream)
        except TimeoutError as error:
            if isinstance(error, RequestError):
                raise
            self._use.has_left = True

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def draw_uses(draw: Random, count: int) -> list[Use]:
    """So many uses of ids; some take an id that another has, or had."""
    return [Use(number, draw.choice(IDS) if draw.random() < 0.4 else f"r{number}") for number in range(count)]
