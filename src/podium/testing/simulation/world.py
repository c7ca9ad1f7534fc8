"""One world from its seed to its end: an engine, its callers, what is done to it, and what is left of it.

It assembles and waits. What goes wrong is drawn elsewhere, and what is wrong is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from podium.core.graph import Graph, Modality, Stage
from podium.core.identity import ReplicaKey
from podium.core.statistics import Statistics
from podium.errors import EngineStoppedError, ErrorKind, StartError
from podium.ports.environment import Observer
from podium.ports.stage_backend import Placement
from podium.ports.stage_client import StageClient
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.parts import EngineParts, StageParts
from podium.testing.simulation import checkers
from podium.testing.simulation.actions import Action, draw_actions, shut_down
from podium.testing.simulation.callers import Caller, draw_uses
from podium.testing.simulation.control_actions import repair
from podium.testing.simulation.ledger import Ledger
from podium.testing.simulation.network import UnreliableClient
from podium.testing.simulation.payload_account import PayloadAccount
from podium.testing.simulation.pipelines import draw_stages
from podium.testing.simulation.scene import Scene
from podium.testing.simulation.stages import (
    ProcessorOptions,
    ReportingBackend,
    SimulatedBackend,
    SimulatedProcessor,
    WholeInputBackend,
)
from podium.testing.simulation.surroundings import Surroundings
from podium.testing.simulation.trace import Trace
from podium.testing.simulation.truth import Truth, Use
from podium.testing.simulation.virtual_loop import LoopHome, VirtualLoop
from podium.testing.simulation.weather import draw_weather
from podium.transports.in_process import in_process_client
from podium.transports.polling import PollingClient

Plant = Callable[[AsyncOmniEngine], None]
"""Does something to an engine before it starts; for tests that break one."""

KINDS = (SimulatedBackend, SimulatedBackend, WholeInputBackend, ReportingBackend)
POLL_S, TIGHT_POLL_S = 1.0, 0.05
EAGER = 0.06
"""How many do not wait for the engine's start."""
MOST_PAUSE_S = 20.0


class World:
    """What a seed stands for. `run` lives it, once."""

    def __init__(self, seed: int, trace: Trace, loop: VirtualLoop, observers: Sequence[Observer] = ()) -> None:
        draw = Random(seed)
        self._draw = draw
        self._loop = loop
        self.truth = Truth(trace)
        self.weather = draw_weather(draw)
        self.around = Surroundings(seed, self.weather, self.truth)
        self.graph = Graph(draw_stages(draw, self.weather))
        self._replicas = {name: draw.choice((1, 1, 2, 3)) for name in self.graph.stages}
        self._kinds: dict[str, type[SimulatedBackend]] = {name: draw.choice(KINDS) for name in self.graph.stages}
        self.truth.uses = draw_uses(draw, draw.choice((1, 2, 3, 5, 8, 16)))
        self._actions = draw_actions(draw, self.weather)
        self.backends: dict[ReplicaKey, SimulatedBackend] = {}
        self.ledger = Ledger()
        self.payloads = PayloadAccount(self.graph)
        self._home = LoopHome()
        self.engine = AsyncOmniEngine(
            self._parts(),
            observers=[trace, self.ledger, self.payloads, *observers],
            clock=loop.clock,
            home=self._home,
            max_undelivered=draw.choice((3, 65536, 65536, 65536)) if self.weather.tight else 65536,
        )
        self._has_begun = asyncio.Event()
        self._is_up = False

    def __repr__(self) -> str:
        return f"<World {self.around.seed}: {self.graph!r}, {len(self.truth.uses)} uses>"

    @property
    def scene(self) -> Scene:
        """What actions can reach."""
        return Scene(self.engine, self.around, list(self.backends.values()))

    def violations(self) -> list[str]:
        """What was wrong."""
        world = checkers.World(self.graph, self.weather, self.truth, self.ledger, self.payloads)
        return checkers.find_violations(world)

    def _parts(self) -> EngineParts:
        return EngineParts(
            graph=self.graph,
            stages={
                name: StageParts(
                    self._kinds[name].capabilities,
                    partial(SimulatedBackend.parse_params, None),
                    partial(self._make_client, stage),
                    self._replicas[name],
                )
                for name, stage in self.graph.stages.items()
            },
            default_params={name: {} for name in self.graph.stages},
        )

    def _make_client(self, stage: Stage, replica: ReplicaKey) -> StageClient:
        backend = self.backends[replica] = self._kinds[stage.name](stage, replica, self.around)
        client = in_process_client(
            replica,
            lambda: backend,
            lambda: SimulatedProcessor(ProcessorOptions(replica, self.around, backend.may_start)),
            self._modalities(stage),
            Placement.LOOP,
        )
        unreliable: StageClient = UnreliableClient(client, self.around)
        return (
            PollingClient(unreliable, TIGHT_POLL_S if self.weather.tight else POLL_S)
            if self.weather.polled
            else unreliable
        )

    def _modalities(self, stage: Stage) -> Mapping[str, Modality]:
        return {source.stage: self.graph.stages[source.stage].produces for source in stage.sources}

    async def run(self) -> None:
        """Start the engine, let everybody at it, see that it comes to rest, and end it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._start())
            for use in self.truth.uses:
                group.create_task(self._guard(self._call(use)))
            for number, action in enumerate(self._actions):
                group.create_task(self._guard(self._act(number, action)))
        if self._is_serving:
            self.around.calm_down()
            if self.truth.is_controlled:
                self.truth.expect(await repair(self.scene, self._draw), "what was closed cannot be opened again")
            self._check_rest(await self._wait_rest())
            await self._try_once_more()
        await shut_down(self.scene, self._draw)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        self._check_nothing_left()

    @property
    def _is_serving(self) -> bool:
        return self._is_up and self.truth.stopped_at is None

    async def _start(self) -> None:
        try:
            await self.engine.start()
        except StartError as error:
            has_reason = self.truth.seen["load failed"] + self.truth.seen["died"]
            self.truth.expect(has_reason > 0, f"it did not start: {error}")
            self.truth.expect(error.stage in self.graph.stages, f"a start failed without naming its stage: {error}")
            self.truth.see("not started", error.stage)
        except EngineStoppedError:
            self.truth.expect(self.truth.stopped_at is not None, "it did not start, and nobody stopped it")
            self.truth.see("stopped while it started")
        else:
            self._is_up = True
        self._has_begun.set()

    async def _guard(self, doing: object) -> None:
        """Nobody's failure ends the world: what is raised here is an answer that no caller should get."""
        assert asyncio.iscoroutine(doing)
        try:
            await doing
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is reported
            self.truth.violations.append(f"somebody got {type(failure).__name__}: {failure}")

    async def _call(self, use: Use) -> None:
        draw = self.around.draw_for(f"caller {use.number}")
        await self._wait_begin(draw)
        await Caller(use, self.around, self.engine, draw).run()

    async def _act(self, number: int, action: Action) -> None:
        draw = self.around.draw_for(f"action {number}")
        await self._wait_begin(draw)
        await asyncio.sleep(action.at_s)
        await action.kind.perform(self.scene, draw)

    async def _wait_begin(self, draw: Random) -> None:
        if draw.random() >= EAGER:
            await self._has_begun.wait()

    async def _wait_rest(self) -> Statistics:
        """The core once nothing lives in it, or once that took too long."""
        limits = [stage.limits for stage in self.graph.stages.values()]
        bound_s = sum(one.stop_timeout_s + one.stuck_timeout_s for one in limits) + 10.0
        until_s, pause_s = self._loop.time() + bound_s, 0.01
        while True:
            core = (await self.engine.statistics()).core
            if core.is_idle or self._loop.time() > until_s:
                return core
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _check_rest(self, core: Statistics) -> None:
        """Everything that was asked has ended: nothing is kept anywhere."""
        truth = self.truth
        truth.expect(core.is_idle, f"it does not come to rest: {core}")
        truth.expect((core.held, core.aborting) == (0, 0), f"{core.held} held, {core.aborting} aborting")
        counters = core.counters
        ended = counters.completed + counters.aborted + counters.cancelled + counters.failed
        truth.expect(counters.submitted == counters.refused + ended, f"the counters do not add up: {counters}")
        for replica, backend in self.backends.items():
            if replica not in self.ledger.closed and replica not in truth.died:
                truth.expect(not backend.tasks, f"{replica} still has {list(backend.tasks)}")
        if len(truth.streams):
            gc.collect()
        truth.expect(not len(truth.streams), f"{len(truth.streams)} inputs are still held")

    async def _try_once_more(self) -> None:
        """In good weather, what is still ready works."""
        figures = await self.engine.statistics()
        self.truth.expect(figures.streams == 0, f"{figures.streams} streams are still known")
        self.truth.expect(figures.open_calls == 0, f"{figures.open_calls} calls are still open")
        health = await self.engine.check_health()
        self.truth.expect(health.is_live, f"it is not live: {health.reason}")
        if not health.is_ready or self.truth.died.keys() - self.ledger.closed.keys():
            return
        self.truth.see("worked on")
        use = Use(len(self.truth.uses), "once more")
        self.truth.uses.append(use)
        await self._call(use)
        ok = use.error is None or use.error.kind in (ErrorKind.STAGE_FAILED, ErrorKind.BUFFER_OVERFLOW)
        self.truth.expect(ok, f"it does not work any more: {use.error}")
        self._check_rest(await self._wait_rest())

    def _check_nothing_left(self) -> None:
        here = asyncio.current_task()
        left = sorted(str(task.get_coro()) for task in asyncio.all_tasks() if task is not here)
        self.truth.expect(not left, f"tasks are left: {left}")
        self.truth.expect(self._home.failure is None, f"the engine's loop raised {self._home.failure!r}")
