"""`podium explore`: every interleaving of events on the real core, for small worlds, judged from outside.

A violation is printed with the shortest way to it, and written as a journal that `podium replay` runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from podium.compiled import describe
from podium.testing.explorer.campaign import explore_all
from podium.testing.explorer.outside import World
from podium.testing.explorer.search import Exploration
from podium.testing.explorer.traces import tell, write_journal
from podium.testing.explorer.worlds import DEEP_WORLDS, WORLDS

VIOLATION_EXIT = 1


class WorldReport(msgspec.Struct, frozen=True, kw_only=True):
    """One world in what `--json` prints. `violation` is what was wrong, `trace` the shortest way there."""

    name: str
    states: int
    transitions: int
    longest: int
    bound: int
    exhausted: bool
    seconds: float
    violation: str | None = None
    trace: tuple[str, ...] = ()
    journal: str | None = None


class ExploreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    worlds: tuple[WorldReport, ...]
    states: int
    transitions: int
    violations: int
    exhausted: bool
    seconds: float
    core: str


def explore(
    world: Annotated[list[str] | None, typer.Option(help="Explore this world; may be repeated. Default: all.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="More of everything, and an hour or more.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the worlds, and explore none.")] = False,
    max_states: Annotated[
        int | None, typer.Option(min=1, help="Stop each world at so many states. Default: its own bound.")
    ] = None,
    journals: Annotated[Path, typer.Option(help="The folder for journals of violations.")] = Path("explore-output"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Try every interleaving of events on the core, in small worlds. Exits with 1 when a rule is violated."""
    worlds = _find(world or [], DEEP_WORLDS if deep else WORLDS)
    if list_them:
        _list(worlds, as_json)
        return
    report = _explore(worlds, max_states, journals)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print(Console(), report)
    raise typer.Exit(VIOLATION_EXIT if report.violations else 0)


def _find(names: list[str], worlds: tuple[World, ...]) -> list[World]:
    known = {world.name: world for world in worlds}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"there is no world '{unknown[0]}'; choose some of: {', '.join(known)}")
    return [known[name] for name in names] or list(worlds)


def _list(worlds: list[World], as_json: bool) -> None:
    if as_json:
        rows = [{"name": world.name, "about": world.about, "bound": world.bound} for world in worlds]
        typer.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    table = Table("world", "states at most", "what happens in it", box=box.SIMPLE_HEAD)
    for world in worlds:
        table.add_row(world.name, f"{world.bound:,}", world.about)
    Console().print(table)


def _explore(worlds: list[World], max_states: int | None, journals: Path) -> ExploreReport:
    began = time.monotonic()
    reports: dict[str, WorldReport] = {}
    by_name = {world.name: world for world in worlds}
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task(f"exploring {len(worlds)} worlds")
        for found in explore_all(worlds, max_states=max_states):
            reports[found.world] = _report_of(by_name[found.world], found, journals)
            progress.update(task, description=f"explored {len(reports)} of {len(worlds)} worlds")
    in_order = tuple(reports[world.name] for world in worlds)
    return ExploreReport(
        worlds=in_order,
        states=sum(one.states for one in in_order),
        transitions=sum(one.transitions for one in in_order),
        violations=sum(one.violation is not None for one in in_order),
        exhausted=all(one.exhausted for one in in_order),
        seconds=time.monotonic() - began,
        core=describe(),
    )


def _report_of(world: World, found: Exploration, journals: Path) -> WorldReport:
    violation, journal = found.violation, None
    if violation is not None:
        journal = journals / f"{world.name}.journal"
        write_journal(journal, world, violation)
    return WorldReport(
        name=world.name,
        states=found.states,
        transitions=found.transitions,
        longest=found.longest,
        bound=world.bound,
        exhausted=found.exhausted,
        seconds=found.seconds,
        violation=None if violation is None else violation.what,
        trace=() if violation is None else tuple(tell(violation.steps)),
        journal=None if journal is None else str(journal),
    )


def _print(console: Console, report: ExploreReport) -> None:
    table = Table("world", box=box.SIMPLE_HEAD)
    for column in ("states", "transitions", "longest way", "seconds", "verdict"):
        table.add_column(column, justify="right")
    for one in report.worlds:
        verdict = "exhausted" if one.exhausted else "not exhausted"
        table.add_row(
            one.name,
            f"{one.states:,}",
            f"{one.transitions:,}",
            str(one.longest),
            f"{one.seconds:,.0f}",
            Text("violation", "bold red") if one.violation else Text(verdict, "green" if one.exhausted else "yellow"),
        )
    console.print(table)
    for one in report.worlds:
        if one.violation:
            console.print(Text(f"{one.name}: {one.violation}", "bold red"), soft_wrap=True)
            for line in one.trace:
                console.print(Text(f"  {line}"), soft_wrap=True)
            console.print(Text(f"  podium replay {one.journal}"), soft_wrap=True)
    console.print(
        f"{len(report.worlds)} worlds, {report.states:,} states, {report.transitions:,} transitions, "
        f"{report.violations} violations, {report.seconds:,.0f} s ({report.core})",
        highlight=False,
    )
