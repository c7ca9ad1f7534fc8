"""The stream of one request on its caller's side: items in order, then its one terminal.

Leaving it early, in whatever way, cancels the request. It never talks to a stage.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Self

from podium import payloads
from podium.core.effects import EmitOutput, EndRequest, Outcome, RefuseRequest, StageTimings
from podium.core.events import Finish, FinishReason
from podium.core.graph import Stage
from podium.core.identity import Payload
from podium.errors import ErrorKind, ErrorRecord, PodiumError, RequestError, Scope
from podium.runtime.outputs import OmniOutput, OmniResult, SampleResult

StreamEffect = EmitOutput | EndRequest | RefuseRequest


class RequestStream:
    """An async iterator over one request's outputs; raises the request's error, once, in its place in the order.

    Use it with `async for`; `aclose`, a break, a cancelled task or dropping it cancels the request. `outcome`, `error`
    and `timeline` are set once the terminal arrived. `samples` is how many were asked for.
    """

    def __init__(
        self,
        request_id: str,
        ticket: int,
        stages: Mapping[str, Stage],
        cancel: Callable[[RequestStream], None],
        max_undelivered: int,
    ) -> None:
        self.request_id = request_id
        self.ticket = ticket
        self.outcome: Outcome | None = None
        self.error: ErrorRecord | None = None
        self.timeline: Mapping[str, StageTimings] = {}
        self.samples = 1
        self._stages = stages
        self._cancel = cancel
        self._max_undelivered = max_undelivered
        self._items: deque[OmniOutput] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_left = False
        self._has_raised = False

    def __repr__(self) -> str:
        return f"<RequestStream {self.request_id} {self.outcome or 'open'}, {len(self._items)} items undelivered>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OmniOutput:
        """The next item. Raises RequestError when the request failed, after everything that it delivered."""
        while not self._items:
            if self.outcome is not None or self._is_left:
                self._end()
            if self._waiter is not None:
                raise RuntimeError(f"request '{self.request_id}' is iterated twice at the same time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self._leave()
                raise
            finally:
                self._waiter = None
        return self._items.popleft()

    async def aclose(self) -> None:
        """Leave: cancels the request unless it has ended. Idempotent."""
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def __del__(self) -> None:
        self._leave()

    async def collect(self) -> OmniResult:
        """Wait for the end and join what arrived. Raises the request's error."""
        result = await self.collect_whatever()
        if result.error is not None:
            raise result.error
        return result

    async def collect_whatever(self) -> OmniResult:
        """Wait for the end and join what arrived; an error is part of the result."""
        gathered = [_Gathered() for _ in range(self.samples)]
        error: PodiumError | None = None
        try:
            async for item in self:
                gathered[item.index].take(item)
        except RequestError as failure:
            error = failure
        results = tuple(one.result(index) for index, one in enumerate(gathered))
        first = results[0]
        return OmniResult(
            request_id=self.request_id,
            outputs=first.outputs,
            finish_reasons=first.finish_reasons,
            usage=first.usage,
            timeline=self.timeline,
            outcome=self.outcome or Outcome.ABORTED,
            error=error,
            samples=results if self.samples > 1 else (),
        )

    def discard(self) -> None:
        """Give up a stream that was never submitted; nothing is cancelled."""
        self._is_left = True

    def cancel_request(self) -> None:
        """Cancel the request on behalf of a caller that cannot be reached. Safe from any thread."""
        self._cancel(self)

    def take(self, effect: StreamEffect) -> None:
        """Take what the core has for this request; called on the caller's loop, in order."""
        if self._is_left or self.outcome is not None:
            return
        if isinstance(effect, EmitOutput):
            self._take_output(effect)
        elif isinstance(effect, EndRequest):
            self.timeline = effect.timings
            self._conclude(effect.outcome, effect.error)
        else:
            self._conclude(Outcome.FAILED, effect.error)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take_output(self, effect: EmitOutput) -> None:
        stage = self._stages[effect.stage]
        output = stage.output or stage.name
        sequence = effect.sequence
        for payload in effect.payloads:
            ends_segment = isinstance(payload, payloads.SegmentEnd)
            self._items.append(
                OmniOutput(
                    request_id=self.request_id,
                    stage=effect.stage,
                    output=output,
                    modality=stage.produces,
                    sequence=sequence,
                    at=effect.at,
                    index=effect.index,
                    delta=None if ends_segment else payload,
                    segment_finished=ends_segment,
                    weights_version=effect.weights_version,
                )
            )
            sequence += 1
        if effect.finish is not None:
            self._items.append(self._finish_item(effect, effect.finish, stage, sequence))
        if len(self._items) > self._max_undelivered and not effect.request_finished:
            self._cancel(self)
            self._conclude(Outcome.FAILED, self.too_slow())

    def _finish_item(self, effect: EmitOutput, finish: Finish, stage: Stage, sequence: int) -> OmniOutput:
        return OmniOutput(
            request_id=self.request_id,
            stage=effect.stage,
            output=stage.output or stage.name,
            modality=stage.produces,
            sequence=sequence,
            at=effect.at,
            index=effect.index,
            partial=effect.partial,
            stage_finished=True,
            request_finished=effect.request_finished,
            finish_reason=finish.reason,
            usage=finish.usage,
            label=finish.label,
            timings=effect.timings,
            weights_version=effect.weights_version,
        )

    def _conclude(self, outcome: Outcome, error: ErrorRecord | None) -> None:
        self.outcome = outcome
        self.error = error

    def _end(self) -> None:
        if self.error is not None and not self._has_raised:
            self._has_raised = True
            raise self.error.to_exception()
        raise StopAsyncIteration

    def _leave(self) -> None:
        if not self._is_left:
            self._is_left = True
            self._items.clear()
            self._wake()  # another task may be waiting for the next item
            if self.outcome is None:
                self._cancel(self)

    def too_slow(self) -> ErrorRecord:
        """The error of a caller that does not read."""
        return ErrorRecord(
            kind=ErrorKind.BUFFER_OVERFLOW,
            scope=Scope.REQUEST,
            request_id=self.request_id,
            message=f"more than {self._max_undelivered} outputs were not read by the caller (max_undelivered)",
        )


class _Gathered:
    """What arrived of one sample, by output."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Payload]] = {}
        self._partials: dict[str, Payload] = {}
        self._reasons: dict[str, FinishReason] = {}
        self._usage: dict[str, Mapping[str, int]] = {}

    def take(self, item: OmniOutput) -> None:
        arrived = self._pieces.setdefault(item.output, [])
        if item.delta is not None:
            arrived.append(item.delta)
        if item.partial is not None:
            self._partials[item.output] = item.partial
        if item.finish_reason is not None:
            self._reasons[item.output] = item.finish_reason
            self._usage[item.output] = item.usage

    def result(self, index: int) -> SampleResult:
        """All of it, joined; what an aborted stage handed over covers its pieces."""
        outputs = {
            name: self._partials[name] if name in self._partials else _whole(arrived)
            for name, arrived in self._pieces.items()
        }
        return SampleResult(index=index, outputs=outputs, finish_reasons=self._reasons, usage=self._usage)


def _whole(pieces: list[Payload]) -> Payload:
    try:
        return payloads.join(pieces)
    except ValueError:  # sounds of different rates: they stay apart, and the other requests of a batch are not harmed
        return pieces
