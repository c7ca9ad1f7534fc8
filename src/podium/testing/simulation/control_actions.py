"""Control of the engine in the middle of everything: pauses, sleep, new weights, calls; each is undone by its opposite.

Whatever fails here may be left as it is: `repair` opens every stage again, once the weather is good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from random import Random
from typing import Protocol

from podium.errors import EngineStoppedError, ErrorKind, RequestError
from podium.runtime.outputs import ControlReport
from podium.testing.simulation.scene import Scene
from podium.testing.simulation.truth import EPSILON_S

MODES = ("abort", "wait", "keep")
LIMITS_S = (0.05, 2.0, 100.0)
PAUSES_S = (0.0, 0.05, 1.0, 20.0)
REPAIRS = 4


class Ask(Protocol):
    """A control call, but for its limit."""

    def __call__(self, *, timeout_s: float) -> Awaitable[ControlReport]:
        """Do it."""
        ...


async def pause(scene: Scene, draw: Random) -> None:
    """Pause some stages, in any mode, and let them work again a while later."""
    stages = _some_stages(scene, draw)
    if await _pause(scene, draw, stages):
        await asyncio.sleep(draw.choice(PAUSES_S))
        await _try(scene, draw, "resume", partial(scene.engine.resume_generation, stages=stages))


async def sleep(scene: Scene, draw: Random) -> None:
    """Let some stages sleep, wake them, and let them work again."""
    engine, stages = scene.engine, _some_stages(scene, draw)
    await _try(scene, draw, "sleep", partial(engine.sleep, 1, stages=stages, mode=_note_pause(scene, draw)))
    await asyncio.sleep(draw.choice(PAUSES_S))
    await _try(scene, draw, "wake up", partial(engine.wake_up, stages=stages))
    await _try(scene, draw, "resume", partial(engine.resume_generation, stages=stages))


async def update(scene: Scene, draw: Random) -> None:
    """Change the weights of some stages behind a pause: commit, roll back, or leave it broken."""
    engine, stages = scene.engine, _some_stages(scene, draw)
    version = len(scene.around.truth.versions)
    scene.around.truth.versions.add(version)
    if not await _pause(scene, draw, stages):
        return
    if await _try(scene, draw, "begin", partial(engine.begin_weight_update, version, stages=stages)):
        if await _try(scene, draw, "update", partial(engine.update_weights, "load", stages=stages)):
            await _try(scene, draw, "commit", partial(engine.commit_weight_update, stages=stages))
        else:
            await _try(scene, draw, "roll back", partial(engine.roll_back_weight_update, "restore", stages=stages))
    await _try(scene, draw, "resume", partial(engine.resume_generation, stages=stages))


async def call(scene: Scene, draw: Random) -> None:
    """Call something that changes nothing of the core."""
    engine, stages = scene.engine, _some_stages(scene, draw)
    asks: tuple[Ask, ...] = (
        partial(engine.collective_rpc, "look", args=(1,), stages=stages),
        partial(engine.reset_prefix_cache, stages=stages),
        partial(engine.list_loras, stages=stages),
    )
    await _try(scene, draw, "call", draw.choice(asks))


async def repair(scene: Scene, draw: Random) -> bool:
    """Open every stage again; whether that could be done."""
    engine = scene.engine
    for _ in range(REPAIRS):
        await _try(scene, draw, "wake up", engine.wake_up, LIMITS_S[-1])
        if await _try(scene, draw, "resume", engine.resume_generation, LIMITS_S[-1]):
            return True
        scene.around.truth.pauses += 1
        await _try(scene, draw, "pause", partial(engine.pause_generation, "abort"), LIMITS_S[-1])
        for stage in _stages_of(scene):
            roll_back = partial(engine.roll_back_weight_update, "restore", stages=[stage])
            await _try(scene, draw, "roll back", roll_back, LIMITS_S[-1])
    return False


def _stages_of(scene: Scene) -> list[str]:
    return list(dict.fromkeys(backend.stage_name for backend in scene.backends))


def _some_stages(scene: Scene, draw: Random) -> Sequence[str] | None:
    known = _stages_of(scene)
    return None if draw.random() < 0.5 or not known else draw.sample(known, draw.randint(1, len(known)))


def _note_pause(scene: Scene, draw: Random) -> str:
    truth, mode = scene.around.truth, draw.choice(MODES)
    truth.is_controlled = True
    truth.causes_for_all |= {ErrorKind.WAIT_TIMEOUT, ErrorKind.STAGE_UNAVAILABLE}
    truth.pauses += mode == "abort"
    return mode


async def _pause(scene: Scene, draw: Random, stages: Sequence[str] | None) -> bool:
    mode, held = _note_pause(scene, draw), draw.choice(("hold", "hold", "refuse"))
    ask = partial(scene.engine.pause_generation, mode, stages=stages, held=held)
    return await _try(scene, draw, f"pause {mode}", ask)


async def _try(scene: Scene, draw: Random, what: str, ask: Ask, limit_s: float | None = None) -> bool:
    """Ask for something; whether it was done. An answer that is late is a violation, and so is a half success."""
    truth, loop = scene.around.truth, asyncio.get_running_loop()
    limit_s, began = limit_s or draw.choice(LIMITS_S), loop.time()
    try:
        report = await ask(timeout_s=limit_s)
    except EngineStoppedError:
        truth.see("control not taken", what)
        return False
    except RequestError as error:
        truth.see(f"{what}: {error.record.kind}", error.record.message)
        return False
    finally:
        took_s = loop.time() - began
        truth.expect(took_s <= limit_s + EPSILON_S, f"{what} took {took_s:g} s of {limit_s:g} s")
    truth.see(f"{what} done", [(record.stage, record.replica) for record in report.records])
    truth.expect(all(record.ok for record in report.records), f"{what} is said to be done: {report.records}")
    return True
