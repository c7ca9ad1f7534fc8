"""Writes docs/lifecycle.md from the tables of podium.core.lifecycle: `python -m tools.lifecycle_docs`.

A test compares the page with the tables, so that the page cannot be wrong for long.
"""

from __future__ import annotations

from pathlib import Path

from podium.core.lifecycle import (
    AT_REPLICA,
    BARRIER,
    FENCE,
    FORWARDING,
    GATE,
    JOBS,
    QUIET,
    REPLICAS,
    REQUESTS,
    SLEEPY,
    BarrierState,
    FenceState,
    Forwarding,
    GateState,
    JobState,
    ReplicaState,
    RequestState,
    State,
    Table,
    Trigger,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "lifecycle.md"

INTRODUCTION = """# States

Six things have a state: a request, each of its jobs, a replica, and for each stage its admission gate, its barrier and
its weights. State moves through the tables of `src/podium/core/lifecycle.py` and nowhere else; a pair that is not in a
table is a bug and raises `InternalError`. This page is made of those tables by `python -m tools.lifecycle_docs`.
"""

FORWARDED = {
    Forwarding.FORWARD: "what was made goes on to the next stages, and they hear of the end",
    Forwarding.ABORT: "the request is aborted: its other jobs are stopped, each final stage ends with `abort`",
    Forwarding.FAIL: "the request fails",
}


def diagram(table: Table[State, Trigger], first: State) -> str:
    """A table as a Mermaid state diagram; moves between the same two states share an arrow."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    for state, row in table.items():
        arrows: dict[State, list[str]] = {}
        for trigger, target in row.items():
            arrows.setdefault(target, []).append(trigger)
        lines += [f"    {state} --> {target}: {', '.join(triggers)}" for target, triggers in arrows.items()]
        if not row:
            lines.append(f"    {state} --> [*]")
    return "\n".join([*lines, "```"])


def moves(table: Table[State, Trigger]) -> str:
    """A table as one to read: a row for each state, with the moves that lead out of it."""
    rows = ["| In | on … to … |", "|---|---|"]
    for state, row in table.items():
        steps = ", ".join(f"{trigger} → `{target}`" for trigger, target in row.items())
        rows.append(f"| `{state}` | {steps or 'the end'} |")
    return "\n".join(rows)


def section(title: str, text: str, table: Table[State, Trigger], first: State) -> str:
    return f"## {title}\n\n{text}\n\n{diagram(table, first)}\n\n{moves(table)}\n"


def _listed(states: frozenset[State]) -> str:
    kind = type(next(iter(states)))
    return ", ".join(f"`{state}`" for state in kind if state in states)


def render() -> str:
    """The page."""
    held = _listed(AT_REPLICA)
    meanings = "\n".join(f"| `{reason}` | {FORWARDED[meaning]} |" for reason, meaning in FORWARDING.items())
    return "\n".join(
        [
            INTRODUCTION,
            section(
                "Requests",
                "A request is `held` until the gate lets it in. `aborting` lasts until each replica has confirmed its "
                "stop;\na request that completes, fails or is cancelled ends at once, whatever its replicas still do.",
                REQUESTS,
                RequestState.HELD,
            ),
            section(
                "Jobs",
                "A job is the work of one request at one stage. A replica has it, and a credit is taken for it, in\n"
                f"the states {held}. `requeue` is the one re-run\nthat a stage may allow after the loss of a replica.",
                JOBS,
                JobState.WAITING,
            ),
            "### What a finish means for the next stages\n",
            f"| Finish reason | Meaning |\n|---|---|\n{meanings}\n",
            section(
                "Replicas",
                "One life of a replica. What comes back after `gone` is another generation.",
                REPLICAS,
                ReplicaState.LIVE,
            ),
            section(
                "The admission gate",
                "One state for each stage; a request is let in when every stage that it needs is `open`. `closed` is\n"
                "for good.",
                GATE,
                GateState.OPEN,
            ),
            section(
                "The barrier of a stage",
                "Whether a stage works, is paused, or sleeps: see [control of the engine](controlling.md). A caller's\n"
                "wish leads into `closing`, `falling_asleep`, `waking` or `opening`. Out of these leads only what\n"
                "every live replica has confirmed, or another wish. No step runs or will start in\n"
                f"{_listed(QUIET)}; memory may be missing in\n{_listed(SLEEPY)}.",
                BARRIER,
                BarrierState.OPEN,
            ),
            section(
                "The weights of a stage",
                "While they are not `settled` the stage cannot be resumed, and jobs that stand still in it are not\n"
                "let go. `broken` means that an update failed somewhere: nobody knows what the weights are.",
                FENCE,
                FenceState.SETTLED,
            ),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(PAGE.relative_to(PAGE.parent.parent))
