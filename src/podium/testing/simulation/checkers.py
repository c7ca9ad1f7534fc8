"""What must be true of every world, judged by what its stages made and its callers got. One function for each promise.

A new promise is one function and one entry in `CHECKS`. They read the Truth and the Ledger, never the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

from podium.core.admission import EngineLimits
from podium.core.effects import Outcome
from podium.core.events import FinishReason
from podium.core.graph import EdgeMode, Graph
from podium.core.identity import PROMPT, Payload
from podium.errors import ErrorKind
from podium.testing.simulation.ledger import Ledger, planned
from podium.testing.simulation.payload_account import PayloadAccount
from podium.testing.simulation.truth import EPSILON_S, JobTruth, Truth, Use
from podium.testing.simulation.weather import Weather

USABLE = (FinishReason.STOP, FinishReason.LENGTH)
MOST_PIECES = 40
HOLD_S = EngineLimits().hold_timeout_s


class World(NamedTuple):
    """A world that is over."""

    graph: Graph
    weather: Weather
    truth: Truth
    ledger: Ledger
    payloads: PayloadAccount

    def jobs_of(self, use: int, stage: str) -> list[JobTruth]:
        """Every attempt of a use at a stage."""
        return [job for job in self.truth.jobs.values() if job.use == use and job.key.stage == stage]

    def finals_of(self, use: Use) -> dict[str, str]:
        """The outputs that were asked for, and their stages."""
        names = self.graph.outputs if use.outputs is None else use.outputs
        return {name: self.graph.outputs[name].name for name in names}


Check: TypeAlias = Callable[[World], Iterator[str]]


def check_ends(world: World) -> Iterator[str]:
    """Every request that was taken has ended, for a caller who stayed."""
    for use in world.truth.uses:
        if use.submitted_at is not None and not use.has_left and use.outcome is None:
            yield f"{use} has no end"


def check_order(world: World) -> Iterator[str]:
    """What a caller got is numbered without a gap, is of that request, and ends with one mark, where it should."""
    for use in world.truth.uses:
        if [item.sequence for item in use.items] != list(range(len(use.items))):
            yield f"{use} got the numbers {[item.sequence for item in use.items]}"
        if any(item.weights_version not in world.truth.versions for item in use.items):
            yield f"{use} got something of weights that nobody knows"
        if any(item.request_id != use.request_id for item in use.items):
            yield f"{use} got items of another request"
        marks = [number for number, item in enumerate(use.items) if item.request_finished]
        has_end = use.outcome in (Outcome.COMPLETED, Outcome.ABORTED)
        if marks != ([len(use.items) - 1] if has_end else []) and not use.has_left:
            yield f"{use} has the mark of its end at {marks} of {len(use.items)}"


def check_contents(world: World) -> Iterator[str]:
    """Each output is what one attempt of its own stage made for this very request: all of it, where it finished."""
    for use in world.truth.uses:
        finals = world.finals_of(use)
        for item in use.items:
            if item.output not in finals or finals[item.output] != item.stage:
                yield f"{use} got {item.output} of {item.stage}, which it did not ask for"
        for output, stage in finals.items():
            yield from _check_output(world, use, output, stage)


def _check_output(world: World, use: Use, output: str, stage: str) -> Iterator[str]:
    items = [item for item in use.items if item.output == output]
    got = [item.delta for item in items if item.delta is not None]
    jobs = world.jobs_of(use.number, stage)
    if got and not any(job.pieces[: len(got)] == got for job in jobs):
        yield f"{use} got {got} of {output}, but the stage made {[job.pieces for job in jobs]}"
    ends = [item for item in items if item.stage_finished]
    if len(ends) > 1 or (ends and ends[0] is not items[-1]):
        yield f"{use} got {len(ends)} ends of {output}, not one at its last item"
    if use.outcome in (Outcome.COMPLETED, Outcome.ABORTED) and not ends:
        yield f"{use} is {use.outcome}, without an end of {output}"
    if not ends:
        return
    reason = ends[0].finish_reason
    if reason in USABLE:
        is_whole = any(job.finish is reason and job.pieces == got for job in jobs)
        if not is_whole and not _may_be_skipped(world, use, stage, jobs, got):
            yield f"{use} got {got} of {output}, ended by {reason}; the stage has {jobs}"
    elif reason is not FinishReason.ABORT or not (use.has_left or use.gave_up or use.outcome is Outcome.ABORTED):
        yield f"{use} is {use.outcome}, with {output} ended by {reason}"
    else:
        yield from _check_partial(world, use, ends[0].partial, jobs, got)


def _may_be_skipped(world: World, use: Use, stage: str, jobs: Sequence[JobTruth], got: Sequence[Payload]) -> bool:
    """Whether a stage without any output did not run because one before it had none."""
    if got or jobs:
        return False
    return any(
        not made or any(not job.pieces and job.finish in USABLE for job in made)
        for made in (world.jobs_of(use.number, source.stage) for source in world.graph.stages[stage].sources)
    )


def _check_partial(
    world: World, use: Use, partial: Payload, jobs: Sequence[JobTruth], got: Sequence[Payload]
) -> Iterator[str]:
    """An aborted stage hands over everything that it made, where it could be asked."""
    if partial is not None:
        handed = list(partial) if isinstance(partial, list) else [partial]
        if not any(job.pieces == handed for job in jobs):
            yield f"{use} was handed {handed}; the stage made {[job.pieces for job in jobs]}"
        return
    weather = world.weather
    could_ask = not world.truth.is_controlled and not (
        weather.can_stall or weather.fail or weather.die or weather.stop_fail or world.truth.died
    )
    made = [job for job in jobs if job.pieces and job.pieces != got]
    is_own_end = any(job.finish is not None for job in world.truth.jobs.values() if job.use == use.number)
    if could_ask and made and not is_own_end and not weather.process and not weather.refuse and not weather.full:
        yield f"{use} was handed nothing of what {made} made"


def check_inputs(world: World) -> Iterator[str]:
    """Each job got, of each of its sources, what one attempt there made for the same request: once, and in order."""
    for job in world.truth.jobs.values():
        sources = {source.stage: source.mode for source in world.graph.stages[job.key.stage].sources}
        for source, got in job.inputs.items():
            if source == PROMPT and not sources:
                if got != [world.truth.uses[job.use].prompt]:
                    yield f"{job} got the prompt {got}"
            elif source not in sources:
                yield f"{job} got something of '{source}', which is no source of its stage"
            elif job.key in world.truth.rejected:
                if job.finish is None and world.truth.uses[job.use].outcome is Outcome.COMPLETED:
                    yield f"{job} has a hole in its input, and its request is completed"
            else:
                yield from _check_source(world, job, source, sources[source])
        if job.taken != job.prepared[: len(job.taken)]:
            yield f"{job} was given {job.taken} of what its processor prepared: {job.prepared}"
        if job.is_whole and job.taken != job.prepared:
            yield f"{job} was told of the end of its input, but got {job.taken} of {job.prepared}"


def _check_source(world: World, job: JobTruth, source: str, mode: EdgeMode) -> Iterator[str]:
    got = job.inputs[source]
    made = world.jobs_of(job.use, source)
    if got and not any(one.pieces[: len(got)] == got for one in made):
        yield f"{job} got {got} of '{source}', which made {[one.pieces for one in made]}"
    is_whole = any(one.pieces == got and one.finish in USABLE for one in made)
    if (source in job.ended_sources or (mode is EdgeMode.COMPLETE and got)) and not is_whole and (got or made):
        yield f"{job} was told that '{source}' has ended after {got}, but it has {made}"


def check_causes(world: World) -> Iterator[str]:
    """Nothing fails, or is aborted, without something that gave a reason for it; and the error says where."""
    truth = world.truth
    for use in truth.uses:
        if use.outcome is Outcome.ABORTED and not _may_be_aborted(world, use):
            yield f"{use} was aborted by nobody"
        if use.error is None:
            if use.outcome is Outcome.FAILED:
                yield f"{use} failed without an error"
            continue
        kind = use.error.kind
        allowed = truth.causes[use.number] | truth.causes_for_all | _causes_of_weather(world.weather)
        if kind is ErrorKind.DUPLICATE_REQUEST_ID:
            if not _is_taken(world, use):
                yield f"{use}: nobody had its id: {use.error.message}"
        elif kind not in allowed:
            yield f"{use} failed for no reason: {kind}: {use.error.message}"
        if kind is ErrorKind.REPLICA_LOST and not _was_there(world, use):
            yield f"{use} failed with a replica that it had nothing to do with: {use.error.message}"


def _may_be_aborted(world: World, use: Use) -> bool:
    if world.truth.pauses or any(use.request_id in call.ids for call in world.truth.aborts):
        return True
    return any(job.use == use.number and job.finish is FinishReason.ABORT for job in world.truth.jobs.values())


def _is_taken(world: World, use: Use) -> bool:
    assert use.submitted_at is not None
    return any(
        other is not use
        and other.request_id == use.request_id
        and other.submitted_at is not None
        and other.submitted_at <= use.submitted_at
        and (other.ended_at is None or world.ledger.ended_at[other.ticket] >= use.submitted_at - EPSILON_S)
        for other in world.truth.uses
    )


def _was_there(world: World, use: Use) -> bool:
    error = use.error
    assert error is not None
    return any(
        start.replica.stage == error.stage and start.replica.slot == error.replica and start.prompt == use.prompt
        for start in world.ledger.started.values()
    )


def _causes_of_weather(weather: Weather) -> set[ErrorKind]:
    kinds: set[ErrorKind] = set()
    if weather.can_stall:
        kinds |= {ErrorKind.WAIT_TIMEOUT}
    if weather.tight:
        kinds |= {ErrorKind.OVERLOADED, ErrorKind.BUFFER_OVERFLOW, ErrorKind.REPLICA_LOST, ErrorKind.STAGE_UNAVAILABLE}
    return kinds


def check_times(world: World) -> Iterator[str]:
    """Every request ended within what its limits add up to, and at its deadline at the latest."""
    ledger = world.ledger
    for use in world.truth.uses:
        ended_at = ledger.ended_at.get(use.ticket)
        if use.submitted_at is None or ended_at is None:
            continue
        took_s = ended_at - use.submitted_at
        bound_s = _bound_s(world, use)
        if took_s > bound_s + EPSILON_S:
            yield f"{use} took {took_s:g} s; its limits add up to {bound_s:g} s"
        if use.ended_at is not None and use.ended_at < ended_at - EPSILON_S and not use.gave_up:
            yield f"{use} ended for its caller before it ended"


def _bound_s(world: World, use: Use) -> float:
    """What the limits of a request add up to; each abort of it that repeats a failed stop waits anew."""
    stops_s = attempts_s = 0.0
    for name in planned(world.graph, world.finals_of(use).values()):
        limits = world.graph.stages[name].limits
        stops_s += limits.stop_timeout_s
        waits_s = limits.queue_timeout_s + limits.dispatch_timeout_s + limits.first_output_timeout_s
        attempts_s += 2 * (HOLD_S if world.truth.is_controlled else 0.0) + 2 * (
            waits_s + MOST_PIECES * limits.chunk_timeout_s
        )
    stops = 1 + sum(use.request_id in call.ids for call in world.truth.aborts) + world.truth.pauses
    return (attempts_s if use.deadline_s is None else min(attempts_s, use.deadline_s)) + stops * stops_s


def check_stops(world: World) -> Iterator[str]:
    """Whatever still works for a request that has ended was told to stop, as soon as a message can be there."""
    truth, ledger = world.truth, world.ledger
    for job in truth.jobs.values():
        ended_at = ledger.ended_at.get(truth.uses[job.use].ticket)
        if ended_at is None or not job.was_taken:
            continue
        gone_at = min(job.over_at, truth.died.get(job.replica, inf), ledger.closed.get(job.replica, inf))
        if gone_at <= ended_at + world.weather.delay_s + EPSILON_S:
            continue
        if truth.stopped_at is not None and ended_at + world.weather.delay_s >= truth.stopped_at - EPSILON_S:
            continue  # its replica was closed instead
        if job.stop_told_at is None or job.stop_told_at > ended_at + world.weather.delay_s + EPSILON_S:
            yield f"{job} worked on after its request had ended at {ended_at:g} s, until {job.stop_told_at}"


def check_losses(world: World) -> Iterator[str]:
    """No replica is given up that is well, and confirms its stops."""
    for replica, error in world.ledger.given_up.items():
        if replica not in world.truth.died and not world.weather.can_delay_stops:
            yield f"{replica} was given up for no reason: {error.message}"


CHECKS: tuple[Check, ...] = (
    check_losses,
    check_stops,
    check_ends,
    check_order,
    check_contents,
    check_inputs,
    check_causes,
    check_times,
)


def find_violations(world: World) -> list[str]:
    """Everything that is wrong with a world that is over."""
    world.ledger.check_end()
    found = [*world.truth.violations, *world.ledger.violations, *world.payloads.find_violations()]
    for check in CHECKS:
        found += check(world)
    return found
