"""Measures what a control call costs the data when a replica never answers it: the same load with and without one.

The call goes to a replica that has work all the while. That it ends at its limit, naming that replica, is checked: a
run in which it does not raises.
"""

from __future__ import annotations

import asyncio
import gc
import time

import msgspec

from podium.errors import ControlTimeoutError
from podium.testing.benchmark import WARM_UP_S, BenchmarkError, InstantEngine, Load, Spread, open_engine, run_load
from podium.testing.benchmark_shape import Shape, stage_name
from podium.testing.instant_backend import HANG

LEAST_LIMIT_S = 0.05
"""The limit of a call must be long enough for the load to begin."""


class HangingCall(msgspec.Struct, frozen=True, kw_only=True):
    """One shape under load, measured several times in turns without and with a control call that hangs.

    Rates are per second. `share` is the part of the rate that is left with the call. `late_ms` is how long after its
    limit the call ended, in milliseconds; `named` the replica that its error names.
    """

    shape: str
    repetitions: int
    requests_per_s: Spread
    hanging_requests_per_s: Spread
    share: float
    late_ms: Spread
    named: str


async def measure_hanging_call(shape: Shape, repetitions: int, seconds: float) -> HangingCall:
    """Measure a shape in turns, `repetitions` times for about `seconds` each way.

    Raises BenchmarkError when the call does not end at its limit, or names another than the replica that hangs.
    """
    plain: list[float] = []
    hanging: list[float] = []
    late_ms: list[float] = []
    async with open_engine(shape) as instant:
        await run_load(instant, min(WARM_UP_S, seconds))
        for number in range(repetitions):
            for with_call in (number % 2 == 0, number % 2 == 1):  # so that neither is always the first
                gc.collect()
                if with_call:
                    load, late_s = await _load_with_call(instant, seconds)
                    hanging.append(load.requests / load.seconds)
                    late_ms.append(1e3 * late_s)
                else:
                    load = await run_load(instant, seconds)
                    plain.append(load.requests / load.seconds)
    rates, hanging_rates = Spread.of(plain), Spread.of(hanging)
    return HangingCall(
        shape=str(shape),
        repetitions=repetitions,
        requests_per_s=rates,
        hanging_requests_per_s=hanging_rates,
        share=hanging_rates.median / rates.median,
        late_ms=Spread.of(late_ms),
        named=f"{stage_name(0)}[0]",
    )


async def _load_with_call(instant: InstantEngine, seconds: float) -> tuple[Load, float]:
    """A load for as long as a call hangs, and how much later than its limit the call ended."""
    async with asyncio.TaskGroup() as group:
        calling = group.create_task(_call_until_limit(instant, max(seconds, LEAST_LIMIT_S)))
        load = await run_load(instant, seconds)
    return load, calling.result()


async def _call_until_limit(instant: InstantEngine, limit_s: float) -> float:
    began = time.perf_counter()
    try:
        await instant.engine.collective_rpc(HANG, stages=[stage_name(0)], timeout_s=limit_s)
    except ControlTimeoutError as error:
        took_s = time.perf_counter() - began
        if (error.stage, error.record.replica) != (stage_name(0), 0):
            raise BenchmarkError(f"the call that hangs at {stage_name(0)}[0] ended with: {error}") from error
        return took_s - limit_s
    raise BenchmarkError("the call that hangs was answered")
