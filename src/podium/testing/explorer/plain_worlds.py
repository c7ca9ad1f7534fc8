"""Worlds in which the outside does its work: chains, fan-in and fan-out, streaming and complete, and the client's part.

Each is a function of how much more there is of everything in the deep one.
"""

from __future__ import annotations

from podium.core.events import AckLevel
from podium.core.graph import EmptyPolicy
from podium.testing.explorer.actors import (
    Aborts,
    Appends,
    Fails,
    FailsToStop,
    GoesAway,
    Repeats,
    Stops,
    Submits,
    Works,
)
from podium.testing.explorer.outside import World
from podium.testing.explorer.shapes import FINISHES, complete, stage, streaming


def _stream(more: int) -> World:
    return World(
        name="stream",
        about="two stages, streaming; chunks out of order and twice; the client aborts",
        stages=(stage("a", output="text"), stage("b", streaming("a"), output="speech")),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=3, window=2, tells_start=True, joins_last=True),
            Works(stage="b", chunks=2 + more, window=2, finishes_early=True),
            Repeats(stage="a", times=2 + more),
            Aborts(request_ids=("r1",)),
            Stops(),
            FailsToStop(stage="a"),
        ),
        bound=(9_000, 300_000)[more],
    )


def _chain(more: int) -> World:
    return World(
        name="chain",
        about="three stages, complete edges; two requests; one is aborted, the client of the other goes away",
        stages=(stage("a"), stage("b", complete("a")), stage("c", complete("b"), output="out")),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r2"),
            Works(stage="a", chunks=1 + more),
            Works(stage="b", chunks=1 + more),
            Works(stage="c", joins_last=True),
            Aborts(request_ids=("r1",)),
            GoesAway(ticket=2, request_id="r2"),
            Stops(),
        ),
        bound=(6_000, 300_000)[more],
    )


def _voice(more: int) -> World:
    return World(
        name="voice",
        about="three stages, streaming, two of them final; two requests, one for speech alone; both are aborted",
        stages=(
            stage("a", output="text"),
            stage("b", streaming("a")),
            stage("c", streaming("b"), output="speech", prewarm=True),
        ),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r2", outputs=("text",)),
            Works(stage="a", chunks=2, joins_last=True),
            Works(stage="b", chunks=1 + more),
            Works(stage="c", chunks=1, tells_start=True),
            Aborts(request_ids=("r1", "r2")),
            Stops(),
        ),
        bound=(12_000, 300_000)[more],
    )


def _join(more: int) -> World:
    return World(
        name="join",
        about="two stages feed a third, one streaming, one complete; a source fails, ends with nothing, is aborted",
        stages=(stage("a"), stage("b"), stage("c", streaming("a"), complete("b"), output="out")),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=2, reasons=FINISHES, finishes_empty=True),
            Works(stage="b", chunks=2, reasons=FINISHES, finishes_empty=True),
            Works(stage="c", chunks=2 + more, finishes_early=True, tells_start=True),
            Fails(times=1),
            Fails(rejects=True, times=1),
            FailsToStop(),
            Aborts(request_ids=("r1",)),
            Stops(),
        ),
        bound=(5_000, 300_000)[more],
    )


def _fan_out(more: int) -> World:
    return World(
        name="fan-out",
        about="one stage feeds two final ones; aborts at both levels, and one of an id that there is not",
        stages=(stage("a"), stage("b", streaming("a"), output="x"), stage("c", complete("a"), output="y")),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Works(stage="a", chunks=2, tells_start=True, joins_last=True),
            Works(stage="b", chunks=2, tells_start=True),
            Works(stage="c", chunks=1 + more, tells_start=True),
            Aborts(request_ids=("r1", "unknown")),
            Aborts(request_ids=("r1",), call=10, level=AckLevel.ACCEPTED),
            Stops(),
            FailsToStop(),
        ),
        bound=(8_000, 300_000)[more],
    )


def _empty(more: int) -> World:
    return World(
        name="empty",
        about="stages that finish with nothing, where that is an error and where not, and what they lead to",
        stages=(
            stage("a", output="text"),
            stage("b", streaming("a"), on_empty=EmptyPolicy.ERROR),
            stage("c", complete("b"), streaming("a"), output="speech"),
        ),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r2", outputs=("speech",)),
            Works(stage="a", chunks=1, finishes_empty=True, reasons=FINISHES),
            Works(stage="b", chunks=1 + more, finishes_empty=True, reasons=FINISHES),
            Works(stage="c", chunks=1, finishes_empty=True, reasons=FINISHES),
            Aborts(request_ids=("r1",)),
            Stops(),
        ),
        bound=(11_000, 300_000)[more],
    )


def _open_input(more: int) -> World:
    return World(
        name="open-input",
        about="a client continues its prompt while the stages work on it, aborts, or goes away",
        stages=(stage("a", output="text"), stage("b", streaming("a"), output="speech")),
        actors=(
            Submits(ticket=1, request_id="r1", input_open=True),
            Appends(ticket=1, times=3 + more),
            Works(stage="a", chunks=3, tells_start=True),
            Works(stage="b", chunks=2),
            Aborts(request_ids=("r1",)),
            GoesAway(ticket=1, request_id="r1"),
            Stops(),
        ),
        bound=(8_000, 300_000)[more],
    )


PLAIN = (
    _stream,
    _chain,
    _voice,
    _join,
    _fan_out,
    _empty,
    _open_input,
)
