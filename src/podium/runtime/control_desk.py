"""Where control calls leave the caller's side: targets and capabilities are checked, the answer is awaited.

What an engine of the pipeline cannot do is refused here, before anything is closed for it. It decides nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from podium.core.effects import ControlRecord, ReplyControl
from podium.core.events import ControlRequested
from podium.core.operations import CallMethod, Operation, PauseMode
from podium.errors import (
    KINDS,
    ControlError,
    ControlTimeoutError,
    ErrorKind,
    ErrorRecord,
    InvalidRequestError,
    Scope,
    UnsupportedError,
)
from podium.ports.environment import Clock
from podium.ports.stage_backend import Capabilities
from podium.runtime.marked_yaml import nearest
from podium.runtime.outputs import ControlReport
from podium.runtime.preparation import checked_limit_s
from podium.runtime.rpc_result_router import RpcResultRouter

ANSWER_GRACE_S = 5.0
"""How much later than its own limit a call is given up, should the loop itself not answer."""


class ControlDesk:
    """Sends operations to one engine's core, and brings their answers back. Used from any number of tasks."""

    def __init__(
        self,
        capabilities: Mapping[str, Capabilities],
        clock: Clock,
        router: RpcResultRouter[ReplyControl],
        post: Callable[[ControlRequested], None],
    ) -> None:
        """`capabilities` has every stage; `post` raises EngineStoppedError when nobody would handle the event."""
        self._capabilities = capabilities
        self._clock = clock
        self._router = router
        self._post = post

    def __repr__(self) -> str:
        return f"<ControlDesk {' '.join(self._capabilities)}, {len(self._router)} calls open>"

    async def ask(
        self, operation: Operation, stages: Sequence[str], timeout_s: float, not_applicable: Sequence[str] = ()
    ) -> ControlReport:
        """Have an operation carried out at `stages`.

        Raises ControlError, with the answer of each replica, when it failed anywhere; ControlTimeoutError when a
        replica did not answer within `timeout_s`.
        """
        limit_s = checked_limit_s(timeout_s, "timeout_s")
        call, reply = self._router.open()
        try:
            self._post(ControlRequested(call, operation, tuple(stages), self._clock.now() + limit_s))
            async with asyncio.timeout(limit_s + ANSWER_GRACE_S):
                answer = await asyncio.wrap_future(reply)
        except TimeoutError:
            raise ControlTimeoutError(_unanswered(limit_s)) from None
        finally:
            self._router.forget(call)
        if answer.error is not None:
            raise _exception(answer.error, answer.records)
        return ControlReport(answer.records, tuple(not_applicable))

    async def call(
        self, method: str, arguments: Mapping[str, object], stages: Sequence[str] | None, timeout_s: float
    ) -> ControlReport:
        """Call a method at `stages`, or at each that has it. Raises UnsupportedError where a named one has not."""
        able, unable = self.split(stages, lambda one: method in one.calls, f"has no '{method}'")
        return await self.ask(CallMethod(method, arguments), able, timeout_s, unable)

    def names(self, stages: object) -> tuple[str, ...]:
        """The stages that are meant: all of them for None."""
        if stages is None:
            return tuple(self._capabilities)
        if not isinstance(stages, list | tuple | set | frozenset):
            raise InvalidRequestError.because(f"stages: is a {type(stages).__name__}; pass a list of names")
        for name in stages:
            if name not in self._capabilities:
                raise InvalidRequestError.because(
                    f"stages: there is no stage '{name}'; {nearest(str(name), self._capabilities)}"
                )
        if not stages:
            raise InvalidRequestError.because("stages: none is named; leave it out to mean every stage")
        return tuple(name for name in self._capabilities if name in stages)

    def split(self, stages: object, is_able: Callable[[Capabilities], bool], lack: str) -> tuple[list[str], list[str]]:
        """The stages that are able, and those that are not. Raises UnsupportedError when one of those was named."""
        names = self.names(stages)
        able = [name for name in names if is_able(self._capabilities[name])]
        unable = [name for name in names if name not in able]
        if unable and (stages is not None or not able):
            raise UnsupportedError.because(f"stage '{unable[0]}' {lack}", stage=unable[0])
        return able, unable

    def check_mode(self, stages: Iterable[str], mode: PauseMode) -> None:
        """Raise UnsupportedError for a stage that cannot pause so."""
        for name in stages:
            modes = self._capabilities[name].pause_modes
            if mode not in modes:
                raise UnsupportedError.because(
                    f"mode: stage '{name}' cannot pause with '{mode}'; use {' or '.join(sorted(modes))}", stage=name
                )

    def sleep_tags(self, stages: Iterable[str], level: int, tags: object, *, force: bool) -> dict[str, tuple[str, ...]]:
        """What each stage shall give up. Raises InvalidRequestError for tags it has not, and unless forced for a level
        that cannot be undone.
        """
        wanted: dict[str, tuple[str, ...]] = {}
        for name in stages:
            capabilities = self._capabilities[name]
            if level in capabilities.irreversible_levels and not force:
                raise InvalidRequestError.because(
                    f"level: what stage '{name}' gives up at level {level} does not come back with a wake-up;"
                    " pass force=True, and load it anew afterwards"
                )
            wanted[name] = _chosen(name, capabilities.sleep_levels[level], tags)
        return wanted

    def wake_tags(self, stages: Iterable[str], tags: object) -> dict[str, tuple[str, ...]]:
        """What shall be there again at each stage."""
        return {
            name: _chosen(name, frozenset().union(*self._capabilities[name].sleep_levels.values()), tags)
            for name in stages
        }


def _chosen(stage: str, known: frozenset[str], tags: object) -> tuple[str, ...]:
    if tags is None:
        return tuple(sorted(known))
    if not isinstance(tags, list | tuple | set | frozenset):
        raise InvalidRequestError.because(f"tags: is a {type(tags).__name__}; pass a list of tags")
    for tag in tags:
        if tag not in known:
            raise InvalidRequestError.because(f"tags: stage '{stage}' has no '{tag}'; use {', '.join(sorted(known))}")
    if not tags:
        raise InvalidRequestError.because("tags: none is named; leave them out to mean all")
    return tuple(sorted(set(tags)))


def _exception(error: ErrorRecord, records: Sequence[ControlRecord]) -> Exception:
    kind = KINDS[error.kind].exception
    return kind(error, records) if issubclass(kind, ControlError) else error.to_exception()


def _unanswered(limit_s: float) -> ErrorRecord:
    return ErrorRecord(
        kind=ErrorKind.CONTROL_TIMEOUT,
        scope=Scope.ENGINE,
        awaited="the answer of the engine's loop",
        message=f"the engine's loop did not answer a control call within {limit_s:g} s",
    )
