"""`podium bench` measures and reports, for people and for programs."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner

from podium.cli import bench
from podium.cli.main import app


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(bench, "REPETITIONS", 1)
    monkeypatch.setattr(bench, "LATENCY_CALLS", 2)


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", "--seconds", "0.01", *arguments], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.stdout


def test_json_is_one_document_with_every_figure() -> None:
    report = msgspec.json.decode(run("--json", "2x1x2", "fan-out:3x2x1"), type=bench.BenchReport)
    assert [row.shape for row in report.throughput] == ["2x1x2", "fan-out:3x2x1"]
    assert all(row.requests > 0 and row.requests_per_s.median > 0 for row in report.throughput)
    assert report.latency.shape == "3x1x1"
    assert report.idle.open_requests == 0


def test_people_get_a_table_with_a_row_for_each_shape() -> None:
    lines = run("2x1x2").splitlines()
    assert [line.split()[0] for line in lines if line.strip().startswith("2x1x2")] == ["2x1x2"]
    assert [line.split(":")[0] for line in lines if ":" in line] == [
        "latency at 3x1x1",
        "idle",
        "noise of this machine",
    ]


def test_what_is_no_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["bench", "3x4"])
    assert result.exit_code == 2
    assert "'3x4' is unknown" in " ".join(result.stderr.replace("│", " ").split())


def test_by_default_it_takes_its_own_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "DEFAULT_SHAPES", ("1x1x1",))
    report = msgspec.json.decode(run("--json"), type=bench.BenchReport)
    assert [row.shape for row in report.throughput] == ["1x1x1"]
