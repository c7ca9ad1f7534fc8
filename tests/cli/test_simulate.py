"""`podium simulate` runs worlds and reports, for people and for programs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from podium.cli import simulate as verb
from podium.cli.main import app
from podium.testing.simulation import Report, SeedReport, run_seed


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def run(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def test_json_is_one_document_with_every_figure() -> None:
    report = msgspec.json.decode(run("--seeds", "3", "--first", "7", "--json").stdout, type=verb.SimulationReport)
    assert (report.first, report.seeds, report.violations, report.failed) == (7, 3, 0, ())
    alone = Report.of(7, [run_seed(seed) for seed in (7, 8, 9)])
    assert report.digest == alone.digest
    assert report.seen == alone.seen


def test_people_get_a_verdict_and_a_digest() -> None:
    lines = run("--seeds", "2", "--jobs", "1").stdout.splitlines()
    assert lines[0] == "2 worlds from seed 0: 0 violations"
    assert lines[2] == f"digest {Report.of(0, [run_seed(0), run_seed(1)]).digest}"


def test_one_world_with_its_trace_and_its_journal(tmp_path: Path) -> None:
    result = run("--seed", "5", "--trace", "--journals", str(tmp_path))
    lines: list[str] = []
    run_seed(5, lines=lines)
    assert result.stderr.splitlines() == lines
    assert [path.name for path in tmp_path.iterdir()] == ["seed-5.jsonl"]


def test_a_violation_is_shown_kept_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(first: int, count: int, **_: object) -> Report:
        good = run_seed(first)
        return Report.of(
            first, [good, SeedReport(**{**msgspec.structs.asdict(good), "seed": 1, "violations": ("[so]",)})]
        )

    monkeypatch.setattr(verb, "run_seeds", fail)
    lines = run("--seeds", "2", "--journals", str(tmp_path), exit_code=1).stdout.splitlines()
    assert lines[:3] == [
        "seed 1 (again: podium simulate --seed 1 --trace)",
        "  [so]",
        "2 worlds from seed 0: 1 violations in 1 worlds",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["seed-1.jsonl"]


def test_a_trace_is_of_one_world() -> None:
    assert "name it with --seed" in " ".join(run("--trace", exit_code=2).stderr.split())
