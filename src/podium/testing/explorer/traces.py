"""A way to a violation, for people and for `podium replay`: in words, and as a journal.

The journal has what the explored core answered, so a replay says whether another core answers the same.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from podium.core.effects import Effect
from podium.core.events import Event, StageProduced
from podium.core.graph import Graph
from podium.core.orchestrator import Orchestrator
from podium.runtime.journal import Journal
from podium.testing.explorer.outside import MakeCore, Step, World
from podium.testing.explorer.search import Violation


def write_journal(path: Path, world: World, violation: Violation, make_core: MakeCore = Orchestrator) -> None:
    """Write the steps of a violation to `path`; raises ConfigurationError when that is not possible.

    Where the last step raises, it is written without effects.
    """
    graph = Graph(world.stages)
    journal = Journal(path, keeps_payloads=True)
    journal.on_start(Orchestrator(graph, world.limits))
    core = make_core(graph, world.limits)
    try:
        for now, event in violation.steps:
            events = () if event is None else (event,)
            effects: list[Effect] = []
            try:
                effects = core.step(events, now)
            except Exception:  # noqa: BLE001 - it may be this that is wrong, and the events are what is to be kept
                break
            finally:
                journal.on_step(events, now, effects)
    finally:
        journal.on_end()


def tell(steps: tuple[Step, ...]) -> list[str]:
    """One line for each step."""
    return [f"{number:3}  at {step.now:g} s  {tell_event(step.event)}" for number, step in enumerate(steps, 1)]


def tell_event(event: Event | None) -> str:
    """An event in a few words; None is the passing of time."""
    match event:
        case None:
            return "time passes"
        case StageProduced():
            outputs = [
                f"{output.job} {output.sequence}+{len(output.payloads)}"
                + (f" [{output.finish.reason}]" if output.finish is not None else "")
                for output in event.outputs
            ]
            return f"StageProduced {event.replica} {', '.join(outputs)}"
        case _:
            words = [
                f"{name}={value}"
                for name, value in zip(event.__struct_fields__, msgspec.structs.astuple(event), strict=True)
                if value not in (None, (), {}, 0, False) and name not in {"error", "prompt", "partial", "params"}
            ]
            return f"{type(event).__name__} {' '.join(words)}"
