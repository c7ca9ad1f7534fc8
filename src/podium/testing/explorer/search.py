"""Explores a world: every order in which its actors can act, from every state that any of these orders leads to.

Depth first. States that were met are not entered again, and only digests of them are kept. When something is wrong, the
world is explored once more, breadth first, for the shortest way to it.
"""

from __future__ import annotations

import gc
import linecache
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

import msgspec

from podium.core.orchestrator import Orchestrator
from podium.testing.explorer.outside import MakeCore, Option, State, Step, World
from podium.testing.explorer.silence import check_silence

_ALLOCATIONS_BEFORE_COLLECTION = 100_000


class Order(StrEnum):
    """Which state is entered next: the newest, which takes little memory, or the oldest, which finds shortest ways."""

    DEPTH_FIRST = "depth first"
    BREADTH_FIRST = "breadth first"


class Violation(msgspec.Struct, frozen=True):
    """What was wrong, and the steps that led there; `in_silence` says that it came later, when nobody said any more."""

    what: str
    in_silence: bool
    steps: tuple[Step, ...]


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one world. `transitions` are the events that were tried, in all states together."""

    world: str
    states: int
    transitions: int
    longest: int
    exhausted: bool
    seconds: float
    violation: Violation | None = None


@dataclass(slots=True)
class _Node:
    """A state that is still to be entered, and how it was reached."""

    state: State
    parent: _Node | None
    step: Step | None
    depth: int

    def steps(self) -> list[Step]:
        """From the beginning to here."""
        steps: list[Step] = []
        node: _Node | None = self
        while node is not None:
            if node.step is not None:
                steps.append(node.step)
            node = node.parent
        return steps[::-1]


def explore(
    world: World,
    *,
    max_states: int | None = None,
    make_core: MakeCore = Orchestrator,
    on_progress: Callable[[int], None] | None = None,
) -> Exploration:
    """Explore `world` up to its bound, or to `max_states`. `on_progress` is told how many states there are so far."""
    if not __debug__:
        raise RuntimeError("the explorer judges with assert statements; run it without -O")
    limit = world.bound if max_states is None else max_states
    with _rare_collections():
        found = _Search(world, make_core, Order.DEPTH_FIRST, limit, on_progress).run()
        if found.violation is None:
            return found
        shortest = _Search(world, make_core, Order.BREADTH_FIRST, limit, None).run()
    return msgspec.structs.replace(found, violation=shortest.violation or found.violation)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """States are full of cycles and live for a moment: looking for garbage after every few of them takes long."""
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_BEFORE_COLLECTION, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Search:
    """One search, until there is nothing left, or something is wrong, or there are too many states."""

    def __init__(
        self, world: World, make_core: MakeCore, order: Order, limit: int, on_progress: Callable[[int], None] | None
    ) -> None:
        self.world = world
        self.make_core = make_core
        self.order = order
        self.limit = limit
        self.on_progress = on_progress
        self.seen: set[bytes] = set()
        self.frontier: deque[_Node] = deque()
        self.transitions = 0
        self.longest = 0
        self.violation: Violation | None = None

    def run(self) -> Exploration:
        """Search, and say what came of it."""
        began = time.monotonic()
        self._begin()
        take = self.frontier.pop if self.order is Order.DEPTH_FIRST else self.frontier.popleft
        while self.frontier and self.violation is None and len(self.seen) <= self.limit:
            self._enter(take())
        return Exploration(
            world=self.world.name,
            states=len(self.seen),
            transitions=self.transitions,
            longest=self.longest,
            exhausted=not self.frontier and self.violation is None and len(self.seen) <= self.limit,
            seconds=time.monotonic() - began,
            violation=self.violation,
        )

    def _begin(self) -> None:
        state = State.first(self.world, self.make_core)
        node: _Node | None = None
        for event in self.world.joining():
            node = _Node(state, node, Step(0.0, event), 0)
            try:
                state.tell(event, 0.0)
            except Exception as error:  # noqa: BLE001 - whatever breaks in a core or a model is what is looked for
                self._note(error, node, in_silence=False)
                return
        self._meet(node or _Node(state, None, None, 0))

    def _enter(self, node: _Node) -> None:
        options = node.state.options()
        last = len(options) - 1
        for number, option in enumerate(options):
            state = node.state if number == last else node.state.copy(node.steps, self.make_core)
            reached = self._follow(node, state, option)
            if reached is None:
                return
            self._meet(reached)
            if self.violation is not None:
                return

    def _follow(self, node: _Node, state: State, option: Option) -> _Node | None:
        """What one option leads to; None when something is wrong with it."""
        self.transitions += 1
        now = option.what if isinstance(option.what, float) else state.now
        step = Step(now, None if isinstance(option.what, float) else option.what)
        reached = _Node(state, node, step, node.depth + 1)
        try:
            state.take(option)
        except Exception as error:  # noqa: BLE001 - whatever breaks in a core or a model is what is looked for
            self._note(error, reached, in_silence=False)
            return None
        return reached

    def _meet(self, node: _Node) -> None:
        digest = node.state.digest()
        if digest in self.seen:
            return
        self.seen.add(digest)
        self.longest = max(self.longest, node.depth)
        if self.on_progress is not None and len(self.seen) % 1000 == 0:
            self.on_progress(len(self.seen))
        self._check_silence(node)
        self.frontier.append(node)

    def _check_silence(self, node: _Node) -> None:
        core = node.state.copy_core(node.steps, self.make_core)
        steps: list[Step] = []
        try:
            check_silence(core, node.state.model, steps.append)
        except Exception as error:  # noqa: BLE001 - whatever breaks in a core or a model is what is looked for
            self._note(error, node, in_silence=True, further=steps)

    def _note(self, error: Exception, node: _Node, *, in_silence: bool, further: Sequence[Step] = ()) -> None:
        self.violation = Violation(describe(error), in_silence, (*node.steps(), *further))


def describe(error: Exception) -> str:
    """What was wrong, in words: the text of an assertion, or the condition itself where it has none."""
    text = str(error)
    if not isinstance(error, AssertionError):
        return f"{type(error).__name__}: {text}"
    return text or _condition_of(error.__traceback__)


def _condition_of(traceback: TracebackType | None) -> str:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "an assertion failed"
    code = traceback.tb_frame.f_code
    line = linecache.getline(code.co_filename, traceback.tb_lineno).strip()
    return f"{line.removeprefix('assert ')} ({code.co_name})"
