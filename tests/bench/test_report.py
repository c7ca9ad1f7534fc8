"""Reports for people: tables on a terminal, Markdown in a page, profiles of threads."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import __main__ as command
from bench.measure import CoreCost, Report
from bench.profiling import profile
from bench.report import BEGIN, END, print_profile, print_report, to_markdown, write_between_marks
from podium import compiled
from podium.testing.benchmark import Growth, Idle, Latency, Machine, Memory, Spread, Throughput
from podium.testing.benchmark_control import HangingCall
from podium.testing.benchmark_shape import parse_shape

ONE = Spread(1.0, 0.9, 1.1)
REPORT = Report(
    machine=Machine(python="CPython 3.11", system="Linux", cpus=2, load_before=0.1, load_after=1.2, spin_us=ONE),
    seconds=1.0,
    throughput=(
        Throughput(
            shape="3x1x64",
            repetitions=3,
            requests=1000,
            requests_per_s=Spread(8442.0, 8000.0, 9000.0),
            outputs_per_s=Spread(25326.0, 24000.0, 27000.0),
            engine_us_per_request=Spread(80.0, 79.0, 81.0),
            caller_us_per_request=Spread(20.0, 19.0, 21.0),
            floor_requests_per_s=Spread(16884.0, 16000.0, 17000.0),
            floor_share=0.5,
        ),
    ),
    core_alone=(CoreCost("3x1x64", Spread(60.0, 59.0, 61.0)),),
    latency=Latency(shape="3x1x1", request_us=ONE, crossing_us=ONE, callback_us=ONE, floor_us=ONE, times_crossing=2.5),
    idle=(Idle(open_requests=0, seconds=1.0, cpu_share=0.0001, wakeups_per_s=None),),
    memory=Memory(open_requests=10, bytes_per_request=3000.0, left_bytes_per_request=1.0),
    growth=(Growth(of="replicas", shape="3x8x16", at=(1, 64), us_per_output=(8.0, 8.4)),),
    hanging_call=HangingCall(
        shape="3x8x64",
        repetitions=3,
        requests_per_s=Spread(2000.0, 1900.0, 2100.0),
        hanging_requests_per_s=Spread(1960.0, 1950.0, 2200.0),
        share=0.98,
        late_ms=Spread(1.25, 1.0, 2.0),
        named="stage0[0]",
    ),
)


def printed(report: Report) -> list[str]:
    console = Console(width=160, record=True, file=io.StringIO())
    print_report(console, report)
    return [" ".join(line.replace("│", " ").split()) for line in console.export_text().splitlines()]


def test_the_tables_have_figures_and_verdicts() -> None:
    lines = printed(REPORT)
    assert "3x1x64 8,442 (8,000–9,000) 25,326 80 + 20 60 16,884 0.50 7.0" in lines
    assert "requests/s at 3x1x64, × vLLM-Omni 7.00 10, at least 6 least met" in lines
    assert "latency at 3x1x1, × bare crossing 2.50 at most 2 missed" in lines
    assert "requests/s at 3x8x64, no control call 2,000 (1,900–2,100)" in lines
    assert "the same while a call hangs at stage0[0] 1,960 (1,950–2,200)" in lines
    assert "that call ends after its limit by 1.2 (1.0–2.0) ms" in lines
    assert "requests/s at 3x8x64 while a control call hangs, × without 0.98 0.95, at least 0.85 aim met" in lines
    assert "cost of an output at 1 to 64 replicas, × 1.05 at most 1.25 aim met" in lines


def test_markdown_replaces_what_stands_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"head\n{BEGIN}\nold\n{END}\ntail\n", encoding="utf-8")
    write_between_marks(page, to_markdown(REPORT))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"head\n{BEGIN}\n\n**Under load")
    assert text.endswith(f"{END}\ntail\n")
    assert "old" not in text
    assert "| 3x1x64 | 8,442 (8,000–9,000) | 25,326 | 80 + 20 | 60 | 16,884 | 0.50 | 7.0 |" in text


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks the marks"):
        write_between_marks(page, "text")


@pytest.mark.skipif(bool(compiled.modules()), reason="a profiler does not see compiled functions")
def test_a_profile_shows_both_threads_and_the_core() -> None:
    shape = parse_shape("3x2x2")
    found = profile(shape, 0, 500)
    assert [thread.thread for thread in found.threads] == ["engine's thread", "caller's thread", "core alone"]
    engine, caller, core = (" ".join(row.where for row in thread.rows) for thread in found.threads)
    assert [" take_output" in rows for rows in (engine, caller, core)] == [True, False, True]
    assert [" __anext__" in rows for rows in (engine, caller, core)] == [False, True, False]
    assert found.threads[2].parts["core"] > sum(found.threads[2].parts.values()) / 2
    console = Console(width=160, record=True, file=io.StringIO())
    print_profile(console, found, str(shape))
    assert "core alone" in console.export_text()


def test_the_command_writes_json_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, document = tmp_path / "page.md", tmp_path / "out" / "bench.json"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    monkeypatch.setattr(command, "measure", lambda plan, on_progress: REPORT)
    command.main(["--quick", "--json", str(document), "--into", str(page)])
    assert msgspec.json.decode(document.read_bytes(), type=Report) == REPORT
    assert "3x1x64" in page.read_text(encoding="utf-8")
    assert "Goals" in capsys.readouterr().out


def test_the_command_refuses_what_is_no_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--profile", "3x1"])
    assert "'3x1' is unknown" in capsys.readouterr().err
