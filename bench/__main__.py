"""`python -m bench`: the orchestrator beside the bare floor, in one run; a table, and JSON on request.

It measures and reports; it never fails because of a figure, only because of a wrong count.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.measure import Report, measure
from bench.plan import FULL, QUICK, Plan
from bench.profiling import profile
from bench.report import print_profile, print_report, to_markdown, write_between_marks
from podium import compiled
from podium.testing.benchmark_shape import Shape, parse_shape

PROFILE_S = 1.5
PROFILE_TOP = 25
WIDTH = 140
"""Of tables that go into a file."""


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or profile one shape."""
    arguments = _parser().parse_args(words)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if arguments.profile is not None:
        for shape in arguments.profile:
            print_profile(console, profile(shape, PROFILE_S, arguments.top), str(shape))
        if compiled.modules():
            console.print("The core is compiled, which hides its functions; PODIUM_PURE=1 shows them.", highlight=False)
        return
    report = _measure_with_progress(QUICK if arguments.quick else FULL)
    print_report(console, report)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        console.print(f"{arguments.json}", highlight=False)
    if arguments.into is not None:
        write_between_marks(arguments.into, to_markdown(report))


def _measure_with_progress(plan: Plan) -> Report:
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        return measure(
            plan, lambda what, done, total: progress.update(task, description=what, completed=done, total=total)
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and repetitions: under 25 seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the tables into a Markdown page")
    parser.add_argument(
        "--profile", type=_shape, action="append", metavar="SHAPE", help="where the time goes: 3x32x64, fan-out:4x8x16"
    )
    parser.add_argument("--top", type=int, default=PROFILE_TOP, help="functions that a profile shows (%(default)s)")
    return parser


def _shape(text: str) -> Shape:
    try:
        return parse_shape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    main()
