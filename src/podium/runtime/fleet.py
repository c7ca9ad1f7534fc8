"""The physical life of replicas: started all or none, retired one by one, closed together; always with a limit.

It knows nothing of requests. That a replica is lost is said by its client; what that means is the core's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from podium.core.identity import ReplicaKey
from podium.errors import ErrorRecord, StartError
from podium.ports.stage_client import EventSink, StageClient
from podium.tasks import OwnedTask

_log = logging.getLogger("podium.fleet")

Progress = Callable[[str, str], None]
"""Hears of a stage's start: the stage, and a few words."""


class ReplicaSpec(NamedTuple):
    """One replica to start: how to make its client, and how long that may take (seconds)."""

    key: ReplicaKey
    make_client: Callable[[], StageClient]
    start_timeout_s: float


class Fleet:
    """All replicas of one engine."""

    def __init__(
        self, specs: Sequence[ReplicaSpec], sink: EventSink, on_progress: Progress, close_timeout_s: float
    ) -> None:
        self._specs = tuple(specs)
        self._sink = sink
        self._on_progress = on_progress
        self.close_timeout_s = close_timeout_s
        self._clients: dict[ReplicaKey, StageClient] = {}
        self._retiring: dict[ReplicaKey, OwnedTask] = {}

    def __repr__(self) -> str:
        return f"<Fleet of {len(self._clients)} replicas, {len(self._retiring)} retiring>"

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        """The replicas that are up."""
        return tuple(self._clients)

    def find(self, replica: ReplicaKey) -> StageClient | None:
        """The client of that very generation."""
        return self._clients.get(replica)

    async def start(self) -> None:
        """Start every replica, at the same time. Raises StartError of the first that fails.

        When it raises, or is cancelled, `close` ends the others, the late ones too.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for spec in self._specs:
                    group.create_task(self._start_one(spec))
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures

    def retire(self, replica: ReplicaKey, error: ErrorRecord | None) -> None:
        """Close one replica in the background; it is not found any more."""
        client = self._clients.pop(replica, None)
        if client is None:
            return
        if error is not None:
            _log.error("%s is closed: %s", replica, error.message)
        task = self._retiring[replica] = OwnedTask(f"closing {replica}", self._note_failure)
        task.start(self._close_one(client))

    async def close(self) -> None:
        """Close every replica, at the same time; each within the limit. Idempotent."""
        clients = list(self._clients.values())
        self._clients.clear()
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(self._close_one(client))
            for replica, retiring in list(self._retiring.items()):
                group.create_task(self._end_retiring(replica, retiring))

    async def _start_one(self, spec: ReplicaSpec) -> None:
        stage = spec.key.stage
        self._on_progress(stage, "starting")
        limit = asyncio.timeout(spec.start_timeout_s)
        try:
            client = self._clients[spec.key] = spec.make_client()
            async with limit:
                await client.start(self._sink)
        except StartError:
            raise
        except Exception as error:  # foreign code; whatever it raises, the start names the stage
            if isinstance(error, TimeoutError) and limit.expired():
                raise StartError(
                    stage, f"not ready after {spec.start_timeout_s:g} s (limits.start_timeout_s)"
                ) from error
            raise StartError(stage, f"{type(error).__name__}: {error}") from error
        self._on_progress(stage, "ready")

    async def _close_one(self, client: StageClient) -> None:
        try:
            async with asyncio.timeout(self.close_timeout_s):
                await client.close()
        except TimeoutError:
            _log.error("%s did not close within %g s and is abandoned", client.replica, self.close_timeout_s)
        except Exception:  # noqa: BLE001 - foreign code; closing the others goes on
            _log.exception("%s failed while it was closed", client.replica)
        finally:
            self._retiring.pop(client.replica, None)

    async def _end_retiring(self, replica: ReplicaKey, retiring: OwnedTask) -> None:
        """Wait no longer for what was begun before than for what is closed now."""
        try:
            async with asyncio.timeout(self.close_timeout_s):
                await retiring.wait()
        except TimeoutError:
            _log.error("%s did not close within %g s more and is abandoned", replica, self.close_timeout_s)
            await retiring.close()

    def _note_failure(self, failure: BaseException) -> None:
        _log.error("closing a replica failed", exc_info=failure)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that the others followed from."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
