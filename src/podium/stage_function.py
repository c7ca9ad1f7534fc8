"""What a user writes to have own code run as a stage: any callable, or a StageFunction where a callable is not enough.

Plain functions, generators, async functions and async generators need nothing of this module: they get one input item
and give one output, None for nothing, or several by yielding. The function backend hosts either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec


class StageFunction:
    """Base class of a hosted callable that takes parameters, has state per job, or holds something to release.

    A subclass defines `__call__(self, item)`, or `__call__(self, item, *, params)` when it has a `params_type`; it may
    be plain, a generator, async, or an async generator. One instance serves all jobs of a replica: with more than one
    worker, from several threads at once. It is constructed with the stage's `arguments`, away from the event loop, so
    that it may take its time to load.
    """

    params_type: ClassVar[type[msgspec.Struct] | None] = None
    """What callers may set per request, or None for nothing. Each field needs a default to be optional."""

    __call__: Callable[..., object]

    def for_job(self) -> Callable[..., object]:
        """The callable that serves one job; it is called when the job is submitted and must return at once.

        The default is the instance itself. Override it when a job needs state of its own, and return a new callable.
        """
        return self

    def close(self) -> None:
        """Release what the instance holds. Called once, away from the event loop, after the last job."""
        return
