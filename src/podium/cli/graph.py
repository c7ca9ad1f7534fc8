"""`podium graph`: draws a pipeline, as a tree for the terminal, or as mermaid or dot for documents.

A drawing is made from the checked file alone; nothing is started.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, assert_never

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from podium import bootstrap
from podium.cli.arguments import complete_pipeline
from podium.cli.problems import print_problem, problem_of
from podium.core.graph import EdgeMode, Source
from podium.errors import ConfigurationError
from podium.runtime.config import PipelineConfig, StageConfig


class Format(StrEnum):
    """How a pipeline is drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"


def graph(
    pipeline: Annotated[
        str, typer.Argument(help="A shipped pipeline or the path of a file.", autocompletion=complete_pipeline)
    ],
    form: Annotated[Format, typer.Option("--format", help="How to draw it.")] = Format.TEXT,
) -> None:
    """Draw a pipeline: its stages, what flows between them and how, and its outputs."""
    try:
        config = bootstrap.load_pipeline(pipeline)
    except ConfigurationError as error:
        problem = problem_of(error)
        print_problem(Console(stderr=True), problem)
        raise typer.Exit(problem.exit_code) from error
    match form:
        case Format.TEXT:
            Console().print(draw_tree(config))
        case Format.MERMAID:
            typer.echo(draw_mermaid(config))
        case Format.DOT:
            typer.echo(draw_dot(config))
        case _:
            assert_never(form)


def draw_tree(config: PipelineConfig) -> Tree:
    """A tree from the prompt to the outputs; a stage of several sources is drawn below the first of them."""
    tree = Tree(Text.assemble((config.name, "bold"), f"  {config.description}"))
    prompt = tree.add("prompt")
    drawn: set[str] = set()
    for stage in _stages(config):
        if not stage.stage.sources:
            _draw_branch(config, prompt, stage, "", drawn)
    return tree


def draw_mermaid(config: PipelineConfig) -> str:
    """A mermaid flowchart: thick arrows stream, thin ones wait for the whole."""
    lines = ["flowchart LR", "    prompt([prompt])"]
    for stage in _stages(config):
        lines.append(f'    {_id(stage)}["{stage.name}<br/>{_work(stage)}"]')
        if not stage.stage.sources:
            lines.append(f"    prompt --> {_id(stage)}")
        if stage.stage.output is not None:
            lines.append(f"    {_id(stage)} --> {_output_id(stage)}([{stage.stage.output}])")
    for source, edge, consumer in _edges(config):
        arrow = "==>" if edge.mode is EdgeMode.STREAMING else "-->"
        lines.append(f"    {_id(source)} {arrow}|{_carries(source, edge)}| {_id(consumer)}")
    return "\n".join(lines)


def draw_dot(config: PipelineConfig) -> str:
    """A graph for graphviz: bold arrows stream, thin ones wait for the whole."""
    lines = [f'digraph "{config.name}" {{', "    rankdir=LR;", "    node [shape=box];", "    prompt [shape=oval];"]
    for stage in _stages(config):
        lines.append(f'    {_id(stage)} [label="{stage.name}\\n{_work(stage)}"];')
        if not stage.stage.sources:
            lines.append(f"    prompt -> {_id(stage)};")
        if stage.stage.output is not None:
            lines.append(f'    {_output_id(stage)} [label="{stage.stage.output}", shape=oval];')
            lines.append(f"    {_id(stage)} -> {_output_id(stage)};")
    for source, edge, consumer in _edges(config):
        style = "bold" if edge.mode is EdgeMode.STREAMING else "solid"
        label = _carries(source, edge)
        lines.append(f'    {_id(source)} -> {_id(consumer)} [label="{label}", style={style}];')
    return "\n".join([*lines, "}"])


def _draw_branch(config: PipelineConfig, parent: Tree, stage: StageConfig, way: str, drawn: set[str]) -> None:
    label = Text.assemble((way, "dim"), (stage.name, "bold"))
    if stage.name in drawn:
        parent.add(label.append(" (above)", "dim"))
        return
    drawn.add(stage.name)
    label.append(f"  {_work(stage)}")
    label.append(f" x{stage.replicas}" if stage.replicas > 1 else "")
    branch = parent.add(label)
    if stage.stage.output is not None:
        branch.add(Text.assemble("=> ", (stage.stage.output, "green"), f" ({stage.stage.produces})"))
    for source, edge, consumer in _edges(config):
        if source is stage:
            _draw_branch(config, branch, consumer, f"{_carries(stage, edge)} -> ", drawn)


def _stages(config: PipelineConfig) -> list[StageConfig]:
    by_name = {stage.name: stage for stage in config.stages}
    return [by_name[name] for name in config.graph.stages]


def _edges(config: PipelineConfig) -> Iterator[tuple[StageConfig, Source, StageConfig]]:
    by_name = {stage.name: stage for stage in config.stages}
    for consumer in _stages(config):
        for source in consumer.stage.sources:
            yield by_name[source.stage], source, consumer


def _carries(source: StageConfig, edge: Source) -> str:
    """What flows along an edge, how, and when."""
    condition = "" if edge.when is None else f", when {edge.when}"
    return f"{source.stage.produces}, {edge.mode}{condition}"


def _work(stage: StageConfig) -> str:
    """How a stage works, and on what."""
    return stage.backend if stage.backend == stage.stage.kind else f"{stage.stage.kind} on {stage.backend}"


def _id(stage: StageConfig) -> str:
    """A node's name that no format takes for a keyword, such as `end`."""
    return "stage_" + stage.name.replace("-", "__")


def _output_id(stage: StageConfig) -> str:
    return "output_" + stage.name.replace("-", "__")
