"""What has to come of any state when the outside falls silent: all of it ends, once, and nothing is left.

It is asked of every state that is met, so it is judged by what the core says in all, not step by step as by the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from podium.core.effects import (
    CallReplica,
    CloseReplica,
    Effect,
    EmitOutput,
    EndInput,
    EndRequest,
    FeedJob,
    RefuseRequest,
    ReleasePayloads,
    ReplyAbort,
    ReplyControl,
    StartJob,
    StopJob,
)
from podium.core.identity import Payload
from podium.testing.explorer.outside import Core, Step
from podium.testing.model import Model

MOST_DEADLINES = 200
"""Far more than any state can leave to come."""


def check_silence(core: Core, model: Model, note: Callable[[Step], None]) -> None:
    """Let time pass for `core`, which nobody needs any more, and judge what comes of what `model` knows to be open."""
    effects: list[Effect] = []
    for _ in range(MOST_DEADLINES):
        due = core.next_deadline()
        if due is None:
            break
        note(Step(due, None))
        effects += core.step((), due)
    else:
        raise AssertionError("time passes, and something is awaited for ever")
    ended = sorted(effect.ticket for effect in effects if isinstance(effect, EndRequest))
    awaited = sorted(ticket.event.ticket for ticket in model.open_tickets())
    assert ended == awaited, f"in silence the tickets {ended} ended, where {awaited} were open"
    answered = sorted(effect.call for effect in effects if isinstance(effect, ReplyAbort))
    assert answered == sorted(model.calls), f"in silence the aborts {answered} were answered, not {sorted(model.calls)}"
    replied = sorted(effect.call for effect in effects if isinstance(effect, ReplyControl))
    called = sorted(model.control.calls)
    assert replied == called, f"in silence the control calls {replied} were answered, not {called}"
    statistics = core.statistics()
    assert statistics.is_idle, f"in silence something is left for ever: {statistics}"
    if model.payloads:
        _check_payloads(effects, model)


def _check_payloads(effects: list[Effect], model: Model) -> None:
    gone = model.used | model.released | model.shared
    for effect in effects:
        gone.update(_payloads_of(effect))
    lost = [payload for payload in model.payloads if payload not in gone]
    assert lost == [], f"in silence nobody got and nobody released: {lost}"


def _payloads_of(effect: Effect) -> Iterable[Payload]:
    match effect:
        case ReleasePayloads() | FeedJob():
            return effect.payloads
        case EmitOutput():
            return (*effect.payloads, effect.partial)
        case StartJob():
            return (effect.prompt, *(payload for one in effect.inputs for payload in one.payloads))
        case ReplyControl():
            return [record.value for record in effect.records]
        case CallReplica() | EndInput() | StopJob() | EndRequest() | RefuseRequest() | ReplyAbort() | CloseReplica():
            return ()
