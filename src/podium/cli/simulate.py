"""`podium simulate`: whole engines over stages that go wrong, thousands of them, each from one seed.

It prints what was wrong and what there was. The same seed gives the same trace, byte for byte, on every machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from podium.testing.simulation import Report, SeedReport, run_seed, run_seeds

VIOLATION_EXIT = 1
SHOWN = 10
"""Failed worlds, and violations of one, that people are shown."""


class SimulationReport(Report, frozen=True, kw_only=True):
    """What `--json` prints. `elapsed_s` is real time, and the only figure that differs from run to run."""

    elapsed_s: float


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="How many worlds.")] = 1000,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    journals: Annotated[
        Path | None,
        typer.Option(help="Write the journal of each world with a violation here; with --seed that of this world."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print everything that happened.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Run seeded worlds on a virtual clock: whatever fails, every promise is kept. Exits with 1 when one is not."""
    if trace and seed is None:
        raise typer.BadParameter("--trace is for one world: name it with --seed")
    began = time.perf_counter()
    processes = jobs or os.cpu_count() or 1
    report = _run_many(first, seeds, processes) if seed is None else _run_one(seed, shows_trace=trace)
    if journals is not None:
        _write_journals(journals, [seed] if seed is not None else [failed.seed for failed in report.failed])
    elapsed_s = time.perf_counter() - began
    if as_json:
        whole = SimulationReport(**msgspec.structs.asdict(report), elapsed_s=elapsed_s)
        typer.echo(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode())
    else:
        _print_report(Console(), report, elapsed_s)
    raise typer.Exit(VIOLATION_EXIT if report.violations else 0)


def _run_many(first: int, seeds: int, jobs: int) -> Report:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=seeds)
        return run_seeds(first, seeds, jobs=jobs, on_progress=lambda done: progress.update(task, completed=done))


def _run_one(seed: int, *, shows_trace: bool) -> Report:
    lines: list[str] | None = [] if shows_trace else None
    report = run_seed(seed, lines=lines)
    for line in lines or ():
        typer.echo(line, err=True)
    return Report.of(seed, [report])


def _write_journals(folder: Path, seeds: list[int]) -> None:
    for seed in seeds:
        run_seed(seed, journal=folder / f"seed-{seed}.jsonl")


def _print_report(console: Console, report: Report, elapsed_s: float) -> None:
    for failed in report.failed[:SHOWN]:
        _print_failed(console, failed)
    verdict = f"{report.violations} violations in {len(report.failed)} worlds" if report.failed else "0 violations"
    console.print(
        f"{report.seeds:,} worlds from seed {report.first}: {verdict}\n"
        f"{report.requests:,} requests, {report.steps:,} steps, {report.events:,} events, "
        f"{report.virtual_s:,.0f} s of their time in {elapsed_s:,.1f} s\n"
        f"digest {report.digest}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(", ".join(f"{what} {count:,}" for what, count in report.seen.items()), highlight=False)


def _print_failed(console: Console, failed: SeedReport) -> None:
    console.print(
        f"[bold red]seed {failed.seed}[/] (again: podium simulate --seed {failed.seed} --trace)", soft_wrap=True
    )
    for violation in failed.violations[:SHOWN]:
        console.print(f"  {violation}", markup=False, soft_wrap=True, highlight=False)
