"""`podium pipelines`: the shipped pipelines, and what is missing to run each.

It reads files and looks for modules; it starts nothing.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium import bootstrap
from podium.cli.problems import print_faults


def pipelines(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """List the pipelines that come with podium, and what is missing to run them."""
    summaries = bootstrap.list_pipelines()
    if as_json:
        typer.echo(json.dumps([_to_json(summary) for summary in summaries], indent=2))
        return
    table = Table("pipeline", "description", "stages", "outputs", "ready", box=box.SIMPLE_HEAD)
    for summary in summaries:
        table.add_row(
            Text(summary.name, "bold"),
            summary.description,
            " → ".join(summary.stages),
            ", ".join(summary.outputs),
            _readiness(summary),
        )
    console = Console()
    console.print(table)
    for summary in summaries:
        print_faults(console, summary.faults)


def _readiness(summary: bootstrap.PipelineSummary) -> Text:
    if summary.is_ready:
        return Text("yes", "green")
    if summary.faults:
        return Text("no: the file has faults, see below", "red")
    remedy = f"; {summary.install}" if summary.install else ""
    return Text(f"no: {', '.join(summary.missing)} not installed{remedy}", "yellow")


def _to_json(summary: bootstrap.PipelineSummary) -> dict[str, object]:
    return {
        **summary._asdict(),
        "ready": summary.is_ready,
        "faults": [fault._asdict() for fault in summary.faults],
    }
