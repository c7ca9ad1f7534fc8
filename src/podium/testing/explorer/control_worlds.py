"""Worlds in which the engine itself is controlled: paused in each mode, put to sleep, resumed; weights; failures.

Each is a function of how much more there is of everything in the deep one.
"""

from __future__ import annotations

from podium.core.admission import EngineLimits
from podium.core.operations import (
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    HoldPolicy,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)
from podium.testing.explorer.actors import (
    Aborts,
    AnswersCalls,
    Controls,
    LosesReplicas,
    ReplicasRejoin,
    Stops,
    Submits,
    TimePasses,
    Works,
)
from podium.testing.explorer.outside import World
from podium.testing.explorer.shapes import ONE_AT_A_TIME, PAIR, stage


def _pause(more: int) -> World:
    return World(
        name="pause",
        about="a stage is paused, draining or aborting, and resumed; what waits for it is aborted or times out",
        stages=PAIR,
        limits=EngineLimits(hold_timeout_s=7.0),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=1 + more),
            Works(stage="b", chunks=1),
            Controls(operation=Pause(PauseMode.WAIT), stages=("b",), call=1),
            Controls(operation=Pause(PauseMode.ABORT, HoldPolicy.REFUSE), stages=("a", "b"), call=10),
            Controls(operation=Resume(), stages=("a", "b"), call=20, times=1 + more),
            AnswersCalls(),
            Aborts(request_ids=("r1",)),
            Stops(),
            TimePasses(times=2),
        ),
        bound=(14_000, 300_000)[more],
    )


def _freeze(more: int) -> World:
    return World(
        name="freeze",
        about="a stage stands still with its jobs, is paused in another mode meanwhile, and goes on; its limit passes",
        stages=PAIR,
        limits=EngineLimits(hold_timeout_s=7.0),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=1 + more, tells_start=True),
            Works(stage="b", chunks=1),
            Controls(operation=Pause(PauseMode.KEEP), stages=("a",), call=1),
            Controls(operation=Pause(PauseMode.WAIT), stages=("a", "b"), call=10),
            Controls(operation=Resume(), stages=("a", "b"), call=20),
            AnswersCalls(),
            Stops(),
            TimePasses(times=3),
        ),
        bound=(14_000, 300_000)[more],
    )


def _sleep(more: int) -> World:
    return World(
        name="sleep",
        about="a stage falls asleep, wakes tag by tag and is resumed; calls fail, time out and supersede each other",
        stages=(stage("a", output="text", limits=ONE_AT_A_TIME),),
        limits=EngineLimits(hold_timeout_s=7.0),
        replicas=1 + more,
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=1),
            Controls(operation=Sleep(1, {"a": ("kv", "weights")}), stages=("a",), call=1, timeout_s=5.0),
            Controls(operation=WakeUp({"a": ("kv",)}), stages=("a",), call=10),
            Controls(operation=WakeUp({"a": ("kv", "weights")}), stages=("a",), call=20),
            Controls(operation=Resume(), stages=("a",), call=30),
            AnswersCalls(),
            AnswersCalls(fails=True, times=1),
            Stops(),
            TimePasses(times=2),
        ),
        bound=(3_700, 300_000)[more],
    )


def _control_and_loss(more: int) -> World:
    return World(
        name="control-and-loss",
        about="replicas die and join while a stage is paused, resumed and called; calls fail by name",
        stages=(stage("a", output="text", rerun=True),),
        replicas=2,
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=1),
            Controls(operation=Pause(PauseMode.WAIT), stages=("a",), call=1),
            Controls(operation=Resume(), stages=("a",), call=10),
            Controls(operation=CallMethod("reset_prefix_cache"), stages=("a",), call=20),
            AnswersCalls(),
            AnswersCalls(fails=True, times=1),
            LosesReplicas(stage="a", times=1 + more),
            ReplicasRejoin(stage="a"),
            Stops(),
        ),
        bound=(10_000, 300_000)[more],
    )


def _weights(more: int) -> World:
    return World(
        name="weights",
        about="weights are changed between pause and resume: begun, updated, committed, rolled back; some of it fails",
        stages=(stage("a", output="text"),),
        replicas=2,
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=1),
            Controls(operation=Pause(PauseMode.WAIT), stages=("a",), call=1),
            Controls(operation=BeginUpdate(1), stages=("a",), call=10, times=1 + more),
            Controls(operation=UpdateWeights(), stages=("a",), call=20),
            Controls(operation=CommitUpdate(), stages=("a",), call=30),
            Controls(operation=RollBackUpdate({}), stages=("a",), call=40),
            Controls(operation=Resume(), stages=("a",), call=50),
            AnswersCalls(),
            AnswersCalls(fails=True, times=1),
            LosesReplicas(stage="a"),
            Stops(),
        ),
        bound=(8_000, 300_000)[more],
    )


CONTROL = (
    _pause,
    _freeze,
    _sleep,
    _control_and_loss,
    _weights,
)
