"""The one loop: events in, a step of the core, effects out.

It performs effects by posting them onwards and waits for nothing but its inbox. What an effect means is the business of
those it is posted to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, assert_never

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
from podium.core.events import Event, InputRejected
from podium.core.identity import ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind, ErrorRecord, Scope
from podium.ports.environment import Environment
from podium.ports.stage_client import JobCommand, OutboxFullError, StageClient
from podium.runtime.inbox import Inbox

CallerEffect: TypeAlias = EmitOutput | EndRequest | RefuseRequest | ReplyAbort | ReplyControl


class Outlet(Protocol):
    """Takes what is meant for callers, without waiting."""

    def deliver(self, effect: CallerEffect) -> None:
        """Hand on towards the caller; it may wait for `flush`."""
        ...

    def flush(self) -> None:
        """Everything of this turn was delivered."""
        ...


class Replicas(Protocol):
    """Knows the clients of the replicas that are up."""

    def find(self, replica: ReplicaKey) -> StageClient | None:
        """The client of that very generation."""
        ...

    def retire(self, replica: ReplicaKey, error: ErrorRecord | None) -> None:
        """Close a replica, elsewhere and with a limit."""
        ...


class Driver:
    """Drives one core until it is closed. `meter` has the cost of the loop itself."""

    def __init__(
        self,
        core: Orchestrator,
        inbox: Inbox,
        environment: Environment,
        outlet: Outlet,
        replicas: Replicas,
    ) -> None:
        self._core = core
        self._inbox = inbox
        self._clock, self._store, self._observer = environment
        self._outlet = outlet
        self._replicas = replicas
        self._closed = False

    def __repr__(self) -> str:
        return f"<Driver of {self._core!r}{', closed' if self._closed else ''}>"

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Take events, step, perform; until closed. What it raises is fatal to the engine.

        `on_ready` is called once what was in the inbox before is handled.
        """
        self._observer.on_start(self._core)
        try:
            if self._inbox:
                await self._turn()
            on_ready()
            while self._inbox or not self._closed:
                await self._turn()
        finally:
            self._observer.on_end()

    async def _turn(self) -> None:
        events = await self._inbox.get(self._core.next_deadline())
        began = time.perf_counter()
        now = self._clock.now()
        effects = self._step(events, now)
        self._observer.on_step(events, now, effects)
        for effect in effects:
            self._perform(effect)
        self._outlet.flush()
        self._observer.on_cost(len(events), time.perf_counter() - began)

    def _step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        try:
            return self._core.step(events, now)
        except Exception:  # it is raised again, whatever it is
            self._observer.on_step(events, now, ())  # so that a journal has the step that broke the core
            raise

    def close(self) -> None:
        """Let `run` return once the events that are in the inbox are handled."""
        self._closed = True
        self._inbox.wake()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case FeedJob() | StartJob() | EndInput() | StopJob():
                self._post(effect)
            case EmitOutput() | EndRequest() | RefuseRequest() | ReplyAbort() | ReplyControl():
                self._outlet.deliver(effect)
            case CallReplica():
                self._call(effect)
            case CloseReplica():
                self._replicas.retire(effect.replica, effect.error)
            case ReleasePayloads():
                self._store.release(effect.payloads)
            case _:
                assert_never(effect)

    def _call(self, call: CallReplica) -> None:
        client = self._replicas.find(call.replica)
        if client is not None:  # otherwise its loss is in the inbox
            client.post(call)

    def _post(self, command: JobCommand) -> None:
        client = self._replicas.find(command.replica)
        if client is None:
            return  # its loss is in the inbox
        try:
            client.post(command)
        except OutboxFullError as full:
            error = ErrorRecord(
                kind=ErrorKind.STAGE_UNAVAILABLE,
                scope=Scope.REPLICA,
                stage=command.replica.stage,
                replica=command.replica.slot,
                message=f"stage '{command.replica.stage}' does not take its commands: {full}",
            )
            self._inbox.post(InputRejected(command.replica, command.job, error))
