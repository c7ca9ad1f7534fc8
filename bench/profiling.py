"""Where the time of one shape goes: a profile of the engine's thread, then one of the caller's.

One after the other, because a profiler may be alone in a process. The clock is the thread's processor time, so that
waiting for the other thread does not show. Profiled code is slower, most of all where calls are short: read shares and
counts here, and take times from the figures without a profiler.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, TypeAlias

import podium
from bench.core_alone import CoreAlone
from podium.testing.benchmark import WARM_UP_S, Load, open_engine, run_load
from podium.testing.benchmark_shape import Shape

Function: TypeAlias = tuple[str, int, str]
Times: TypeAlias = tuple[int, int, float, float]
Functions: TypeAlias = dict[Function, tuple[int, int, float, float, dict[Function, Times]]]

BUILTIN = "~"
PACKAGE = Path(podium.__file__).parent


class Row(NamedTuple):
    """One function: own and cumulative µs for each request, and calls for each request."""

    where: str
    own_us: float
    cumulative_us: float
    calls: float


class ThreadProfile(NamedTuple):
    """One thread under the profiler: `total_us` is the own time of everything, for each request; `plain_us` what the
    thread takes without a profiler. `parts` sums up by part of podium."""

    thread: str
    plain_us: float
    total_us: float
    rows: list[Row]
    parts: dict[str, float]


class ShapeProfile(NamedTuple):
    """`plain` is the same load without a profiler. The last of `threads` is the core alone, without a shell."""

    plain: Load
    threads: list[ThreadProfile]


def profile(shape: Shape, seconds: float, top: int) -> ShapeProfile:
    """Profile a shape; the `top` functions by own time of both threads, and of the core alone."""
    profile = asyncio.run(_profile_engine(shape, seconds, top))
    requests = int(profile.plain.requests)
    plain_us = CoreAlone(shape).run(requests)
    profiler = _profiler()
    CoreAlone(shape, profiler).run(requests)
    profile.threads.append(_summarise("core alone", profiler, requests, plain_us, top))
    return profile


async def _profile_engine(shape: Shape, seconds: float, top: int) -> ShapeProfile:
    async with open_engine(shape) as instant:
        await run_load(instant, min(WARM_UP_S, seconds))
        plain = await run_load(instant, seconds)
        profiler = _profiler()
        await instant.ask(profiler.enable)
        load = await run_load(instant, seconds)
        await instant.ask(profiler.disable)
        plain_us = 1e6 * plain.engine_cpu_s / plain.requests
        engine = _summarise("engine's thread", profiler, load.requests, plain_us, top)
        profiler = _profiler()
        profiler.enable()
        load = await run_load(instant, seconds)
        profiler.disable()
        plain_us = 1e6 * plain.caller_cpu_s / plain.requests
        caller = _summarise("caller's thread", profiler, load.requests, plain_us, top)
    return ShapeProfile(plain, [engine, caller])


def _profiler() -> cProfile.Profile:
    return cProfile.Profile(time.thread_time_ns, 1e-9)


def _summarise(thread: str, profiler: cProfile.Profile, requests: int, plain_us: float, top: int) -> ThreadProfile:
    functions: Functions = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    rows = [
        Row(_place(*function), 1e6 * own / requests, 1e6 * cumulative / requests, calls / requests)
        for function, (_, calls, own, cumulative, _) in functions.items()
    ]
    rows.sort(key=lambda row: -row.own_us)
    parts = {part: 1e6 * own / requests for part, own in _parts(functions).items()}
    return ThreadProfile(thread, plain_us, sum(row.own_us for row in rows), rows[:top], parts)


def _parts(functions: Functions) -> dict[str, float]:
    """Own seconds of each part of podium, and of what is not podium; a builtin counts with whoever called it."""
    parts: dict[str, float] = defaultdict(float)
    for (file, _, _), (_, _, own, _, callers) in functions.items():
        if file != BUILTIN:
            parts[_part(file)] += own
            continue
        for (caller, _, _), (_, _, own_for_caller, _) in callers.items():
            parts[_part(caller)] += own_for_caller
    return parts


def _part(file: str) -> str:
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "asyncio" if path.parent.name == "asyncio" else "other Python"


def _place(file: str, line: int, name: str) -> str:
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return f"{path.relative_to(PACKAGE)}:{line} {name}"
    return f"{path.name}:{line} {name}" if line else name
