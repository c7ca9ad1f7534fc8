"""Who watches the loop: it counts, passes on, and never brings the loop down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from podium.core.effects import Effect, ReleasePayloads
from podium.core.events import Event, RequestCancelled
from podium.core.graph import Graph
from podium.core.orchestrator import Orchestrator
from podium.ports.environment import Observer
from podium.runtime.observer import LoopObserver
from podium.testing.virtual_clock import VirtualClock
from tests.support.core_world import make_stage

CORE = Orchestrator(Graph([make_stage("solo", output="text")]))
EVENT = RequestCancelled(1, "r1")


class Notes:
    """An observer that notes what it hears, and raises at one of the calls."""

    def __init__(self, raises_at: str = "") -> None:
        self.heard: list[str] = []
        self._raises_at = raises_at

    def __repr__(self) -> str:
        return "<Notes>"

    def on_start(self, core: Orchestrator) -> None:
        self._note("start")

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        self._note(f"step {len(events)} {now:g} {len(effects)}")

    def on_cost(self, events: int, seconds: float) -> None:
        self._note(f"cost {events} {seconds:g}")

    def on_end(self) -> None:
        self._note("end")

    def _note(self, call: str) -> None:
        self.heard.append(call)
        if self._raises_at and call.startswith(self._raises_at):
            raise LookupError("told to raise")


def whole_life(observer: LoopObserver) -> None:
    observer.on_start(CORE)
    observer.on_step([EVENT], 2.0, [])
    observer.on_cost(1, 0.5)
    observer.on_end()


def test_it_counts_steps_and_what_they_cost() -> None:
    clock = VirtualClock(10.0)
    observer = LoopObserver(clock)
    whole_life(observer)
    observer.on_step([EVENT] * 3, 12.0, [ReleasePayloads(("x",))] * 2)
    observer.on_cost(3, 0.5)
    observer.on_step([], 14.0, [])
    observer.on_cost(0, 0.25)
    clock.advance(5.0)
    figures = observer.statistics()
    assert (figures.steps, figures.events, figures.effects) == (3, 4, 2)
    assert figures.busy_s == 1.25
    assert figures.largest_batch == 3
    assert figures.idle_s == 1.0
    assert figures.us_per_event == pytest.approx(1.25e6 / 4)
    assert 0 < figures.recent_us_per_event < 5e5
    assert repr(observer).startswith("<LoopObserver 3 steps, ")


def test_nothing_happened_costs_nothing() -> None:
    figures = LoopObserver(VirtualClock()).statistics()
    assert (figures.us_per_event, figures.recent_us_per_event, figures.idle_s) == (0.0, 0.0, 0.0)


def test_everybody_hears_everything() -> None:
    one, other = Notes(), Notes()
    observers: list[Observer] = [one, other]
    whole_life(LoopObserver(VirtualClock(), observers))
    assert one.heard == other.heard == ["start", "step 1 2 0", "cost 1 0.5", "end"]


@pytest.mark.rule("ORCH-INV-203")
@pytest.mark.parametrize("call", ["start", "step", "cost", "end"])
def test_one_that_raises_hears_no_more_and_hurts_nobody(call: str, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Notes(raises_at=call), Notes()
    observer = LoopObserver(VirtualClock(), [bad, good])
    whole_life(observer)
    assert bad.heard[-1].startswith(call)
    assert len(good.heard) == 4
    assert observer.statistics().steps == 1
    assert caplog.text.count("<Notes> watches the engine no more: it raised") == 1
