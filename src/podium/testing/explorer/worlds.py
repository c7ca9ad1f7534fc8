"""The worlds in which podium itself is explored, each small enough to be exhausted. A world is data.

`WORLDS` are explored whenever podium is tested; `DEEP_WORLDS` are the same with more of everything, for an hour.
"""

from __future__ import annotations

from podium.core.admission import EngineLimits
from podium.core.events import AckLevel, FinishReason, GateAction
from podium.core.graph import EdgeMode, EmptyPolicy, Limits, Modality, Source, Stage, StageKind
from podium.testing.explorer.actors import (
    Aborts,
    Appends,
    Fails,
    FailsToStop,
    GoesAway,
    LosesReplicas,
    MovesGate,
    Repeats,
    ReplicasRejoin,
    ShutsDown,
    SpeaksLate,
    Stops,
    Submits,
    TimePasses,
    Works,
)
from podium.testing.explorer.outside import World

ROOMY = Limits(
    queue_timeout_s=16.0,
    dispatch_timeout_s=3.0,
    first_output_timeout_s=5.0,
    chunk_timeout_s=4.0,
    stop_timeout_s=2.0,
    stuck_timeout_s=6.0,
)
ONE_AT_A_TIME = Limits(
    max_inflight=1,
    queue_timeout_s=16.0,
    dispatch_timeout_s=3.0,
    first_output_timeout_s=5.0,
    chunk_timeout_s=4.0,
    stop_timeout_s=2.0,
    stuck_timeout_s=6.0,
)
TIGHT = Limits(
    max_inflight=1,
    max_queued=1,
    max_buffered_chunks=1,
    queue_timeout_s=16.0,
    dispatch_timeout_s=3.0,
    first_output_timeout_s=5.0,
    chunk_timeout_s=4.0,
    stop_timeout_s=2.0,
    stuck_timeout_s=6.0,
)
FINISHES = (FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR)


def stage(
    name: str,
    *sources: Source,
    output: str | None = None,
    limits: Limits = ROOMY,
    on_empty: EmptyPolicy = EmptyPolicy.COMPLETE,
    prewarm: bool = False,
    rerun: bool = False,
) -> Stage:
    """A stage of an explored world; with `output` it is final."""
    return Stage(
        name=name,
        kind=StageKind.FUNCTION,
        produces=Modality.TEXT,
        sources=sources,
        output=output,
        limits=limits,
        on_empty=on_empty,
        prewarm=prewarm,
        rerun=rerun,
    )


def streaming(name: str) -> Source:
    """An edge that passes chunks on as they come."""
    return Source(name, EdgeMode.STREAMING)


def complete(name: str) -> Source:
    """An edge that passes everything on at the end."""
    return Source(name, EdgeMode.COMPLETE)


PAIR = (stage("a", output="text"), stage("b", streaming("a"), output="speech"))

BOUNDS = {
    "stream": (100_000, 300_000),
    "chain": (100_000, 300_000),
    "voice": (100_000, 300_000),
    "join": (100_000, 300_000),
    "fan-out": (100_000, 300_000),
    "empty": (100_000, 300_000),
    "open-input": (100_000, 300_000),
    "loss": (100_000, 300_000),
    "drain": (100_000, 300_000),
    "credits": (100_000, 300_000),
    "overload": (100_000, 300_000),
    "failing-stops": (100_000, 300_000),
    "deadlines": (100_000, 300_000),
    "late": (100_000, 300_000),
    "gate": (100_000, 300_000),
    "shutdown": (100_000, 300_000),
}
"""How many states each world has at most: as it is, and as a deep one, with more of everything."""


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
        bound=BOUNDS["stream"][more],
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
        bound=BOUNDS["chain"][more],
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
        bound=BOUNDS["voice"][more],
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
        bound=BOUNDS["join"][more],
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
        bound=BOUNDS["fan-out"][more],
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
        bound=BOUNDS["empty"][more],
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
        bound=BOUNDS["open-input"][more],
    )


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
            LosesReplicas(stage="a", times=2),
            ReplicasRejoin(stage="a", times=1 + more),
            LosesReplicas(stage="b", times=1),
            Aborts(request_ids=("r1",)),
            Stops(),
        ),
        bound=BOUNDS["loss"][more],
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
        bound=BOUNDS["drain"][more],
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
        bound=BOUNDS["credits"][more],
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
        bound=BOUNDS["overload"][more],
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
        bound=BOUNDS["failing-stops"][more],
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
        bound=BOUNDS["deadlines"][more],
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
        bound=BOUNDS["late"][more],
    )


def _gate(more: int) -> World:
    return World(
        name="gate",
        about="the gate of a stage is held, refused and opened; what waits at it is aborted or times out",
        stages=PAIR,
        limits=EngineLimits(hold_timeout_s=7.0),
        actors=(
            Submits(ticket=1, request_id="r1"),
            Submits(ticket=2, request_id="r2", outputs=("text",)),
            Works(stage="a", chunks=1),
            Works(stage="b", chunks=1),
            MovesGate(action=GateAction.HOLD, stages=("b",), times=1 + more),
            MovesGate(action=GateAction.REFUSE),
            MovesGate(action=GateAction.OPEN, times=2),
            Aborts(request_ids=("r1",)),
            Stops(),
            TimePasses(times=1),
        ),
        bound=BOUNDS["gate"][more],
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
        bound=BOUNDS["shutdown"][more],
    )


_ALL = (
    _stream,
    _chain,
    _voice,
    _join,
    _fan_out,
    _empty,
    _open_input,
    _loss,
    _drain,
    _credits,
    _overload,
    _failing_stops,
    _deadlines,
    _late,
    _gate,
    _shutdown,
)

WORLDS = tuple(make(0) for make in _ALL)
DEEP_WORLDS = tuple(make(1) for make in _ALL)
