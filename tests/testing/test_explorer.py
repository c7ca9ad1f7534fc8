"""The explorer: it finds every state once, merges only what has the same future, and sees faults that are planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from podium import compiled
from podium.core import ending, forwarding
from podium.core.admission import EngineLimits
from podium.core.effects import (
    Effect,
    EmitOutput,
    EndInput,
    EndRequest,
    FeedJob,
    ReleasePayloads,
    ReplyAbort,
    ReplyControl,
    StartJob,
    StopJob,
)
from podium.core.events import Event, FinishReason
from podium.core.graph import EmptyPolicy, Graph
from podium.core.operations import Pause, PauseMode, Resume, Sleep
from podium.core.orchestrator import Orchestrator
from podium.core.records import SourceBuffer
from podium.core.stage_pool import StagePool
from podium.core.statistics import Statistics
from podium.runtime.journal import replay
from podium.testing.explorer.actors import (
    Aborts,
    AnswersCalls,
    Appends,
    Controls,
    Fails,
    FailsToStop,
    LosesReplicas,
    Repeats,
    ReplicasRejoin,
    SpeaksLate,
    Stops,
    Submits,
    TimePasses,
    Works,
)
from podium.testing.explorer.campaign import explore_all
from podium.testing.explorer.outside import MakeCore, Option, State, Step, World
from podium.testing.explorer.search import Exploration, Violation, describe, explore
from podium.testing.explorer.shapes import ONE_AT_A_TIME, complete, stage, streaming
from podium.testing.explorer.traces import tell, write_journal
from podium.testing.explorer.worlds import DEEP_WORLDS, WORLDS

MOST_STEPS = 12
"""A shortest way to a planted fault has no more steps, the joining of replicas aside."""

FED = World(
    name="fed",
    about="two stages, streaming, two chunks; nothing goes wrong",
    stages=(stage("a", output="text"), stage("b", streaming("a"), output="speech")),
    actors=(Submits(ticket=1, request_id="r1"), Works(stage="a", chunks=2), Works(stage="b", chunks=1)),
    bound=100,
)
SMALL = World(
    name="small",
    about="two stages, streaming; everything can go wrong once",
    stages=(stage("a", output="text", rerun=True), stage("b", streaming("a"), output="speech", limits=ONE_AT_A_TIME)),
    actors=(
        Submits(ticket=1, request_id="r1"),
        Works(stage="a", chunks=1, tells_start=True),
        Works(stage="b", chunks=1),
        Aborts(request_ids=("r1",), timeout_s=3.0),
        Stops(),
        FailsToStop(),
        TimePasses(),
    ),
    bound=2_000,
)
PAIR = World(
    name="pair",
    about="two requests for one credit, replicas that die and come back",
    stages=(stage("a", limits=ONE_AT_A_TIME, rerun=True), stage("b", complete("a"), output="out")),
    actors=(
        Submits(ticket=1, request_id="r1"),
        Submits(ticket=2, request_id="r2", priority=-1),
        Works(stage="a", chunks=1, window=2),
        Works(stage="b", chunks=1),
        LosesReplicas(stage="a"),
        ReplicasRejoin(stage="a"),
        Stops(),
    ),
    bound=2_000,
)
ODD = World(
    name="odd",
    about="open input, a held gate, late words, a drain and a rejected input",
    stages=(stage("a", output="out", on_empty=EmptyPolicy.ERROR),),
    keeps_former=True,
    actors=(
        Submits(ticket=1, request_id="r1", input_open=True, deadline_s=9.0),
        Appends(ticket=1),
        Works(stage="a", chunks=1, finishes_empty=True, reasons=(FinishReason.STOP, FinishReason.ABORT)),
        Repeats(stage="a"),
        Fails(rejects=True),
        LosesReplicas(stage="a", drains=True),
        Controls(operation=Pause(PauseMode.KEEP), stages=("a",), call=1),
        AnswersCalls(),
        SpeaksLate(),
        Stops(),
    ),
    bound=2_000,
)


CONTROLLED = World(
    name="controlled",
    about="a stage that stands still, sleeps, wakes and goes on; a replica that dies meanwhile",
    stages=(stage("a", output="out", rerun=True),),
    replicas=2,
    actors=(
        Submits(ticket=1, request_id="r1"),
        Works(stage="a", chunks=1),
        Controls(operation=Pause(PauseMode.KEEP), stages=("a",), call=1),
        Controls(operation=Sleep(1, {"a": ("kv",)}), stages=("a",), call=10, timeout_s=3.0),
        Controls(operation=Resume(), stages=("a",), call=20),
        AnswersCalls(),
        AnswersCalls(fails=True, times=1),
        LosesReplicas(stage="a"),
        TimePasses(times=1),
    ),
    bound=10_000,
)


class FaultyCore:
    """A core whose answers are spoiled; it stands in front of a real one, which a compiled one allows, too."""

    def __init__(self, fault: str, graph: Graph, limits: EngineLimits) -> None:
        self._fault = fault
        self._core = Orchestrator(graph, limits)

    def step(self, events: Sequence[Event], now: float) -> list[Effect]:
        return FAULTS[self._fault](self._core.step(events, now))

    def next_deadline(self) -> float | None:
        return None if self._fault == "no limits" else self._core.next_deadline()

    def statistics(self) -> Statistics:
        return self._core.statistics()


def without(kind: type) -> Callable[[list[Effect]], list[Effect]]:
    return lambda effects: [effect for effect in effects if not isinstance(effect, kind)]


def twice(kind: type) -> Callable[[list[Effect]], list[Effect]]:
    return lambda effects: [same for effect in effects for same in [effect] * (1 + isinstance(effect, kind))]


def numbered_from_one(effects: list[Effect]) -> list[Effect]:
    return [
        msgspec.structs.replace(effect, sequence=effect.sequence + 1) if isinstance(effect, EmitOutput) else effect
        for effect in effects
    ]


def ends_before_the_last_output(effects: list[Effect]) -> list[Effect]:
    return sorted(effects, key=lambda effect: isinstance(effect, EmitOutput))


FAULTS: dict[str, Callable[[list[Effect]], list[Effect]]] = {
    "no stops": without(StopJob),
    "no terminals": without(EndRequest),
    "two terminals": twice(EndRequest),
    "no starts": without(StartJob),
    "starts twice": twice(StartJob),
    "feeds twice": twice(FeedJob),
    "no ends of input": without(EndInput),
    "ends of input twice": twice(EndInput),
    "aborts unanswered": without(ReplyAbort),
    "aborts answered twice": twice(ReplyAbort),
    "outputs lost": without(EmitOutput),
    "outputs twice": twice(EmitOutput),
    "outputs numbered from one": numbered_from_one,
    "outputs after the end": ends_before_the_last_output,
    "payloads kept": without(ReleasePayloads),
    "payloads released twice": twice(ReleasePayloads),
    "control calls unanswered": without(ReplyControl),
    "control calls answered twice": twice(ReplyControl),
    "no limits": lambda effects: effects,
}


NOT_IN_A_JOURNAL = {"no limits", "control calls unanswered"}
"""What shows in no step that has events or effects, which are those that a journal keeps."""


@pytest.mark.parametrize("world", [SMALL, PAIR, ODD], ids=lambda world: world.name)
@pytest.mark.rule("ORCH-INV-100", "ORCH-INV-101", "ORCH-INV-103", "ORCH-INV-118", "ORCH-INV-204", "ORCH-INV-213")
def test_a_world_is_exhausted_without_a_violation(world: World) -> None:
    found = explore(world)

    assert found.violation is None
    assert found.exhausted
    assert 50 < found.states <= world.bound < found.transitions * 10


def test_a_search_ends_at_its_bound() -> None:
    found = explore(SMALL, max_states=20)

    assert (found.exhausted, found.violation, found.states > 20) == (False, None, True)


@pytest.mark.parametrize("world", [SMALL, PAIR, ODD, CONTROLLED], ids=lambda world: world.name)
def test_states_that_are_merged_have_the_same_future(world: World) -> None:
    """Whatever can happen in one can happen in the other, and leads to the same state again."""
    seen: dict[bytes, Counter[tuple[str, bytes]]] = {}
    merged = 0
    first, steps = begin(world)
    waiting = [(first, steps)]
    while waiting and len(seen) < 200:
        state, steps = waiting.pop(0)
        digest = state.digest()
        reached = [follow(state, steps, option) for option in state.options()]
        future = Counter((name, after.digest()) for name, after, _ in reached)
        if digest in seen:
            merged += 1
            assert future == seen[digest], tell(tuple(steps))
        else:
            seen[digest] = future
            waiting += [(after, [*steps, step]) for _, after, step in reached]
    assert merged > 50


def begin(world: World) -> tuple[State, list[Step]]:
    state = State.first(world, Orchestrator)
    steps = []
    for event in world.joining():
        state.tell(event, 0.0)
        steps.append(Step(0.0, event))
    return state, steps


def follow(state: State, steps: list[Step], option: Option) -> tuple[str, State, Step]:
    """One option taken on a copy: what it is called, what it leads to, and the step."""
    after = state.copy(lambda: steps, Orchestrator)
    after.take(option)
    return type(option.what).__name__, after, step_of(option, after)


def step_of(option: Option, after: State) -> Step:
    return Step(after.now, None if isinstance(option.what, float) else option.what)


def test_a_copy_has_a_life_of_its_own() -> None:
    state, steps = begin(SMALL)
    before = state.digest()
    copied = state.copy(lambda: steps, Orchestrator)
    assert copied.digest() == before

    copied.take(copied.options()[0])
    assert copied.digest() != before
    assert state.digest() == before
    assert state.core.statistics().counters.submitted == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, tmp_path: Path) -> None:
    make_core: MakeCore = lambda graph, limits: FaultyCore(fault, graph, limits)  # noqa: E731 - a name for its type
    world, violation = first_violation(make_core)

    assert len(violation.steps) - len(world.stages) <= MOST_STEPS, "\n".join(tell(violation.steps))
    assert violation.what
    write_journal(tmp_path / "fault.journal", world, violation, make_core)
    report = replay(tmp_path / "fault.journal")
    assert report.events == sum(step.event is not None for step in violation.steps)
    assert report.is_same == (fault in NOT_IN_A_JOURNAL), "the sound core answers otherwise"


def first_violation(make_core: MakeCore) -> tuple[World, Violation]:
    """The first of the small worlds in which the fault shows."""
    for world in (FED, SMALL, PAIR, ODD, CONTROLLED):
        violation = explore(world, make_core=make_core).violation
        if violation is not None:
            return world, violation
    raise AssertionError("the fault was not seen")


def credits_of_two(self: StagePool) -> object:
    return next(iter(self.replicas.values()), None)


PATCHES: dict[str, tuple[object, str, object]] = {
    "credits are not counted": (StagePool, "_least_loaded", credits_of_two),
    "what was never used is not given back": (SourceBuffer, "drop", lambda _buffer: []),
    "an abort is never settled": (ending, "settle", lambda _state, _request: None),
    "a start is not noted": (forwarding, "note_start", lambda _state, _job: None),
    "a stop is not waited for": (ending, "stop_job", lambda _state, _job: None),
    "those without a replica are forgotten": (ending, "fail_stranded", lambda _state, _pool: None),
    "a running job has no limit": (forwarding, "_await_output", lambda state, job: state.end_wait(job)),
}


@pytest.mark.skipif(bool(compiled.modules()), reason="a compiled core takes no patch")
@pytest.mark.parametrize("patch", PATCHES)
def test_faults_inside_the_core_are_seen(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, replacement = PATCHES[patch]
    monkeypatch.setattr(owner, name, replacement)
    world, violation = first_violation(Orchestrator)

    assert len(violation.steps) - len(world.stages) <= MOST_STEPS, "\n".join(tell(violation.steps))


def test_the_way_to_a_violation_is_the_shortest() -> None:
    """Without stops, an abort of a job that runs is the first thing that shows it: submit, and abort."""
    violation = explore(SMALL, make_core=lambda graph, limits: FaultyCore("no stops", graph, limits)).violation

    assert violation is not None
    assert [type(step.event).__name__ for step in violation.steps[2:]] == ["RequestSubmitted", "AbortRequested"]
    assert tell(violation.steps)[-1].endswith("AbortRequested call=1 request_ids=('r1',) level=stopped deadline=3.0")


def test_a_violation_of_a_sound_core_replays_with_the_same_effects(tmp_path: Path) -> None:
    state, steps = begin(SMALL)
    for _ in range(5):
        option = state.options()[0]
        state.take(option)
        steps.append(step_of(option, state))
    write_journal(tmp_path / "way.journal", SMALL, Violation("", in_silence=False, steps=tuple(steps)))

    assert replay(tmp_path / "way.journal").is_same


def test_what_was_wrong_is_told_in_words() -> None:
    number = 1
    with pytest.raises(AssertionError) as without_text:
        exec(compile("assert number == 2", "nowhere", "exec"), {"number": number})

    assert describe(AssertionError("a gap")) == "a gap"
    assert describe(KeyError("r1")) == "KeyError: 'r1'"
    assert describe(without_text.value) == " (<module>)"


def test_several_worlds_are_explored_at_once() -> None:
    found: dict[str, Exploration] = {one.world: one for one in explore_all([FED, SMALL], processes=2)}

    assert {name: one.exhausted for name, one in found.items()} == {"fed": True, "small": True}
    assert found["fed"].states == explore(FED).states


def test_the_worlds_are_named_and_bounded() -> None:
    assert len({world.name for world in WORLDS}) == len(WORLDS) >= 12
    assert [world.name for world in DEEP_WORLDS] == [world.name for world in WORLDS]
    assert sum(world.bound for world in WORLDS) >= 200_000
    assert sum(world.bound for world in DEEP_WORLDS) >= 3_000_000
    for world in (*WORLDS, *DEEP_WORLDS):
        Graph(world.stages)
        assert 1 <= len(world.stages) <= 3
        assert len(world.about) > 20
