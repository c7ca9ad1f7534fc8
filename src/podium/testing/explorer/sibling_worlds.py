"""Worlds in which a request has siblings: samples that are aborted one by one, and companions that a stage joins.

Each is a function of how much more there is of everything in the deep one.
"""

from __future__ import annotations

from podium.testing.explorer.actors import Aborts, Fails, FailsToStop, LosesReplicas, Stops, Submits, TimePasses, Works
from podium.testing.explorer.outside import World
from podium.testing.explorer.shapes import ONE_AT_A_TIME, complete, stage, streaming


def _samples(more: int) -> World:
    return World(
        name="samples",
        about="two samples through two stages; one is aborted, then the other, or the request as a whole; a job fails",
        stages=(stage("a", output="text"), stage("b", streaming("a"), output="speech")),
        actors=(
            Submits(ticket=1, request_id="r1", samples=2, group="g"),
            Works(stage="a", chunks=1),
            Works(stage="b", chunks=1),
            Aborts(request_ids=("r1",), samples=(1,)),
            Aborts(request_ids=(), groups=("g",), call=10, times=1 + more),
            Fails(stage="b"),
            Stops(),
        ),
        bound=(11_000, 300_000)[more],
    )


def _queued_samples(more: int) -> World:
    return World(
        name="queued-samples",
        about="two samples for one credit at each stage, beside another request; stops fail, a replica dies",
        stages=(stage("a", limits=ONE_AT_A_TIME, rerun=True), stage("b", complete("a"), output="out")),
        replicas=1 + more,
        actors=(
            Submits(ticket=1, request_id="r1", samples=2),
            Submits(ticket=2, request_id="r2"),
            Works(stage="a", chunks=1),
            Works(stage="b", chunks=1),
            Aborts(request_ids=("r1",), samples=(0,)),
            Stops(),
            FailsToStop(),
            LosesReplicas(stage="a"),
        ),
        bound=(6_500, 300_000)[more],
    )


def _companions(more: int) -> World:
    return World(
        name="companions",
        about="a companion goes with its request to a stage that joins both; it fails, is lost, is too late or aborted",
        stages=(stage("a"), stage("b", complete("a"), output="out", joins=True)),
        replicas=2,
        actors=(
            Submits(ticket=1, request_id="r1", companions=("negative",)),
            Works(stage="a", chunks=2 + more, tells_start=True, finishes_empty=True),
            Works(stage="b", chunks=1),
            Fails(stage="a"),
            LosesReplicas(stage="a"),
            Aborts(request_ids=None),
            Stops(),
            TimePasses(times=3),
        ),
        bound=(4_200, 300_000)[more],
    )


def _bundles(more: int) -> World:
    return World(
        name="bundles",
        about="two samples with a companion each, for one credit; each bundle is joined when all of it is there",
        stages=(stage("a", limits=ONE_AT_A_TIME), stage("b", complete("a"), output="out", joins=True)),
        actors=(
            Submits(ticket=1, request_id="r1", samples=2, companions=("negative",)),
            Works(stage="a", chunks=2 + more),
            Works(stage="b", chunks=1),
            Aborts(request_ids=("r1",), samples=(1,)),
            Aborts(request_ids=("r1",), call=10),
            Stops(),
        ),
        bound=(1_500, 300_000)[more],
    )


SIBLINGS = (_samples, _queued_samples, _companions, _bundles)
