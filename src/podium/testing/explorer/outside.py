"""One state of an explored world: a core, the model that judges it, and what replicas and callers have said so far.

`State.take` lets one thing happen. What can happen is told by the world's actors; nothing is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from podium import compiled
from podium.core.admission import EngineLimits
from podium.core.effects import Effect, StartJob
from podium.core.events import Event, ReplicaJoined, StageProduced, StageStarted
from podium.core.graph import Graph, Stage
from podium.core.identity import JobKey, ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.core.statistics import Statistics
from podium.testing.explorer.canonical import digest_of
from podium.testing.explorer.copies import copy_of
from podium.testing.model import Model

DEFAULT_LIMITS = EngineLimits()


class Core(Protocol):
    """What is explored: an `Orchestrator`, or something that stands in front of one."""

    def step(self, events: Sequence[Event], now: float) -> list[Effect]:
        """Handle events, and say what to do."""
        ...

    def next_deadline(self) -> float | None:
        """When to be called next."""
        ...

    def statistics(self) -> Statistics:
        """How full the tables are."""
        ...


MakeCore = Callable[[Graph, EngineLimits], Core]


class Actor(Protocol):
    """Somebody outside of the core. `times` is how often it can do something in all; None where that ends by itself."""

    @property
    def times(self) -> int | None:
        """How often it acts at most."""
        ...

    def options(self, state: State, used: int) -> Iterable[Event | float]:
        """All that it can do in a state: events, or a time until which nothing happens. `used` is how often it did."""
        ...


@dataclass(frozen=True, kw_only=True)
class World:
    """What is explored: a pipeline, its replicas, and who does what. `bound` is how many states there are at most."""

    name: str
    about: str
    stages: tuple[Stage, ...]
    actors: tuple[Actor, ...]
    bound: int
    replicas: int = 1
    limits: EngineLimits = DEFAULT_LIMITS
    keeps_former: bool = False

    def joining(self) -> Iterator[ReplicaJoined]:
        """The events with which every exploration of it begins."""
        for stage in self.stages:
            for slot in range(self.replicas):
                yield ReplicaJoined(ReplicaKey(stage.name, slot, 0))


class Step(NamedTuple):
    """One thing that happened; None when only time passed."""

    now: float
    event: Event | None


class Option(NamedTuple):
    """One thing that can happen."""

    actor: int
    what: Event | float


@dataclass(slots=True)
class Told:
    """What a replica has told of one job: whether it started, the numbers of its chunks as bits, whether it ended."""

    replica: ReplicaKey
    has_started: bool = False
    chunks: int = 0
    has_ended: bool = False


class State:
    """A world at one moment."""

    __slots__ = ("core", "former", "graph", "model", "now", "told", "used", "world")

    def __init__(self, world: World, graph: Graph, make_core: MakeCore) -> None:
        self.world = world
        self.graph = graph
        self.core: Core = make_core(graph, world.limits)
        self.model = Model(graph.stages, world.limits)
        self.now = 0.0
        self.told: dict[JobKey, Told] = {}
        self.former: dict[JobKey, ReplicaKey] = {}
        """Where jobs were that are over, for worlds in which somebody repeats what they said."""
        self.used = [0] * len(world.actors)

    @classmethod
    def first(cls, world: World, make_core: MakeCore = Orchestrator) -> State:
        """The world before anything happens."""
        return cls(world, Graph(world.stages, f"world '{world.name}'"), make_core)

    def options(self) -> list[Option]:
        """Everything that can happen now."""
        used = self.used
        return [
            Option(index, what)
            for index, actor in enumerate(self.world.actors)
            if actor.times is None or used[index] < actor.times
            for what in actor.options(self, used[index])
        ]

    def take(self, option: Option) -> None:
        """Let one thing happen. Whatever is wrong with what the core does about it is raised."""
        if self.world.actors[option.actor].times is not None:
            self.used[option.actor] += 1
        if isinstance(option.what, float):
            self.tell(None, option.what)
        else:
            self.tell(option.what, self.now)

    def tell(self, event: Event | None, now: float) -> None:
        """Tell the core, and judge what it answers."""
        self.now = now
        effects = self.core.step(() if event is None else (event,), now)
        self.model.observe(event, effects, now, self.core.statistics())
        self._note(event, effects)
        due = self.core.next_deadline()
        assert due is None or due > now, "something is overdue after a step"
        is_something_awaited = self.model.tickets or self.model.jobs or self.model.calls or self.model.control.calls
        assert due is not None or not is_something_awaited, "something is awaited without a limit"

    def digest(self) -> bytes:
        """A short name: states with the same one have the same future."""
        return digest_of(self.now, self.core, self.model, self.told, self.former, self.used)

    def copy(self, steps: Callable[[], Sequence[Step]], make_core: MakeCore) -> State:
        """The same moment once more. `steps` led here; a core that cannot be copied is made anew and told them."""
        copied = object.__new__(State)
        copied.world, copied.graph, copied.now = self.world, self.graph, self.now
        copied.used = self.used.copy()
        copied.told, copied.former = copy_of(self.told), self.former.copy()
        copied.model = copy_of(self.model)
        copied.core = self.copy_core(steps, make_core)
        return copied

    def copy_core(self, steps: Callable[[], Sequence[Step]], make_core: MakeCore) -> Core:
        """The core of the same moment once more."""
        if not compiled.modules():
            return copy_of(self.core)
        core = make_core(self.graph, self.world.limits)
        for now, event in steps():
            core.step(() if event is None else (event,), now)
        return core

    def _note(self, event: Event | None, effects: Sequence[Effect]) -> None:
        told, jobs = self.told, self.model.jobs
        match event:
            case StageStarted(job=key) if key in told:
                told[key].has_started = True
            case StageProduced():
                for output in event.outputs:
                    if output.job in told:
                        for number in range(output.sequence, output.sequence + len(output.payloads)):
                            told[output.job].chunks |= 1 << number
                        told[output.job].has_started = True
                        told[output.job].has_ended |= output.finish is not None
            case _:
                pass
        for effect in effects:
            if isinstance(effect, StartJob):
                told[effect.job] = Told(effect.replica)
        for key in [key for key in told if key not in jobs]:
            former = told.pop(key)
            if self.world.keeps_former:
                self.former[key] = former.replica
