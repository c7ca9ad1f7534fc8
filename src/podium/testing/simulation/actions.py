"""What else is done to an engine in the middle: aborts, losses, questions, the end. One row for each kind.

A new kind is one function and one row of `ACTIONS`: it is drawn, timed and traced as the others are. It says in the
Truth what it gave a reason for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import NamedTuple, TypeAlias

from podium.core.effects import AbortStatus
from podium.errors import EngineStoppedError, ErrorKind, StopUnconfirmedError, WaitTimeoutError
from podium.runtime.async_omni_engine import ANSWER_GRACE_S
from podium.testing.simulation import control_actions
from podium.testing.simulation.scene import Scene
from podium.testing.simulation.truth import EPSILON_S, AbortTruth
from podium.testing.simulation.weather import Weather

SHUTDOWN_S = 30.0
BRIEF_S = 1.0
"""Less than a stop takes where nothing goes wrong with it."""


Perform: TypeAlias = Callable[[Scene, Random], Awaitable[None]]


class ActionKind(NamedTuple):
    """One kind: how often it comes (a weight), and what it does."""

    name: str
    weight: int
    perform: Perform


class Action(NamedTuple):
    """One action of one world, `at_s` seconds after its begin."""

    kind: ActionKind
    at_s: float


async def abort(scene: Scene, draw: Random) -> None:
    """Abort some ids, whoever has them, at one of the two levels; now and then the caller of this loses patience."""
    truth = scene.around.truth
    ids = tuple(draw.sample(known := [use.request_id for use in truth.uses], draw.randint(0, len(known))))
    if draw.random() < 0.2:
        ids += ("nobody",)
    limit_s = draw.choice((0.01, 1.0, 400.0))
    began = asyncio.get_running_loop().time()
    truth.aborts.append(AbortTruth(ids, began))
    try:
        async with asyncio.timeout(draw.choice((0.005, None, None, None))):
            report = await scene.engine.abort(ids, wait=draw.choice(("accepted", "stopped")), timeout_s=limit_s)
    except StopUnconfirmedError as error:
        truth.see("abort unconfirmed", error.unconfirmed)
        truth.expect(set(error.unconfirmed) <= set(ids), f"an abort of {ids} was not confirmed for {error.unconfirmed}")
        truth.expect(bool(error.unconfirmed), f"an abort of {ids} was not answered: {error}")
        has_reason = limit_s < BRIEF_S or scene.around.weather.can_delay_stops or truth.stopped_at is not None
        truth.expect(has_reason, f"an abort of {ids} was not confirmed, for no reason: {error}")
    except EngineStoppedError:
        truth.see("abort not taken")
    except TimeoutError:
        truth.see("abort cancelled")
    else:
        truth.see("abort answered", [record.status for record in report.records])
        for record in report.records:
            wrong = record.request_id == "nobody" and record.status is not AbortStatus.UNKNOWN
            truth.expect(not wrong, f"an abort of nobody: {record}")
    took_s = asyncio.get_running_loop().time() - began
    truth.expect(took_s <= limit_s + ANSWER_GRACE_S + EPSILON_S, f"an abort took {took_s:g} s of {limit_s:g} s")


async def kill(scene: Scene, draw: Random) -> None:
    """Let a replica die, whatever it is at."""
    if scene.backends:
        draw.choice(scene.backends).die_somehow()


async def ask(scene: Scene, _: Random) -> None:
    """Ask how the engine is."""
    truth = scene.around.truth
    health = await scene.engine.check_health()
    truth.see("asked", health)
    if health.is_ready:
        truth.expect(health.is_live, "ready, but not live")
    try:
        await scene.engine.statistics()
    except (EngineStoppedError, WaitTimeoutError) as error:
        truth.expect(truth.stopped_at is not None or not health.is_live, f"no statistics: {error}")


async def shut_down(scene: Scene, draw: Random) -> None:
    """End it all."""
    truth = scene.around.truth
    loop = asyncio.get_running_loop()
    truth.see("shut down")
    truth.causes_for_all.add(ErrorKind.ENGINE_STOPPED)
    if truth.stopped_at is None:
        truth.stopped_at = loop.time()
    began, limit_s = loop.time(), draw.choice((1.0, SHUTDOWN_S))
    await scene.engine.shutdown(timeout_s=limit_s)
    took_s = loop.time() - began
    truth.expect(took_s <= limit_s + EPSILON_S, f"a shutdown took {took_s:g} s of {limit_s:g} s")


ACTIONS = (
    ActionKind("abort", 12, abort),
    ActionKind("ask", 3, ask),
    ActionKind("pause", 3, control_actions.pause),
    ActionKind("sleep", 2, control_actions.sleep),
    ActionKind("update", 2, control_actions.update),
    ActionKind("call", 2, control_actions.call),
    ActionKind("kill", 2, kill),
    ActionKind("shut down", 1, shut_down),
)


def draw_actions(draw: Random, weather: Weather) -> list[Action]:
    """Up to five actions, at moments of which some are the same."""
    kinds = draw.choices(ACTIONS, [kind.weight for kind in ACTIONS], k=draw.choice((0, 1, 1, 2, 3, 5)))
    moments_s = (0.0, 0.05, 0.1, 1.0, 3.0 if weather.tight else 100.0)
    return [Action(kind, draw.choice(moments_s) * draw.choice((1.0, draw.random()))) for kind in kinds]
