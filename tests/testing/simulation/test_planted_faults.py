"""The checkers see: each fault that is planted in a good engine is reported, by what it did and not by a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TypeAlias

import msgspec
import pytest

from podium.core.effects import (
    Effect,
    EmitOutput,
    EndInput,
    EndRequest,
    FeedJob,
    ReplyAbort,
    ReplyControl,
    StartJob,
    StopJob,
)
from podium.core.events import Event, StageProduced, StageStopped
from podium.core.orchestrator import Orchestrator
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.testing.simulation import run_seed

SEEDS = range(80)

Change: TypeAlias = Callable[[Effect, Iterator[int]], Sequence[Effect]]
"""What comes out instead of an effect; the numbers count the effects that it looks at."""


class PlantedCore:
    """Stands in front of a core, because a compiled one takes no patch."""

    def __init__(self, core: Orchestrator, change: Change, takes: Callable[[Event], bool] = lambda _: True) -> None:
        self._core = core
        self._change = change
        self._takes = takes
        self._numbers = count()

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)

    def step(self, events: Sequence[Event], now: float) -> list[Effect]:
        effects = self._core.step([event for event in events if self._takes(event)], now)
        return [changed for effect in effects for changed in self._change(effect, self._numbers)]


def in_core(change: Change) -> Callable[[AsyncOmniEngine], None]:
    """Change what the core answers; observers see it so."""
    return lambda engine: vars(engine._host).update(_core=PlantedCore(engine._core, change))


def before_core(takes: Callable[[Event], bool]) -> Callable[[AsyncOmniEngine], None]:
    """Keep events from the core, although everybody else believes that it has them."""

    def keep(effect: Effect, _: Iterator[int]) -> Sequence[Effect]:
        return (effect,)

    return lambda engine: vars(engine._host).update(_core=PlantedCore(engine._core, keep, takes))


def in_outlet(change: Change) -> Callable[[AsyncOmniEngine], None]:
    """Change what callers get, after every observer saw that it was right."""

    def plant(engine: AsyncOmniEngine) -> None:
        outlet, numbers = engine._outlet, count()
        deliver = outlet.deliver

        def deliver_changed(effect: EmitOutput | EndRequest | ReplyAbort) -> None:
            for changed in change(effect, numbers):
                deliver(changed)  # type: ignore[arg-type]

        vars(outlet)["deliver"] = deliver_changed

    return plant


def third(kind: type[Effect], instead: Callable[[Effect], Sequence[Effect]]) -> Change:
    """Only the third effect of a kind is changed."""

    def change(effect: Effect, numbers: Iterator[int]) -> Sequence[Effect]:
        return instead(effect) if isinstance(effect, kind) and next(numbers) == 2 else (effect,)

    return change


def shifted(effect: Effect) -> Sequence[Effect]:
    assert isinstance(effect, EmitOutput)
    return (msgspec.structs.replace(effect, sequence=effect.sequence + 1),)


def of_somebody_else(effect: Effect) -> Sequence[Effect]:
    assert isinstance(effect, EmitOutput)
    return (msgspec.structs.replace(effect, payloads=tuple("99/a#99/0" for _ in effect.payloads)),)


def without_payloads(effect: Effect) -> Sequence[Effect]:
    assert isinstance(effect, FeedJob)
    return ()


def reordered(effect: Effect) -> Sequence[Effect]:
    assert isinstance(effect, StartJob)
    inputs = [msgspec.structs.replace(one, payloads=one.payloads[::-1]) for one in effect.inputs]
    return (msgspec.structs.replace(effect, inputs=tuple(inputs)),)


def every_start_reordered(effect: Effect, _: Iterator[int]) -> Sequence[Effect]:
    return reordered(effect) if isinstance(effect, StartJob) else (effect,)


def without_stops(effect: Effect, _: Iterator[int]) -> Sequence[Effect]:
    return () if isinstance(effect, StopJob) else (effect,)


def leak_stream(engine: AsyncOmniEngine) -> None:
    """A stream is never forgotten."""
    streams = engine._outlet._streams
    register = engine._outlet.register

    def register_twice(stream: object) -> None:
        register(stream)  # type: ignore[arg-type]
        streams[-1] = streams[max(streams)]

    vars(engine._outlet)["register"] = register_twice


def leak_call(engine: AsyncOmniEngine) -> None:
    """The record of a call is never forgotten."""
    engine._router.open()


PLANTED = {
    "an output is dropped on the way to its caller": (in_outlet(third(EmitOutput, lambda _: ())), "got"),
    "an output is delivered twice": (in_outlet(third(EmitOutput, lambda one: (one, one))), "got"),
    "an output has the wrong number": (in_outlet(third(EmitOutput, shifted)), "got the numbers"),
    "an output is somebody else's": (in_outlet(third(EmitOutput, of_somebody_else)), "but the stage made"),
    "a terminal is forgotten": (in_outlet(third(EndRequest, lambda _: ())), ""),
    "the core forgets a terminal": (in_core(third(EndRequest, lambda _: ())), "no terminal"),
    "the core ends a request twice": (in_core(third(EndRequest, lambda one: (one, one))), "a second terminal"),
    "the core drops an output": (in_core(third(EmitOutput, lambda _: ())), "a gap, or a repetition"),
    "the core drops a piece of input": (in_core(third(FeedJob, without_payloads)), "of '"),
    "the core feeds twice": (in_core(third(FeedJob, lambda one: (one, one))), "input with a gap, or twice"),
    "the core gives input in the wrong order": (in_core(every_start_reordered), "of '"),
    "the core starts a job twice": (in_core(third(StartJob, lambda one: (one, one))), "a second start"),
    "the core forgets the end of an input": (in_core(third(EndInput, lambda _: ())), "failed for no reason"),
    "the core forgets to stop a job": (in_core(third(StopJob, lambda _: ())), "worked on after its request had ended"),
    "the core forgets every stop": (in_core(without_stops), "was given up for no reason"),
    "the core does not answer an abort": (in_core(third(ReplyAbort, lambda _: ())), "no answer to abort"),
    "the core does not answer a control call": (
        in_core(third(ReplyControl, lambda _: ())),
        "no answer to control call",
    ),
    "the core answers a control call twice": (in_core(third(ReplyControl, lambda one: (one, one))), "a second answer"),
    "a stop is never heard of": (before_core(lambda event: not isinstance(event, StageStopped)), "was given up"),
    "a chunk is never heard of": (before_core(lambda event: not isinstance(event, StageProduced)), ""),
    "a stream is leaked": (leak_stream, "streams are still known"),
    "a call is leaked": (leak_call, "calls are still open"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_reported(name: str) -> None:
    plant, words = PLANTED[name]
    reports = (run_seed(seed, plant=plant) for seed in SEEDS)
    found = (violation for report in reports for violation in report.violations if words in violation)
    assert next(found, None) is not None, f"nothing was seen of it in {len(SEEDS)} worlds"


def test_nothing_is_reported_where_nothing_is_planted() -> None:
    assert [report.violations for report in map(run_seed, SEEDS) if report.violations] == []
