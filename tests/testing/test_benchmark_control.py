"""A call that hangs is measured as one: its limit and its name are checked, and the load is the same both times."""

from __future__ import annotations

import msgspec
import pytest

from podium.errors import ControlTimeoutError, ErrorKind, ErrorRecord, Scope
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.testing import benchmark_control
from podium.testing.benchmark import BenchmarkError, InstantEngine, Load
from podium.testing.benchmark import run_load as run_load_of_benchmark
from podium.testing.benchmark_control import HangingCall, measure_hanging_call
from podium.testing.benchmark_shape import parse_shape

SHAPE = parse_shape("2x2x3")


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_control, "LEAST_LIMIT_S", 0.005)


@pytest.mark.rule("ORCH-INV-230", "ORCH-INV-204")
async def test_both_loads_are_measured_and_the_call_ends_at_its_limit() -> None:
    figures = await measure_hanging_call(SHAPE, 2, 0)
    assert (figures.shape, figures.repetitions, figures.named) == ("2x2x3", 2, "stage0[0]")
    assert figures.late_ms.lowest >= 0, "never before"
    assert figures.share == figures.hanging_requests_per_s.median / figures.requests_per_s.median
    assert msgspec.json.decode(msgspec.json.encode(figures), type=HangingCall) == figures


async def test_the_load_runs_while_the_call_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    open_calls: list[int] = []
    original = run_load_of_benchmark

    async def run_load(instant: InstantEngine, seconds: float) -> Load:
        load = await original(instant, seconds)
        open_calls.append((await instant.engine.statistics()).open_calls)
        return load

    monkeypatch.setattr(benchmark_control, "LEAST_LIMIT_S", 0.5)
    monkeypatch.setattr(benchmark_control, "run_load", run_load)
    await measure_hanging_call(SHAPE, 1, 0)
    assert sorted(open_calls) == [0, 0, 1], "the warm-up, and one of two loads"


@pytest.mark.parametrize("named", [None, "stage1"])
async def test_a_call_that_ends_otherwise_is_noticed(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(*args: object, **kwargs: object) -> None:
        if named is not None:
            raise ControlTimeoutError(
                ErrorRecord(kind=ErrorKind.CONTROL_TIMEOUT, scope=Scope.STAGE, stage=named, message="elsewhere")
            )

    monkeypatch.setattr(AsyncOmniEngine, "collective_rpc", call)
    with pytest.raises(ExceptionGroup) as errors:
        await measure_hanging_call(SHAPE, 1, 0)
    expected = "was answered" if named is None else "ended with: elsewhere"
    (error,) = errors.value.exceptions
    assert isinstance(error, BenchmarkError)
    assert expected in str(error)
