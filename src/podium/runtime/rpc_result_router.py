"""Matches answers to those who wait for them, on the callers' side. A correlation id is used once.

The core answers every call within the call's own limit; the router only brings the answer to the right waiter.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import Generic, TypeVar

from podium.errors import ErrorRecord

Reply = TypeVar("Reply")


class RpcResultRouter(Generic[Reply]):
    """Open calls by correlation id. Safe from any thread."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiters: dict[int, Future[Reply]] = {}

    def __repr__(self) -> str:
        return f"<RpcResultRouter {len(self._waiters)} calls open>"

    def __len__(self) -> int:
        return len(self._waiters)

    def open(self) -> tuple[int, Future[Reply]]:
        """A new correlation id, and where its answer will be."""
        call = next(self._ids)
        future: Future[Reply] = Future()
        self._waiters[call] = future
        return call, future

    def resolve(self, call: int, reply: Reply) -> None:
        """Bring an answer; one that nobody waits for (any more) is dropped."""
        future = self._waiters.pop(call, None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(reply)

    def forget(self, call: int) -> None:
        """Wait no longer for a call."""
        self._waiters.pop(call, None)

    def fail_everything(self, error: ErrorRecord) -> None:
        """Let every waiter hear of the end."""
        for call in list(self._waiters):
            future = self._waiters.pop(call, None)  # its owner may forget it meanwhile, in another thread
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(error.to_exception())
