"""Runs seeds, here or in several processes, and reports what was wrong and what there was.

The same seed gives the same report, the digest of its trace included, on every machine and in every order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from pathlib import Path

import msgspec

from podium.ports.environment import Observer
from podium.runtime.journal import Journal
from podium.testing.simulation.trace import Trace
from podium.testing.simulation.virtual_loop import VirtualLoop
from podium.testing.simulation.world import Plant, World
from podium.testing.virtual_clock import VirtualClock

BLOCK = 50
"""Seeds that one process takes at a time."""
WORLD_LIMIT_S = 20_000.0
"""Virtual seconds that a world may take; its limits add up to less."""


class SeedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One world. `digest` is that of its trace, `virtual_s` how long it took in its own time."""

    seed: int
    digest: str
    violations: tuple[str, ...]
    requests: int
    steps: int
    events: int
    virtual_s: float
    seen: dict[str, int]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Many worlds. `digest` is that of their digests in the order of the seeds; `seen` counts what happened in all."""

    first: int
    seeds: int
    violations: int
    failed: tuple[SeedReport, ...]
    digest: str
    requests: int
    steps: int
    events: int
    virtual_s: float
    seen: dict[str, int]

    @classmethod
    def of(cls, first: int, reports: Sequence[SeedReport]) -> Report:
        """The sum of reports that are in the order of their seeds."""
        seen: Counter[str] = Counter()
        for report in reports:
            seen.update(report.seen)
        return Report(
            first=first,
            seeds=len(reports),
            violations=sum(len(report.violations) for report in reports),
            failed=tuple(report for report in reports if report.violations),
            digest=blake2b("".join(report.digest for report in reports).encode(), digest_size=16).hexdigest(),
            requests=sum(report.requests for report in reports),
            steps=sum(report.steps for report in reports),
            events=sum(report.events for report in reports),
            virtual_s=sum(report.virtual_s for report in reports),
            seen=dict(sorted(seen.items())),
        )


def run_seed(
    seed: int,
    *,
    plant: Plant | None = None,
    journal: str | Path | None = None,
    lines: list[str] | None = None,
) -> SeedReport:
    """Live one world. `plant` may break its engine; `journal` is a file for its steps; `lines` gets its trace."""
    trace = Trace(keeps_lines=lines is not None)
    observers = () if journal is None else (Journal(journal, keeps_payloads=True),)
    loop = VirtualLoop(VirtualClock())
    threads = threading.active_count()
    with _quiet() as heard, _no_collector():
        world, failure = _live(seed, trace, loop, observers, plant)
    violations = [*failure, *heard, *(f"asyncio: {complaint}" for complaint in loop.complaints)]
    if world is not None:
        violations += world.violations()
    if loop.timers:
        violations.append(f"{len(loop.timers)} timers are left")
    if threading.active_count() != threads:
        violations.append(f"{threading.active_count() - threads} threads are left")
    if lines is not None and trace.lines is not None:
        lines += trace.lines
    return SeedReport(
        seed=seed,
        digest=trace.digest,
        violations=tuple(violations),
        requests=len(world.truth.uses) if world is not None else 0,
        steps=trace.steps,
        events=trace.events,
        virtual_s=loop.time(),
        seen=dict(sorted(world.truth.seen.items())) if world is not None else {},
    )


def run_seeds(first: int, count: int, *, jobs: int = 1, on_progress: Callable[[int], None] = lambda _: None) -> Report:
    """Live `count` worlds in `jobs` processes. `on_progress` hears how many are over."""
    blocks = [range(begin, min(begin + BLOCK, first + count)) for begin in range(first, first + count, BLOCK)]
    reports: list[SeedReport] = []
    for some in _in_processes(blocks, jobs):
        reports += some
        on_progress(len(reports))
    return Report.of(first, reports)


def _in_processes(blocks: Sequence[range], jobs: int) -> Iterator[list[SeedReport]]:
    if jobs == 1 or len(blocks) == 1:
        yield from map(_run_block, blocks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_run_block, blocks)


def _run_block(seeds: range) -> list[SeedReport]:
    reports = [run_seed(seed) for seed in seeds]
    gc.collect()
    return reports


def _live(
    seed: int, trace: Trace, loop: VirtualLoop, observers: Sequence[Observer], plant: Plant | None
) -> tuple[World | None, list[str]]:
    """The world, and what ended it before its time."""
    worlds: list[World] = []

    async def live() -> None:
        world = World(seed, trace, loop, observers)
        worlds.append(world)
        if plant is not None:
            plant(world.engine)
        async with asyncio.timeout(WORLD_LIMIT_S):
            await world.run()

    failures: list[str] = []
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(live())
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is reported
        failures.append(f"the world ended by {type(failure).__name__}: {failure}")
    return (worlds[0] if worlds else None), failures


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Let podium log nothing; what is critical is heard."""
    heard: list[str] = []
    handler = _Hearer(heard)
    log = logging.getLogger("podium")
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.CRITICAL)
    log.propagate = False
    try:
        yield heard
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


class _Hearer(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.CRITICAL)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        failure = record.exc_info[1] if record.exc_info else None
        self._heard.append(f"{record.getMessage()}: {failure!r}")


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Let nothing be collected at a moment that depends on what ran before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
