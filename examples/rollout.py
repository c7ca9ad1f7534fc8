"""A trainer's loop on one running engine: answers are made, interrupted, and continued with other weights.

Each round: generate many → abort what is live → pause → sleep → change the weights → wake → reset caches → resume →
continue from the prefixes. It runs the thinker of the `voice` pipeline, and asserts what a trainer relies on:

- with unchanged weights an interrupted answer becomes what it would have been without the interruption, token by token;
- with other weights it becomes something else, and each output says which version of the weights made it;
- with the first weights back, bit by bit, everything is as it was.

    python examples/rollout.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from podium import AsyncOmniEngine, Continuation, Text

QUESTIONS = [
    "Why is the sky blue?",
    "How do plants drink?",
    "What is a prime number?",
    "Who paints at night?",
    "Where does bread come from?",
    "What makes a good friend?",
    "How far away is the moon?",
    "Why do cats purr?",
]
LENGTH = 48
INTERRUPTED_AT = 12
"""Tokens that each answer has, at least, when it is interrupted."""

WEIGHT = "model.norm.weight"
WEIGHTS = "podium.backends.vllm.weights:"  # functions that run in each worker; a trainer brings its own


@dataclass
class Rollout:
    """One answer in the making. `versions` are those of the weights that made its tokens."""

    question: str
    token_ids: tuple[int, ...] = ()
    is_complete: bool = False
    request_id: str = ""
    versions: set[int] = field(default_factory=set)
    is_long_enough: asyncio.Event = field(default_factory=asyncio.Event)


async def follow(engine: AsyncOmniEngine, rollout: Rollout) -> None:
    """Ask for an answer, or for the rest of one, and take it in until it ends or is aborted."""
    prefix = rollout.token_ids
    prompt = Continuation(rollout.question, prefix) if prefix else rollout.question
    # Penalties count what was generated since the prompt, so that a continuation would not know of its prefix.
    params = {"temperature": 0.0, "frequency_penalty": 0.0, "max_tokens": LENGTH - len(prefix)}
    stream = engine.generate(prompt, outputs=["text"], params={"thinker": params})
    rollout.request_id = stream.request_id
    rollout.is_complete = False
    async for output in stream:
        rollout.versions.add(output.weights_version)
        if isinstance(output.delta, Text):
            rollout.token_ids += output.delta.token_ids
        if isinstance(output.partial, Text):  # everything that an aborted answer has
            rollout.token_ids = prefix + output.partial.token_ids
        if output.stage_finished:
            rollout.is_complete = output.finish_reason != "abort"
        if len(rollout.token_ids) >= INTERRUPTED_AT or output.stage_finished:
            rollout.is_long_enough.set()


async def interrupt(engine: AsyncOmniEngine, order: str) -> list[Rollout]:
    """Begin all answers, and stop them in the middle; returns what they have."""
    rollouts = [Rollout(question) for question in QUESTIONS]
    async with asyncio.TaskGroup() as group:
        for rollout in rollouts:
            group.create_task(follow(engine, rollout))
        for rollout in rollouts:
            await rollout.is_long_enough.wait()
        live = [rollout.request_id for rollout in rollouts]
        if order == "abort, then pause":
            await engine.abort(live)
            await engine.pause_generation("abort")
        elif order == "pause, then abort":
            await engine.pause_generation("keep")
            await engine.abort(live)
        else:
            await engine.pause_generation("abort")
    assert await engine.is_paused()
    return rollouts


async def train(engine: AsyncOmniEngine, version: int, step: str, **arguments: object) -> None:
    """Change the weights where they are, while the engine sleeps as deeply as it can on a CPU."""
    await engine.sleep(0)
    await engine.begin_weight_update(version)
    await engine.update_weights(WEIGHTS + step, kwargs=arguments)
    await engine.commit_weight_update()
    await engine.wake_up()
    assert (await engine.reset_prefix_cache()).is_true
    await engine.resume_generation()


async def finish(engine: AsyncOmniEngine, rollouts: Sequence[Rollout]) -> list[tuple[int, ...]]:
    """Let all answers go on to their ends; returns their tokens."""
    async with asyncio.TaskGroup() as group:
        for rollout in rollouts:
            if not rollout.is_complete and len(rollout.token_ids) < LENGTH:
                group.create_task(follow(engine, rollout))
    return [rollout.token_ids for rollout in rollouts]


async def digest(engine: AsyncOmniEngine) -> object:
    """A fingerprint of the weights, from each worker."""
    return (await engine.collective_rpc(WEIGHTS + "digest", stages=["thinker"]))["thinker"]


async def main() -> None:
    """Three rounds; every assertion is one that a trainer relies on."""
    async with AsyncOmniEngine.from_pipeline("voice") as engine:
        uninterrupted = await finish(engine, [Rollout(question) for question in QUESTIONS])
        print(f"{len(QUESTIONS)} answers without interruption, {sum(map(len, uninterrupted))} tokens")
        await engine.collective_rpc(WEIGHTS + "keep", args=[WEIGHT], stages=["thinker"])
        first_digest = await digest(engine)

        rollouts = await interrupt(engine, "abort, then pause")
        await train(engine, 1, "scale", name=WEIGHT, factor=1.0)
        assert await finish(engine, rollouts) == uninterrupted
        print("round 1: weights unchanged; every continued answer is the uninterrupted one, token by token")

        rollouts = await interrupt(engine, "pause, then abort")
        prefixes = [rollout.token_ids for rollout in rollouts]
        await train(engine, 2, "perturb", name=WEIGHT, amount=0.5, seed=1)
        answers = await finish(engine, rollouts)
        changed = sum(answer != former for answer, former in zip(answers, uninterrupted, strict=True))
        assert await digest(engine) != first_digest
        assert changed > 0
        assert all(answer[: len(prefix)] == prefix for answer, prefix in zip(answers, prefixes, strict=True))
        assert {frozenset(rollout.versions) for rollout in rollouts if rollout.versions} <= {
            frozenset({1}),
            frozenset({1, 2}),
        }
        print(f"round 2: other weights; {changed} of {len(answers)} continued answers are other ones")

        rollouts = await interrupt(engine, "pause that aborts")
        await train(engine, 3, "restore")
        fresh = await finish(engine, [Rollout(question) for question in QUESTIONS])
        assert await digest(engine) == first_digest
        assert fresh == uninterrupted
        await finish(engine, rollouts)
        print("round 3: the first weights again, bit by bit; every answer is the first one, token by token")
        print(
            "versions of the weights that made the last answers:", sorted(set().union(*(r.versions for r in rollouts)))
        )


if __name__ == "__main__":  # vLLM starts its processes anew from this file
    asyncio.run(main())
