"""Carries out a plan, one engine after the other, and puts what was measured into one report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import TypeVar

import msgspec

from bench.core_alone import CoreAlone
from bench.plan import (
    CONTROL_SHAPE,
    CONTROL_SHARE,
    CONTROL_SHARE_AT_LEAST,
    CROSSINGS_AT_MOST,
    GROWTH_AT_MOST,
    HELD_SHAPE,
    LATENCY_SHAPE,
    ORIENTATION,
    REPLICA_SHAPE,
    Figure,
    Plan,
)
from podium.testing.benchmark import (
    Growth,
    Idle,
    Latency,
    Machine,
    Memory,
    Noise,
    Spread,
    Throughput,
    measure_idle,
    measure_latency,
    measure_memory,
    measure_open_requests,
    measure_replicas,
    measure_throughput,
)
from podium.testing.benchmark_control import HangingCall, measure_hanging_call
from podium.testing.benchmark_shape import Shape

Measured = TypeVar("Measured")
OnProgress = Callable[[str, int, int], None]
"""Hears what is measured now, how many measurements are done, and how many there are."""


OTHERS = 7
"""Measurements that are not of a shape under load."""


class Verdict(StrEnum):
    """How a figure stands to its goal."""

    AIM = "aim met"
    LEAST = "least met"
    MISSED = "missed"


class Goal(msgspec.Struct, frozen=True):
    """One figure that has a goal. Where `aim` is below `least`, lower is better."""

    name: str
    value: float
    aim: float
    least: float

    @property
    def verdict(self) -> Verdict:
        """Whether it reaches the aim, or at least the least."""
        sign = -1 if self.aim < self.least or self.aim == self.least else 1
        if sign * self.value >= sign * self.aim:
            return Verdict.AIM
        return Verdict.LEAST if sign * self.value >= sign * self.least else Verdict.MISSED


class CoreCost(msgspec.Struct, frozen=True):
    """The core without a shell, in µs of processor time for each request."""

    shape: str
    us_per_request: Spread


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run: everything is from one machine, and minutes apart at most."""

    machine: Machine
    seconds: float
    throughput: tuple[Throughput, ...]
    core_alone: tuple[CoreCost, ...]
    latency: Latency
    idle: tuple[Idle, ...]
    memory: Memory
    growth: tuple[Growth, ...]
    hanging_call: HangingCall

    def goals(self) -> list[Goal]:
        """Every figure that has one."""
        goals = [goal for row in self.throughput if (goal := throughput_goal(row)) is not None]
        goals.append(
            Goal("latency at 3x1x1, × bare crossing", self.latency.times_crossing, CROSSINGS_AT_MOST, CROSSINGS_AT_MOST)
        )
        goals += [
            Goal(f"cost of an output at {growth.at[0]} to {growth.at[-1]} {growth.of}, ×", growth.ratio, *_GROWTH)
            for growth in self.growth
        ]
        share = self.hanging_call.share
        name = f"requests/s at {self.hanging_call.shape} while a control call hangs, × without"
        goals.append(Goal(name, share, CONTROL_SHARE, CONTROL_SHARE_AT_LEAST))
        return goals


_GROWTH = (GROWTH_AT_MOST, GROWTH_AT_MOST)


def times_foreign(row: Throughput) -> float | None:
    """How many times vLLM-Omni's figure a shape reaches; None where there is none."""
    orientation = ORIENTATION.get(row.shape)
    if orientation is None:
        return None
    ours = row.requests_per_s if orientation.figure is Figure.REQUESTS else row.outputs_per_s
    return ours.median / orientation.value


def throughput_goal(row: Throughput) -> Goal | None:
    """The goal of a shape, if it has one."""
    orientation, times = ORIENTATION.get(row.shape), times_foreign(row)
    if orientation is None or times is None or not orientation.aim:
        return None
    name = f"{orientation.figure} at {row.shape}, × vLLM-Omni"
    return Goal(name, times, orientation.aim, orientation.least)


def measure(plan: Plan, on_progress: OnProgress) -> Report:
    """Take everything that the plan has. Raises BenchmarkError when a run gave wrong counts."""
    run = _Run(on_progress, len(plan.shapes) + OTHERS)
    throughput: list[Throughput] = []
    core_alone: list[CoreCost] = []
    for shape in plan.shapes:
        throughput.append(run.take(str(shape), measure_throughput(shape, plan.repetitions, plan.seconds)))
        core_alone.append(_core_cost(shape, plan))
    latency = run.take("latency", measure_latency(LATENCY_SHAPE, plan.repetitions, plan.latency_calls))
    idle = (
        run.take("idle", measure_idle(LATENCY_SHAPE, plan.idle_s)),
        run.take("idle, with open requests", measure_idle(LATENCY_SHAPE, plan.idle_s, plan.idle_open)),
    )
    memory = run.take("memory", measure_memory(LATENCY_SHAPE, plan.memory_requests))
    growth = (
        run.take("open requests", measure_open_requests(HELD_SHAPE, plan.held, 2 * plan.seconds)),
        run.take("replicas", measure_replicas(REPLICA_SHAPE, plan.replicas, 2 * plan.seconds)),
    )
    hanging_call = run.take(
        "a control call that hangs", measure_hanging_call(CONTROL_SHAPE, plan.repetitions, plan.seconds)
    )
    return Report(
        machine=run.noise.machine(),
        seconds=run.seconds,
        throughput=tuple(throughput),
        core_alone=tuple(core_alone),
        latency=latency,
        idle=idle,
        memory=memory,
        growth=growth,
        hanging_call=hanging_call,
    )


class _Run:
    """Runs measurements one after the other, each in a loop of its own."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self.noise = Noise()
        self._began = time.monotonic()
        self._on_progress = on_progress
        self._done = 0
        self._total = total

    @property
    def seconds(self) -> float:
        """Since the begin."""
        return time.monotonic() - self._began

    def take(self, what: str, measurement: Coroutine[object, object, Measured]) -> Measured:
        """Carry out one measurement."""
        self._on_progress(what, self._done, self._total)
        measured = asyncio.run(_await(measurement))
        self._done += 1
        self.noise.look()
        return measured


async def _await(measurement: Coroutine[object, object, Measured]) -> Measured:
    return await measurement


def _core_cost(shape: Shape, plan: Plan) -> CoreCost:
    """About the same number of outputs for every shape, but each caller's first request at least."""
    requests = max(min(shape.concurrent, 200), plan.core_requests * 3 // shape.outputs_per_request)
    return CoreCost(str(shape), Spread.of([CoreAlone(shape).run(requests) for _ in range(3)]))
