"""`podium check`: validates a pipeline file and prints every fault with its line and the remedy.

What is not installed here is told, but is no fault of the file.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from podium import bootstrap
from podium.cli.problems import USAGE_EXIT, print_problem, problem_of
from podium.errors import ConfigurationError, Fault
from podium.runtime.config import PipelineConfig


def check(
    file: Annotated[str, typer.Argument(help="The path of a pipeline file, or the name of a shipped pipeline.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Validate a pipeline file; every fault is printed with its line and the remedy. Exits with 2 when there is one."""
    try:
        config = bootstrap.load_pipeline(file)
    except ConfigurationError as error:
        if as_json:
            typer.echo(_to_json(file, error.faults, None))
        else:
            print_problem(Console(), problem_of(error))
        raise typer.Exit(USAGE_EXIT) from error
    if as_json:
        typer.echo(_to_json(file, (), config))
    else:
        _print_summary(Console(), file, config)


def _print_summary(console: Console, file: str, config: PipelineConfig) -> None:
    stages, outputs = " → ".join(config.graph.stages), ", ".join(config.graph.outputs)
    console.print(Text.assemble((f"{file}: ok", "green"), f"; stages {stages}; outputs {outputs}"), soft_wrap=True)
    missing = bootstrap.missing_requirements(config)
    if missing:
        remedy = f"; {config.install}" if config.install else ""
        console.print(Text(f"not installed here: {', '.join(missing)}{remedy}", "yellow"), soft_wrap=True)


def _to_json(file: str, faults: tuple[Fault, ...], config: PipelineConfig | None) -> str:
    document = {
        "file": file,
        "ok": not faults,
        "faults": [fault._asdict() for fault in faults],
        "missing": list(bootstrap.missing_requirements(config)) if config else [],
    }
    return json.dumps(document, indent=2)
