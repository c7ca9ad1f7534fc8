"""A plan gives a whole report, and figures are held against their goals the right way round."""

from __future__ import annotations

import msgspec
import pytest

from bench.core_alone import CoreAlone
from bench.measure import Goal, Report, Verdict, measure, throughput_goal, times_foreign
from bench.plan import FULL, ORIENTATION, QUICK, Plan
from podium.testing.benchmark import Spread, Throughput
from podium.testing.benchmark_shape import parse_shape

TINY = Plan(
    shapes=(parse_shape("3x1x1"), parse_shape("2x2x2")),
    repetitions=1,
    seconds=0,
    latency_calls=2,
    core_requests=2,
    idle_s=0,
    idle_open=3,
    held=(0, 3),
    replicas=(1, 2),
    memory_requests=5,
)


@pytest.fixture(scope="session")
def report() -> Report:
    return measure(TINY, lambda what, done, total: None)


def throughput(shape: str, requests_per_s: float, outputs_per_s: float) -> Throughput:
    one = Spread(1.0, 1.0, 1.0)
    return Throughput(
        shape=shape,
        repetitions=1,
        requests=1,
        requests_per_s=Spread.of([requests_per_s]),
        outputs_per_s=Spread.of([outputs_per_s]),
        engine_us_per_request=one,
        caller_us_per_request=one,
        floor_requests_per_s=one,
        floor_share=1.0,
    )


def test_a_report_has_every_part_and_survives_json(report: Report) -> None:
    assert [row.shape for row in report.throughput] == [row.shape for row in report.core_alone] == ["3x1x1", "2x2x2"]
    assert [idle.open_requests for idle in report.idle] == [0, 3]
    assert [growth.of for growth in report.growth] == ["open requests", "replicas"]
    assert report.goals()[-1].value == report.hanging_call.share
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_progress_counts_every_measurement() -> None:
    told: list[tuple[str, int, int]] = []
    measure(TINY, lambda what, done, total: told.append((what, done, total)))
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert {total for _, _, total in told} == {len(told)}


@pytest.mark.parametrize("text", ["1x1x1", "3x1x4", "3x4x2", "3x4x2:complete", "fan-out:4x3x2", "fan-in:4x3x2"])
def test_the_core_alone_gives_what_the_shape_says(text: str) -> None:
    shape = parse_shape(text)
    core = CoreAlone(shape)
    assert core.run(5) > 0
    assert (core.finished, core.items) == (5, 5 * shape.items_per_request)


@pytest.mark.parametrize(
    ("goal", "verdict"),
    [
        (Goal("rate", 10.0, aim=10, least=6), Verdict.AIM),
        (Goal("rate", 6.0, aim=10, least=6), Verdict.LEAST),
        (Goal("rate", 5.9, aim=10, least=6), Verdict.MISSED),
        (Goal("cost", 2.0, aim=2, least=2), Verdict.AIM),
        (Goal("cost", 2.1, aim=2, least=2), Verdict.MISSED),
    ],
)
def test_goals(goal: Goal, verdict: Verdict) -> None:
    assert goal.verdict is verdict


def test_shapes_are_held_against_the_figure_that_there_is() -> None:
    assert times_foreign(throughput("3x1x64", 12060.0, 0.0)) == 10
    assert times_foreign(throughput("3x32x64", 0.0, 81000.0)) == 10
    assert times_foreign(throughput("8x8x64", 1.0, 1.0)) is None
    goal = throughput_goal(throughput("3x32x64", 0.0, 162000.0))
    assert goal is not None
    assert goal.verdict is Verdict.AIM
    assert throughput_goal(throughput("3x1x1", 1.0, 3.0)) is None  # its latency has one


def test_the_plans_have_the_shapes_that_there_are_figures_for() -> None:
    assert set(ORIENTATION) <= {str(shape) for shape in FULL.shapes}
    assert set(QUICK.shapes) <= set(FULL.shapes)
