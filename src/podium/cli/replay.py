"""`podium replay`: runs the core again on what a journal says happened, and compares what it answers.

No engine is needed, whatever the journal was written with. A difference means that the core decides otherwise now.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from podium.cli.problems import print_problem, problem_of
from podium.errors import ConfigurationError
from podium.runtime.journal import Difference, ReplayReport
from podium.runtime.journal import replay as replay_journal

DIFFERENT_EXIT = 1


def replay(
    journal: Annotated[Path, typer.Argument(help="A journal, as `podium generate --journal FILE` writes it.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Run the core on a journal's events and compare its effects. Exits with 1 when they differ."""
    try:
        report = replay_journal(journal)
    except ConfigurationError as error:
        problem = problem_of(error)
        if as_json:
            typer.echo(json.dumps({"journal": str(journal), "same": False, "error": problem.to_json()}, indent=2))
        else:
            print_problem(Console(stderr=True), problem)
        raise typer.Exit(problem.exit_code) from error
    if as_json:
        typer.echo(json.dumps(_to_json(journal, report), indent=2))
    else:
        _print_report(Console(), journal, report)
    raise typer.Exit(0 if report.is_same else DIFFERENT_EXIT)


def _print_report(console: Console, journal: Path, report: ReplayReport) -> None:
    count = len(report.differences)
    different = f"{count} step{'s differ' if count != 1 else ' differs'}"
    verdict = ("same effects", "green") if report.is_same else (different, "bold red")
    console.print(Text.assemble(f"{journal}: {report.steps} steps, {report.events} events: ", verdict), soft_wrap=True)
    if report.is_cut:
        console.print(Text("the last line is incomplete and was left out", "yellow"))
    for difference in report.differences:
        console.print(Text(f"line {difference.line}", "cyan"))
        console.print(Text(f"  recorded {difference.recorded}"), soft_wrap=True)
        console.print(Text(f"  replayed {difference.replayed}"), soft_wrap=True)


def _to_json(journal: Path, report: ReplayReport) -> dict[str, object]:
    return {
        "journal": str(journal),
        "same": report.is_same,
        "steps": report.steps,
        "events": report.events,
        "cut": report.is_cut,
        "differences": [_difference_to_json(difference) for difference in report.differences],
        "error": None,
    }


def _difference_to_json(difference: Difference) -> dict[str, object]:
    return {
        "line": difference.line,
        "recorded": json.loads(difference.recorded),
        "replayed": json.loads(difference.replayed),
    }
