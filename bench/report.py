"""A report for people: tables on a terminal, and the same as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.measure import Report, Verdict, times_foreign
from bench.plan import IDLE_CPU_SHARES, LATENCY_US
from bench.profiling import ShapeProfile
from podium.testing.benchmark import Machine, Spread

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
_COLOURS: dict[str, str] = {Verdict.AIM: "green", Verdict.LEAST: "yellow", Verdict.MISSED: "red"}


class Sheet(NamedTuple):
    """One table, as texts. The first column is a name, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def sheets(report: Report) -> list[Sheet]:
    """Everything that was measured."""
    return [_throughput(report), _others(report), _goals(report)]


def print_report(console: Console, report: Report) -> None:
    """The tables, and what is known of the machine's noise."""
    for sheet in sheets(report):
        console.print()
        table = Table(title=sheet.title, title_justify="left")
        for number, column in enumerate(sheet.columns):
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in sheet.rows:
            table.add_row(*row[:-1], Text(row[-1], _COLOURS.get(row[-1], "")))
        console.print(table)
    console.print(describe_machine(report.machine), highlight=False)


def to_markdown(report: Report) -> str:
    """The same as Markdown."""
    parts: list[str] = []
    for sheet in sheets(report):
        rule = tuple("---:" if number else "---" for number in range(len(sheet.columns)))
        lines = ["| " + " | ".join(row) + " |" for row in (sheet.columns, rule, *sheet.rows)]
        parts.append(f"**{sheet.title}**\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, describe_machine(report.machine)])


def write_between_marks(page: Path, text: str) -> None:
    """Replace what stands between the two marks of a page. Raises ValueError when it has none."""
    head, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} lacks the marks '{BEGIN}' and '{END}'")
    page.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")


def describe_machine(machine: Machine) -> str:
    """One sentence: the machine, and how quiet it was."""
    return (
        f"{machine.python} on {machine.system}, {machine.cpus} processors; load {machine.load_before:.1f} before and "
        f"{machine.load_after:.1f} after. The same piece of Python took {_spread(machine.spin_us, 0)} µs: differences "
        f"within ±{50 * machine.spin_us.relative:.0f} % are noise."
    )


def print_profile(console: Console, profile: ShapeProfile, shape: str) -> None:
    """Where the time went, in both threads and in the core alone."""
    plain = profile.plain
    console.print(
        f"{shape}: {plain.requests / plain.seconds:,.0f} requests/s, {plain.outputs / plain.seconds:,.0f} outputs/s; "
        f"µs of processor time for each request: engine {1e6 * plain.engine_cpu_s / plain.requests:,.0f}, "
        f"caller {1e6 * plain.caller_cpu_s / plain.requests:,.0f}",
        highlight=False,
    )
    for thread in profile.threads:
        table = Table(title=f"{thread.thread}: {thread.plain_us:,.0f} µs for each request", title_justify="left")
        for column in ("own %", "~ own µs", "~ cumulative µs", "calls"):
            table.add_column(column, justify="right")
        table.add_column("function", no_wrap=True)
        for row in thread.rows:
            own, cumulative = (thread.plain_us * us / thread.total_us for us in (row.own_us, row.cumulative_us))
            share = 100 * row.own_us / thread.total_us
            table.add_row(f"{share:.1f}", f"{own:.1f}", f"{cumulative:.1f}", f"{row.calls:.1f}", row.where)
        console.print(table)
        parts = sorted(thread.parts.items(), key=lambda part: -part[1])
        shares = ", ".join(f"{part} {100 * us / thread.total_us:.0f} %" for part, us in parts)
        console.print(f"own time, builtins with their callers: {shares}\n", highlight=False)


def _throughput(report: Report) -> Sheet:
    core = {row.shape: row.us_per_request.median for row in report.core_alone}
    rows = [
        (
            row.shape,
            _spread(row.requests_per_s),
            f"{row.outputs_per_s.median:,.0f}",
            f"{row.engine_us_per_request.median:,.0f} + {row.caller_us_per_request.median:,.0f}",
            f"{core[row.shape]:,.0f}",
            f"{row.floor_requests_per_s.median:,.0f}",
            f"{row.floor_share:.2f}",
            "" if (times := times_foreign(row)) is None else f"{times:.1f}",
        )
        for row in report.throughput
    ]
    columns = (
        "shape",
        "requests/s",
        "outputs/s",
        "engine + caller",
        "core alone",
        "floor's requests/s",
        "× floor",
        "× vLLM-Omni",
    )
    return Sheet(
        "Under load (stages × outputs of a stage × requests at once); processor time of a request in µs", columns, rows
    )


def _others(report: Report) -> Sheet:
    latency, memory = report.latency, report.memory
    rows = [
        ("latency at 3x1x1", f"{_spread(latency.request_us)} µs", f"{LATENCY_US:,.0f} µs"),
        ("the bare crossing, task to task and back", f"{_spread(latency.crossing_us)} µs", ""),
        ("task to callback and back", f"{_spread(latency.callback_us)} µs", ""),
        ("the bare floor at 3x1x1", f"{_spread(latency.floor_us)} µs", ""),
    ]
    for idle in report.idle:
        name = f"idle, {idle.open_requests:,} open requests"
        shares = "event-driven {:.2%}, polling {:.1%} of a core".format(*IDLE_CPU_SHARES)
        value = f"{idle.cpu_share:.3%} of a core"
        if idle.wakeups_per_s is not None:
            value += f", {idle.wakeups_per_s:.1f} wake-ups/s"
        rows.append((name, value, "" if idle.open_requests else shares))
    rows.append(("memory of an open request", f"{memory.bytes_per_request:,.0f} bytes", ""))
    rows.append(("left of each after its end", f"{memory.left_bytes_per_request:,.0f} bytes", ""))
    for growth in report.growth:
        at = ", ".join(f"{count:,}" for count in growth.at)
        costs = ", ".join(f"{cost:.1f}" for cost in growth.us_per_output)
        rows.append((f"µs of an output of {growth.shape} at {at} {growth.of}", costs, ""))
    call = report.hanging_call
    rows.append((f"requests/s at {call.shape}, no control call", _spread(call.requests_per_s), ""))
    rows.append((f"the same while a call hangs at {call.named}", _spread(call.hanging_requests_per_s), ""))
    rows.append(("that call ends after its limit by", f"{_spread(call.late_ms, 1)} ms", ""))
    return Sheet("Otherwise", ("what", "podium", "vLLM-Omni"), rows)


def _goals(report: Report) -> Sheet:
    rows = []
    for goal in report.goals():
        at_least = goal.aim > goal.least
        wanted = f"{goal.aim:g}, at least {goal.least:g}" if at_least else f"at most {goal.aim:g}"
        rows.append((goal.name, f"{goal.value:.2f}", wanted, goal.verdict.value))
    return Sheet("Goals", ("what", "is", "aim", "verdict"), rows)


def _spread(values: Spread, digits: int = 0) -> str:
    return f"{values.median:,.{digits}f} ({values.lowest:,.{digits}f}–{values.highest:,.{digits}f})"
