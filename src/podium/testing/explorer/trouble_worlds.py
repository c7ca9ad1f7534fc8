"""Worlds of trouble: replicas die, stops fail, time runs out, tables are full, and the engine goes down.

Each is a function of how much more there is of everything in the deep one.
"""

from __future__ import annotations

from podium.core.admission import EngineLimits
from podium.testing.explorer.actors import (
    Aborts,
    Fails,
    FailsToStop,
    GoesAway,
    LosesReplicas,
    ReplicasRejoin,
    ShutsDown,
    SpeaksLate,
    Stops,
    Submits,
    TimePasses,
    Works,
)
from podium.testing.explorer.outside import World
from podium.testing.explorer.shapes import ONE_AT_A_TIME, PAIR, TIGHT, complete, stage, streaming


def _loss(more: int) -> World:
    return World(
        name="loss",
        about="two replicas for each stage; one dies, another comes back; work runs again where it may",
        stages=(stage("a", rerun=True), stage("b", complete("a"), output="out", rerun=True)),
        replicas=2,
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r2"),
            Works(stage="a", chunks=1),
            Works(stage="b", chunks=1 + more),
            LosesReplicas(stage="a", times=1 + more),
            ReplicasRejoin(stage="a", times=1 + more),
            LosesReplicas(stage="b", times=1),
            Aborts(request_ids=("r1",)),
            Stops(),
        ),
        bound=(24_000, 300_000)[more],
    )


def _drain(more: int) -> World:
    return World(
        name="drain",
        about="replicas are drained and come back under traffic; the last one of a stage, too",
        stages=(stage("a", limits=ONE_AT_A_TIME), stage("b", streaming("a"), output="out", limits=ONE_AT_A_TIME)),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r2"),
            Works(stage="a", chunks=2),
            Works(stage="b", chunks=1 + more),
            LosesReplicas(stage="a", drains=True, times=2),
            LosesReplicas(stage="b", drains=True, times=1),
            ReplicasRejoin(stage="a"),
            ReplicasRejoin(stage="b"),
            GoesAway(ticket=1, request_id="r1"),
            Stops(),
        ),
        bound=(7_500, 300_000)[more],
    )


def _credits(more: int) -> World:
    return World(
        name="credits",
        about="one credit for each stage: two requests wait for it by priority, and are aborted there",
        stages=(stage("a", limits=ONE_AT_A_TIME), stage("b", streaming("a"), output="out", limits=ONE_AT_A_TIME)),
        actors=(
            Submits(ticket=1, request_id="r1", priority=1),
            Submits(ticket=2, request_id="r2"),
            Works(stage="a", chunks=2),
            Works(stage="b", chunks=1 + more),
            Aborts(request_ids=("r1",)),
            Aborts(request_ids=("r2", "r1"), call=10),
            Stops(),
            FailsToStop(),
        ),
        bound=(12_000, 300_000)[more],
    )


def _overload(more: int) -> World:
    return World(
        name="overload",
        about="limits of one: requests, queues and buffers are full, and what is refused frees nothing",
        stages=(stage("a", limits=TIGHT), stage("b", streaming("a"), output="out", limits=TIGHT)),
        limits=EngineLimits(max_requests=2, max_remembered=1),
        actors=(
            *(Submits(ticket=ticket, request_id=f"r{ticket}") for ticket in range(1, 4)),
            Works(stage="a", chunks=2, window=2 if more else 1),
            Works(stage="b", chunks=1),
            Aborts(request_ids=("r1",)),
            Stops(),
            FailsToStop(),
        ),
        bound=(13_500, 300_000)[more],
    )


def _failing_stops(more: int) -> World:
    return World(
        name="failing-stops",
        about="stops fail, and are repeated by a second abort or by time; the abort's own limit passes",
        stages=PAIR,
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=2, tells_start=True),
            Works(stage="b", chunks=2),
            Aborts(request_ids=("r1",), timeout_s=3.0, times=2),
            Stops(),
            FailsToStop(times=3 + more),
            Fails(stage="b"),
            TimePasses(),
        ),
        bound=(9_000, 300_000)[more],
    )


def _deadlines(more: int) -> World:
    return World(
        name="deadlines",
        about="every wait runs out at any time, and the request's own deadline; what was given up answers late",
        stages=PAIR,
        actors=(
            Submits(ticket=1, request_id="r1", deadline_s=9.0),
            Works(stage="a", chunks=2, tells_start=True),
            Works(stage="b", chunks=2 + more, tells_start=True),
            Aborts(request_ids=("r1",), timeout_s=3.0),
            Stops(),
            TimePasses(),
            TimePasses(seconds=1.0, times=3 + more),
        ),
        bound=(12_000, 300_000)[more],
    )


def _late(more: int) -> World:
    return World(
        name="late",
        about="an id is used again while its first use still has jobs; what is said too late matches nothing",
        stages=PAIR,
        keeps_former=True,
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r1"),
            Works(stage="a", chunks=2),
            Works(stage="b", chunks=1 + more),
            SpeaksLate(),
            GoesAway(ticket=1, request_id="r1"),
            Aborts(request_ids=("r1",)),
            Stops(),
        ),
        bound=(4_000, 300_000)[more],
    )


def _shutdown(more: int) -> World:
    return World(
        name="shutdown",
        about="the engine goes down at any moment, with work at every stage and aborts under way",
        stages=(
            stage("a"),
            stage("b", streaming("a"), limits=ONE_AT_A_TIME),
            stage("c", complete("b"), output="out"),
        ),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r2"),
            Works(stage="a", chunks=1),
            Works(stage="b", chunks=1 + more),
            Works(stage="c", chunks=1),
            Aborts(request_ids=("r1",)),
            ShutsDown(),
            Stops(),
            LosesReplicas(stage="b"),
        ),
        bound=(6_000, 300_000)[more],
    )


TROUBLE = (
    _loss,
    _drain,
    _credits,
    _overload,
    _failing_stops,
    _deadlines,
    _late,
    _shutdown,
)
