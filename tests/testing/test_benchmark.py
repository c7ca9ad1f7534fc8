"""What is measured is counted right, and wrong counts are noticed. How fast anything is, is not tested here."""

from __future__ import annotations

import threading

import msgspec
import pytest

from podium.testing import benchmark
from podium.testing.benchmark import (
    BenchmarkError,
    Growth,
    InstantEngine,
    Noise,
    Spread,
    Throughput,
    measure_idle,
    measure_latency,
    measure_memory,
    measure_open_requests,
    measure_replicas,
    measure_throughput,
    open_engine,
    run_load,
)
from podium.testing.benchmark_shape import parse_shape

SHAPES = ("1x1x1", "3x1x5", "3x4x2", "3x4x2:complete", "3x4x2:all-final", "fan-out:4x3x2", "fan-in:4x3x2")


@pytest.mark.parametrize("text", [*SHAPES, "fan-in:4x3x2:complete", "3x2x4:replicas=2"])
async def test_a_load_gives_what_the_shape_says(text: str) -> None:
    shape = parse_shape(text)
    async with open_engine(shape) as instant:
        load = await run_load(instant, 0)
        assert load.requests == shape.concurrent
        assert load.outputs == instant.given == shape.concurrent * shape.outputs_per_request
        assert min(load.seconds, load.engine_cpu_s, load.caller_cpu_s) > 0
        assert (await instant.engine.statistics()).core.counters.completed == shape.concurrent


async def test_a_wrong_number_of_items_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(instant: InstantEngine) -> int:
        return await original(instant) + 1

    original = InstantEngine.call
    monkeypatch.setattr(InstantEngine, "call", call)
    async with open_engine(parse_shape("3x1x1")) as instant:
        with pytest.raises(ExceptionGroup) as errors:
            await run_load(instant, 0)
    assert [str(error) for error in errors.value.exceptions] == ["a request gave 3 items where 2 are due"]


async def test_outputs_that_the_stages_did_not_give_are_noticed() -> None:
    async with open_engine(parse_shape("3x1x1")) as instant:
        instant.backends[0].given = 0
        counted, instant.backends = instant.backends, instant.backends[:1]
        with pytest.raises(BenchmarkError, match="3x1x1: 1 requests gave 1 outputs"):
            await run_load(instant, 0)
        instant.backends = counted


async def test_throughput_counts_every_repetition() -> None:
    figures = await measure_throughput(parse_shape("3x2x4"), 2, 0)
    assert (figures.shape, figures.repetitions, figures.requests) == ("3x2x4", 2, 8)
    assert figures.outputs_per_s.median == pytest.approx(6 * figures.requests_per_s.median)
    assert figures.floor_share == figures.requests_per_s.median / figures.floor_requests_per_s.median
    assert msgspec.json.decode(msgspec.json.encode(figures), type=Throughput) == figures


async def test_latency_is_set_against_the_crossing() -> None:
    figures = await measure_latency(parse_shape("3x1x1"), 1, 2)
    assert figures.times_crossing == figures.request_us.median / figures.crossing_us.median
    assert min(figures.callback_us.lowest, figures.floor_us.lowest) > 0


async def test_idle_keeps_requests_open_and_lets_them_go() -> None:
    figures = await measure_idle(parse_shape("3x1x1"), 0, open_requests=7)
    assert figures.open_requests == 7
    assert figures.cpu_share >= 0


async def test_an_open_request_takes_memory_and_gives_it_back() -> None:
    figures = await measure_memory(parse_shape("3x1x1"), 50)
    assert figures.bytes_per_request > 500
    assert figures.left_bytes_per_request < figures.bytes_per_request / 10


async def test_growth_is_measured_at_each_number() -> None:
    open_requests = await measure_open_requests(parse_shape("2x2x2"), (0, 5), 0)
    replicas = await measure_replicas(parse_shape("2x2x2"), (1, 3), 0)
    assert (open_requests.of, open_requests.at, len(open_requests.us_per_output)) == ("open requests", (0, 5), 2)
    assert (replicas.of, replicas.at, len(replicas.us_per_output)) == ("replicas", (1, 3), 2)


async def test_requests_are_held_at_every_first_stage() -> None:
    async with open_engine(parse_shape("fan-in:3x2x1")) as instant:
        streams = await instant.hold(3)
        core = (await instant.engine.statistics()).core
        assert [stage.running for stage in core.stages.values()] == [3, 3, 0]
        await instant.leave(streams)
        assert streams == []
        assert [backend.jobs for backend in instant.backends] == [0, 0, 0]


async def test_waiting_for_requests_that_never_come_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "QUESTIONS", 3)
    async with open_engine(parse_shape("1x1x1")) as instant:
        with pytest.raises(BenchmarkError, match="does not come to 1 open requests"):
            await instant.wait_held(1)


async def test_questions_are_answered_in_the_thread_of_the_engine() -> None:
    async with open_engine(parse_shape("1x1x1")) as instant:
        assert await instant.ask(threading.get_ident) not in {0, threading.get_ident()}


def test_a_spread() -> None:
    spread = Spread.of([3.0, 1.0, 2.0])
    assert (spread, spread.relative) == (Spread(2.0, 1.0, 3.0), 1.0)
    assert Spread(0.0, 0.0, 0.0).relative == 0
    with pytest.raises(ValueError, match="nothing to summarise"):
        Spread.of([])


def test_growth_is_the_highest_by_the_first() -> None:
    assert Growth(of="replicas", shape="3x1x1", at=(1, 2, 3), us_per_output=(2.0, 5.0, 4.0)).ratio == 2.5


def test_the_machine_is_described() -> None:
    noise = Noise()
    noise.look()
    machine = noise.machine()
    assert machine.cpus >= 1
    assert 0 < machine.spin_us.lowest <= machine.spin_us.median <= machine.spin_us.highest
