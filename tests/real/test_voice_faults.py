"""The voice pipeline past its limits, and with its engine killed: one engine with small limits, dead at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import yaml

from podium import OmniOutput, Text
from podium.bootstrap import PIPELINES, AsyncOmniEngine
from podium.errors import ErrorKind, OverloadedError, RequestError, Scope, StageUnavailableError
from podium.payloads import join
from podium.runtime.config import StageParams
from podium.runtime.request_stream import RequestStream
from tests.real.processes import descendants, find_process, still_running
from tests.real.shared_loop import SharedLoop

RUNNING, QUEUED = 2, 3
SHORT: StageParams = {"thinker": {"max_tokens": 16}}
ENDLESS: StageParams = {"thinker": {"max_tokens": 1500, "ignore_eos": True}}

pytestmark = pytest.mark.timeout(600)


def small_pipeline() -> str:
    """The shipped file, but for the limits of its thinker."""
    pipeline = yaml.safe_load((PIPELINES / "voice.yaml").read_text(encoding="utf-8"))
    pipeline["stages"]["thinker"]["limits"] |= {"max_inflight": RUNNING, "max_queued": QUEUED}
    return str(yaml.safe_dump(pipeline))


@pytest.fixture(scope="module")
def small() -> Iterator[tuple[SharedLoop, AsyncOmniEngine]]:
    """An engine that lives until a test kills it."""
    loop = SharedLoop()
    engine = AsyncOmniEngine.from_pipeline(small_pipeline())
    try:
        loop.run(engine.start(), timeout_s=240)
        yield loop, engine
    finally:
        loop.run(engine.shutdown())
        loop.close()


class Reader:
    """Reads one request to its end, whatever that is, and notes when it came."""

    def __init__(self, stream: RequestStream) -> None:
        self.stream = stream
        self.items: list[OmniOutput] = []
        self.error: RequestError | None = None
        self.ended_at = 0.0

    async def run(self) -> None:
        try:
            async for item in self.stream:
                self.items.append(item)
        except RequestError as error:
            self.error = error
        self.ended_at = time.monotonic()

    @property
    def text(self) -> str:
        whole = join([item.delta for item in self.items if item.output == "text" and item.delta is not None])
        return whole.text if isinstance(whole, Text) else ""


@pytest.mark.rule("ORCH-INV-118")
@pytest.mark.case("B036")
def test_the_excess_is_refused_at_once_and_the_rest_is_served(small: tuple[SharedLoop, AsyncOmniEngine]) -> None:
    loop, engine = small
    nouns = ["cat", "violin", "bicycle", "volcano", "banana", "piano", "spider", "castle", "river", "lamp"]

    async def test() -> tuple[Sequence[Reader], float]:
        asked_at = time.monotonic()
        readers = [Reader(engine.generate(f"What is a {noun}?", params=SHORT)) for noun in nouns]
        await asyncio.gather(*(reader.run() for reader in readers))
        again = Reader(engine.generate("What is a horse?", params=SHORT))
        await again.run()
        assert again.error is None, "the limit is free again"
        return readers, asked_at

    readers, asked_at = loop.run(test())
    accepted, refused = readers[: RUNNING + QUEUED], readers[RUNNING + QUEUED :]
    for noun, reader in zip(nouns, accepted, strict=False):
        assert reader.error is None
        assert noun in reader.text.lower()
        assert reader.items[-1].request_finished
    for reader in refused:
        assert isinstance(reader.error, OverloadedError)
        assert (reader.error.status, reader.error.stage) == (429, "thinker")
        assert reader.error.record.retry_after_s
        assert reader.items == []
        assert reader.ended_at < min(other.ended_at for other in accepted)
        assert reader.ended_at - asked_at < 1.0


@pytest.mark.rule("ORCH-INV-101", "ORCH-INV-200", "ORCH-INV-202", "ORCH-INV-302", "ORCH-INV-305")
@pytest.mark.case("B001", "B032", "B044")
def test_the_engine_killed_mid_answer(small: tuple[SharedLoop, AsyncOmniEngine]) -> None:
    """Each request ends with one typed error that names the stage; health says so; nothing is left of the processes,
    nor of those that were about to take their place.
    """
    loop, engine = small
    threads = {thread.name for thread in threading.enumerate()}
    processes = descendants()

    async def kill() -> tuple[list[Reader], float]:
        readers = [Reader(engine.generate("Why is the sky blue?", params=ENDLESS)) for _ in range(RUNNING + 1)]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.run())
            while len(readers[0].items) < 5:  # noqa: ASYNC110 - a real engine, and there is nothing to be told by
                await asyncio.sleep(0.05)
            os.kill(find_process("EngineCore"), signal.SIGKILL)
            killed_at = time.monotonic()
        return readers, killed_at

    readers, killed_at = loop.run(kill())
    for number, reader in enumerate(readers):
        assert isinstance(reader.error, StageUnavailableError), reader
        assert (reader.error.status, reader.error.stage) == (503, "thinker")
        assert reader.error.request_id == reader.stream.request_id
        is_running = number < RUNNING
        assert reader.error.record.kind is (ErrorKind.REPLICA_LOST if is_running else ErrorKind.STAGE_UNAVAILABLE)
        assert reader.error.record.scope in {Scope.REPLICA, Scope.STAGE}
        assert reader.ended_at - killed_at < 5.0
        assert not any(item.request_finished for item in reader.items)
    loop.run(check_refusals(engine))
    began_at = time.monotonic()
    loop.run(engine.shutdown())
    assert time.monotonic() - began_at < 15.0
    assert still_running(processes) == {}
    assert descendants().keys() <= processes.keys()
    left = {thread.name for thread in threading.enumerate()} & {name for name in threads if name.startswith("podium")}
    assert left == set()


async def check_refusals(engine: AsyncOmniEngine) -> None:
    """Alive but not ready; whatever is asked for is refused at once, and nothing is kept of it."""
    health = await engine.check_health()
    assert (health.is_live, health.is_ready, health.unavailable_stages) == (True, False, ("thinker",))
    assert "'thinker'" in health.reason
    assert health.restarting_stages == ("thinker",)
    for outputs in (None, ["text"], ["speech"]):
        began_at = time.monotonic()
        with pytest.raises(StageUnavailableError, match="thinker") as caught:
            await engine.generate("And now?", outputs=outputs).collect()
        assert (caught.value.status, caught.value.stage) == (503, "thinker")
        assert time.monotonic() - began_at < 1.0
    figures = await engine.statistics()
    assert (figures.core.is_idle, figures.streams) == (True, 0)
