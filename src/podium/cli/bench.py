"""`podium bench`: what the orchestration itself costs on this machine, with stages that answer at once.

A small version of the project's own benchmark; it needs no engine and runs wherever podium is installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from podium.testing.benchmark import (
    Idle,
    Latency,
    Machine,
    Noise,
    Throughput,
    measure_idle,
    measure_latency,
    measure_throughput,
)
from podium.testing.benchmark_shape import Shape, parse_shape

DEFAULT_SHAPES = ("3x1x1", "3x1x64", "3x32x64")
REPETITIONS = 3
LATENCY_SHAPE = parse_shape("3x1x1")
LATENCY_CALLS = 100


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    machine: Machine
    throughput: tuple[Throughput, ...]
    latency: Latency
    idle: Idle


def bench(
    shapes: Annotated[
        list[str] | None,
        typer.Argument(
            help="STAGESxOUTPUTSxREQUESTS: how many stages in a chain, outputs of each for a request, and requests at "
            f"once. fan-out:4x8x16 and fan-in:4x8x16 are other layouts. Default: {' '.join(DEFAULT_SHAPES)}."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, max=60.0, help="Seconds of load for each repetition.")] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Measure what orchestration costs on this machine, beside the same hops without any."""
    parsed = [_parse(text) for text in shapes or DEFAULT_SHAPES]
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("")
        report = measure(parsed, seconds, lambda what: progress.update(task, description=f"measuring {what}"))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print_report(Console(), report)


def measure(shapes: list[Shape], seconds: float, on_progress: Callable[[str], None]) -> BenchReport:
    """Measure the shapes, then latency and an idle engine. Raises BenchmarkError when a run gave wrong counts."""
    noise = Noise()
    throughput: list[Throughput] = []
    for shape in shapes:
        on_progress(str(shape))
        throughput.append(asyncio.run(measure_throughput(shape, REPETITIONS, seconds)))
        noise.look()
    on_progress("latency")
    latency = asyncio.run(measure_latency(LATENCY_SHAPE, REPETITIONS, LATENCY_CALLS))
    on_progress("an idle engine")
    idle = asyncio.run(measure_idle(LATENCY_SHAPE, 2 * seconds))
    noise.look()
    return BenchReport(machine=noise.machine(), throughput=tuple(throughput), latency=latency, idle=idle)


def print_report(console: Console, report: BenchReport) -> None:
    """The table, and below it what is not about load."""
    table = Table("shape", box=box.SIMPLE_HEAD)
    for column in ("requests/s", "outputs/s", "µs of processor for a request", "× bare floor"):
        table.add_column(column, justify="right")
    for row in report.throughput:
        cost = row.engine_us_per_request.median + row.caller_us_per_request.median
        table.add_row(
            row.shape,
            f"{row.requests_per_s.median:,.0f} ± {50 * row.requests_per_s.relative:.0f} %",
            f"{row.outputs_per_s.median:,.0f}",
            f"{cost:,.0f}",
            f"{row.floor_share:.2f}",
        )
    console.print(table)
    latency, idle, spin = report.latency, report.idle, report.machine.spin_us
    console.print(
        f"latency at {latency.shape}: {latency.request_us.median:,.0f} µs, {latency.times_crossing:.1f} × a bare "
        f"crossing of threads and back ({latency.crossing_us.median:,.0f} µs)\n"
        f"idle: {idle.cpu_share:.3%} of a core\n"
        f"noise of this machine: ± {50 * spin.relative:.0f} %, load {report.machine.load_after:.1f}",
        highlight=False,
    )


def _parse(text: str) -> Shape:
    try:
        return parse_shape(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
