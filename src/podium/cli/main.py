"""The `podium` command: its verbs, its version, and its exit codes.

Verbs import what is heavy when they run, so that help and completion are quick.
"""

from __future__ import annotations

import io
import json
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.core import TyperGroup

from podium.cli.bench import bench
from podium.cli.check import check
from podium.cli.explore import explore
from podium.cli.generate import generate
from podium.cli.graph import graph
from podium.cli.pipelines import pipelines
from podium.cli.problems import EXIT_CODES, USAGE_EXIT, Problem
from podium.cli.replay import replay
from podium.cli.simulate import simulate
from podium.compiled import describe

_EPILOG = "\n\n".join(["Exit codes:", *(f"{code}: {meaning}." for code, meaning in EXIT_CODES.items())])

_UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # click's, wherever typer keeps it


class Verbs(TyperGroup):
    """The verbs. With `--json` even arguments that cannot be understood give a document, as any other error does."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer has its own copy of click's
        """Run the verb that was typed."""
        wants_json = "--json" in sys.argv[1:]
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if wants_json:
                problem = Problem("usage", error.format_message(), USAGE_EXIT, hint="see --help")
                typer.echo(json.dumps({"error": problem.to_json()}, indent=2))
            raise


app = typer.Typer(
    cls=Verbs,
    name="podium",
    help="Runs pipelines of several engines: text, speech and images from one request.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"podium {version('podium')} ({describe()})")
        raise typer.Exit


@app.callback()
def podium(
    show_version: Annotated[  # noqa: ARG001 - an option is declared as a parameter
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Runs pipelines of several engines: text, speech and images from one request."""
    _prepare_stdout()
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`: a pipeline file may name modules that lie where one works


def _prepare_stdout() -> None:
    """Let every verb write, whatever standard output is: closed, or of an encoding that lacks a character."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open until the process ends
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


app.command()(generate)
app.command()(pipelines)
app.command()(check)
app.command()(graph)
app.command()(bench)
app.command()(explore)
app.command()(replay)
app.command()(simulate)
