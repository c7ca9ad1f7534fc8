"""What asynchronous callers hold: requests in, streams of outputs out, and control of the engine.

It checks input on the caller's side and posts events; it decides nothing about a request that was accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Self, TypeVar

from podium.core.effects import ReplyAbort, ReplyControl
from podium.core.events import AbortRequested, AckLevel, ControlRequested, RequestCancelled, RequestSubmitted
from podium.core.orchestrator import Orchestrator
from podium.core.statistics import Statistics
from podium.errors import (
    EngineStoppedError,
    ErrorKind,
    ErrorRecord,
    InvalidRequestError,
    Scope,
    StopUnconfirmedError,
    WaitTimeoutError,
)
from podium.ports.environment import Clock, Observer
from podium.runtime.clock import MonotonicClock
from podium.runtime.config import StageParams
from podium.runtime.control_desk import ControlDesk
from podium.runtime.engine_control import EngineControl
from podium.runtime.home import Home
from podium.runtime.host import EngineHost, HostState
from podium.runtime.orchestrator_monitor import EngineStatistics, Health, check_health
from podium.runtime.outlet import CallerOutlet
from podium.runtime.outputs import AbortReport
from podium.runtime.parts import EngineParts
from podium.runtime.preparation import (
    RequestPreparation,
    checked_affinity,
    checked_group,
    checked_ids,
    checked_limit_s,
    checked_priority,
    checked_samples,
    checked_slot,
    request_id_or_new,
)
from podium.runtime.request_stream import RequestStream
from podium.runtime.rpc_result_router import RpcResultRouter
from podium.tasks import follow

_log = logging.getLogger("podium.engine")

Value = TypeVar("Value")

ANSWER_LIMIT_S = 2.0
"""How long the loop may take to answer a health check, or a question for its figures."""
MAX_UNDELIVERED = 65536
"""Outputs of one request that may wait for its caller to read them."""
MOVE_TIMEOUT_S = 600.0
"""How long a change of replicas may take unless the caller says otherwise: models load for minutes."""
ANSWER_GRACE_S = 5.0
"""How much later than its own limit an abort is given up, should the loop itself not answer."""


class AsyncOmniEngine(EngineControl):
    """One running pipeline. Use it as an async context manager, from any number of tasks and loops.

    Construct it with `podium.AsyncOmniEngine.from_pipeline`, or from parts of your own.
    """

    def __init__(
        self,
        parts: EngineParts,
        *,
        params: StageParams | None = None,
        observers: Sequence[Observer] = (),
        on_progress: Callable[[str, str], None] | None = None,
        max_undelivered: int = MAX_UNDELIVERED,
        clock: Clock | None = None,
        home: Home | None = None,
    ) -> None:
        """Prepare an engine; nothing is started.

        `params` covers the parameters of the pipeline file, for every request. `on_progress` hears of each stage's
        start (stage, message) in the thread of the engine. `clock` is what deadlines are measured by, `home`
        where its loop runs: a thread of its own unless given.

        Raises InvalidRequestError when `params` do not fit.
        """
        self._parts = parts
        self._preparation = RequestPreparation(parts, params)
        self._clock: Clock = clock or MonotonicClock()
        self._router: RpcResultRouter[ReplyAbort] = RpcResultRouter()
        self._control_router: RpcResultRouter[ReplyControl] = RpcResultRouter()
        self._outlet = CallerOutlet(self._router, self._control_router)
        self._core = Orchestrator(parts.graph, parts.limits)
        self._tickets = itertools.count(1)
        self._max_undelivered = max_undelivered
        self._host = EngineHost(
            self._core, parts.replica_specs(), self._outlet, self._clock, observers, on_progress or _quiet, home=home
        )
        capabilities = {name: stage.capabilities for name, stage in parts.stages.items()}
        self._desk = ControlDesk(capabilities, self._clock, self._control_router, self._post_when_serving)

    def __repr__(self) -> str:
        return f"<AsyncOmniEngine {' '.join(self._parts.graph.stages)}, {self._host.state}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    @property
    def outputs(self) -> tuple[str, ...]:
        """What a request may ask for."""
        return tuple(self._parts.graph.outputs)

    async def start(self) -> None:
        """Bring up every replica, or none: raises StartError that names the stage, after tearing down the others."""
        self._host.start()
        try:
            await asyncio.wrap_future(follow(self._host.started))
        except BaseException:  # a cancellation too: what was begun is torn down
            await self.shutdown()
            raise

    def generate(
        self,
        prompt: object,
        *,
        outputs: Sequence[str] | None = None,
        params: StageParams | None = None,
        request_id: str | None = None,
        n: int = 1,
        group: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        affinity: str | None = None,
    ) -> RequestStream:
        """Submit a request and return its stream, to be iterated on the running loop.

        `prompt` is a text or a list of chat messages. `outputs` None asks for everything the pipeline makes. `params`
        maps stages to sampling parameters. Each of `n` samples runs through the whole pipeline; outputs carry its
        `index`. Requests of one `group` can be aborted together. Lower `priority` runs first. After `deadline_s`
        seconds the request fails with DeadlineExceededError. Requests of one
        `affinity`, a conversation for instance, go to the same replica of each stage that balances by it.

        Raises InvalidRequestError at once when something cannot be done, and EngineStoppedError when the engine does
        not serve. Refusals that depend on the engine's state (OverloadedError, DuplicateRequestIdError,
        StageUnavailableError) are raised by the stream, as its first item.
        """
        stream = RequestStream(
            request_id_or_new(request_id),
            next(self._tickets),
            self._parts.graph.stages,
            self._cancel,
            self._max_undelivered,
        )
        try:
            stream.samples = self._preparation.samples(n)
            event = RequestSubmitted(
                ticket=stream.ticket,
                request_id=stream.request_id,
                prompt=self._preparation.prompt(prompt),
                params=self._preparation.params(params),
                outputs=self._preparation.outputs(outputs),
                samples=stream.samples,
                companions=self._preparation.companions(prompt, params, stream.samples),
                group=checked_group(group),
                priority=checked_priority(priority),
                deadline=None if deadline_s is None else self._clock.now() + checked_limit_s(deadline_s, "deadline_s"),
                affinity=checked_affinity(affinity),
            )
            self._raise_unless_serving()
            self._outlet.register(stream)
            self._host.post(event)
        except BaseException:  # whatever it was, nothing was submitted
            stream.discard()
            self._outlet.forget(stream.ticket)
            raise
        return stream

    def check(
        self,
        *,
        outputs: Sequence[str] | None = None,
        params: StageParams | None = None,
        n: int = 1,
        group: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> None:
        """Raise InvalidRequestError when `generate` would, for these arguments; nothing is submitted."""
        self._preparation.samples(n)
        checked_group(group)
        self._preparation.params(params)
        self._preparation.outputs(outputs)
        checked_priority(priority)
        if deadline_s is not None:
            checked_limit_s(deadline_s, "deadline_s")

    async def abort(
        self,
        request_ids: str | Sequence[str] | None,
        *,
        group: str | None = None,
        samples: Sequence[int] | None = None,
        wait: str = "stopped",
        timeout_s: float = 30.0,
    ) -> AbortReport:
        """Stop requests, wherever they are, and say what came of each id.

        It means the ids that are given and every live request of `group`; with None instead of ids only the group, or
        without one every live request. `samples` are indices of samples of one request: the others of it go on.

        With `wait` "stopped" it returns when each stage has confirmed, and the report has what was generated; with
        "accepted" as soon as the orchestrator knows. Ids that are unknown, or have ended, succeed and change nothing.
        Raises StopUnconfirmedError, with the ids, when a stage did not confirm within `timeout_s` or could not stop;
        a repetition repeats only what failed.
        """
        ids = None if request_ids is None else checked_ids(request_ids)
        groups = () if (name := checked_group(group)) is None else (name,)
        if ids is None and groups:
            ids = ()
        indices = checked_samples(samples, None if groups else ids)
        level = _ack_level(wait)
        limit_s = checked_limit_s(timeout_s, "timeout_s")
        self._raise_unless_serving()
        call, reply = self._router.open()
        try:
            due = self._clock.now() + limit_s
            self._host.post(AbortRequested(call, ids, level, due, indices, groups))
            async with asyncio.timeout(limit_s + ANSWER_GRACE_S):
                report = AbortReport((await asyncio.wrap_future(reply)).records)
        except TimeoutError:
            raise StopUnconfirmedError(_unanswered(limit_s), ids or ()) from None
        finally:
            self._router.forget(call)
        if report.unconfirmed:
            raise StopUnconfirmedError(_unconfirmed(report), report.unconfirmed)
        return report

    async def check_health(self) -> Health:
        """Whether the loop makes progress and each stage has a live replica; always answers, within seconds."""
        return await check_health(self._host, self._core_statistics)

    async def statistics(self) -> EngineStatistics:
        """Figures of the core, of the loop's own cost, and of what callers follow.

        Raises EngineStoppedError, and WaitTimeoutError when the loop does not answer.
        """
        core = await self._core_statistics()
        return EngineStatistics(
            core=core,
            loop=self._host.observer.statistics(),
            streams=len(self._outlet),
            open_calls=len(self._router) + len(self._control_router),
            inbox_depth=self._host.inbox_depth,
            released_payloads=self._host.store.released,
            slots=self._host.slots(),
        )

    async def drain(self, stage: str, replica: int, *, timeout_s: float = MOVE_TIMEOUT_S) -> None:
        """Give a replica no more work, let it end what it has, and close it for good; it may be the last one.

        Raises InvalidRequestError for one that there is not, and WaitTimeoutError when it has not ended in time; it
        leaves even so, once it has.
        """
        limit_s = self._checked_move(stage, timeout_s)
        slot = checked_slot(replica)
        await self._await_move(self._host.move(lambda moves: moves.drain(stage, slot, limit_s)), limit_s)

    async def restart(self, stage: str, *, timeout_s: float = MOVE_TIMEOUT_S) -> None:
        """Give each replica of a stage a new life, one after another; requests lose nothing by it.

        A replica gets no more work, ends what it has, is closed, and is followed in its slot by the next generation.
        Requests that find no other replica wait for that one, and none is refused for it while there is room in the
        queue. Replicas that were given up are started too.

        Raises StartError when one does not start: the others are left as they are, and that one is tried again as its
        `restart` limits say. Raises WaitTimeoutError when it takes too long; what was begun goes on.
        """
        limit_s = self._checked_move(stage, timeout_s)
        await self._await_move(self._host.move(lambda moves: moves.restart(stage, limit_s)), limit_s)

    async def add_replica(self, stage: str, *, timeout_s: float = MOVE_TIMEOUT_S) -> int:
        """Start one more replica of a stage, and return its slot once it takes work.

        Raises StartError when it does not start, and WaitTimeoutError when that takes too long; it goes on even so.
        """
        limit_s = self._checked_move(stage, timeout_s)
        return await self._await_move(self._host.move(lambda moves: moves.add(stage, limit_s)), limit_s)

    def _checked_move(self, stage: str, timeout_s: float) -> float:
        self._desk.names([stage])
        return checked_limit_s(timeout_s, "timeout_s")

    async def _await_move(self, move: Future[Value], limit_s: float) -> Value:
        try:
            async with asyncio.timeout(limit_s + ANSWER_GRACE_S):
                return await asyncio.wrap_future(move)
        except TimeoutError as error:
            if isinstance(error, WaitTimeoutError):
                raise
            raise WaitTimeoutError(_silent(limit_s)) from None

    async def shutdown(self, timeout_s: float = 30.0) -> None:
        """End every request with one terminal, then the loop, then the stages. Idempotent; safe while it starts.

        Returns after at most about `timeout_s` seconds; what has not ended by then is abandoned, and logged.
        """
        limit_s = checked_limit_s(timeout_s, "timeout_s")
        self._host.stop(close_timeout_s=0.9 * limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.wrap_future(follow(self._host.ended))
            self._host.join()
        except TimeoutError:
            _log.error("the engine did not end within %g s and is abandoned", limit_s)

    async def _core_statistics(self) -> Statistics:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await asyncio.wrap_future(self._host.read_statistics())
        except TimeoutError:
            raise WaitTimeoutError(_silent(ANSWER_LIMIT_S)) from None

    def _post_when_serving(self, event: ControlRequested) -> None:
        self._raise_unless_serving()
        self._host.post(event)

    def _raise_unless_serving(self) -> None:
        if self._host.state is not HostState.SERVING:
            raise self._host.error().to_exception()

    def _cancel(self, stream: RequestStream) -> None:
        with contextlib.suppress(EngineStoppedError):  # then it has ended already
            self._host.post(RequestCancelled(stream.ticket, stream.request_id))


def _quiet(stage: str, message: str) -> None:
    """Hear of a start, and say nothing."""


def _ack_level(wait: str) -> AckLevel:
    try:
        return AckLevel(wait)
    except ValueError:
        levels = " or ".join(f"'{level}'" for level in AckLevel)
        raise InvalidRequestError.because(f"wait: '{wait}' is unknown; use {levels}") from None


def _unconfirmed(report: AbortReport) -> ErrorRecord:
    errors = {record.request_id: record.error for record in report.records}
    details = ", ".join(
        f"{request_id} ({error.message})" if (error := errors[request_id]) is not None else request_id
        for request_id in report.unconfirmed
    )
    stages = sorted({stage for record in report.records for stage in record.stages})
    return ErrorRecord(
        kind=ErrorKind.STOP_UNCONFIRMED,
        scope=Scope.REQUEST,
        stage=stages[0] if len(stages) == 1 else None,
        awaited="confirmation of the stop",
        message=f"not confirmed to be stopped: {details}; stages: {', '.join(stages) or 'unknown'}",
    )


def _silent(limit_s: float) -> ErrorRecord:
    return ErrorRecord(
        kind=ErrorKind.WAIT_TIMEOUT,
        scope=Scope.ENGINE,
        awaited="the answer of the engine's loop",
        message=f"the engine's loop has not answered for {limit_s:g} s",
    )


def _unanswered(limit_s: float) -> ErrorRecord:
    return ErrorRecord(
        kind=ErrorKind.STOP_UNCONFIRMED,
        scope=Scope.ENGINE,
        awaited="the answer of the engine's loop",
        message=f"the abort was not answered within {limit_s:g} s",
    )
