"""The processes that one vLLM engine started: who they are, and how they end for certain.

Only what descends from the given root processes is ever signalled. psutil comes with vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class RootProcess(Protocol):
    """A process of `multiprocessing` that vLLM started."""

    @property
    def pid(self) -> int | None:
        """Its id, once it was started."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, for at most `timeout` seconds, and reap it."""
        ...


class ProcessTree:
    """Remembers processes with their start times, so that a reused process id is never signalled."""

    def __init__(self, roots: Iterable[RootProcess]) -> None:
        import psutil  # noqa: PLC0415 - with the engine only

        self._psutil = psutil
        self._roots = tuple(roots)
        self._members: list[psutil.Process] = []
        self.refresh()

    def refresh(self) -> None:
        """Take in the processes that were started since."""
        known = set(self._members)
        for root in self._roots:
            try:
                process = self._psutil.Process(root.pid)
                fresh = [process, *process.children(recursive=True)]
            except self._psutil.Error:
                continue
            self._members += [member for member in fresh if member not in known]

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of those that still run."""
        return tuple(member.pid for member in self._members if self._is_running(member))

    def kill(self, timeout_s: float) -> None:
        """Kill those that still run, and wait for their end, for at most `timeout_s`."""
        self.refresh()
        for member in self._members:
            if self._is_running(member):
                try:
                    member.kill()
                except self._psutil.NoSuchProcess:
                    continue
        for root in self._roots:
            if root.pid is not None:
                root.join(timeout_s)
        roots = {root.pid for root in self._roots}
        self._psutil.wait_procs([member for member in self._members if member.pid not in roots], timeout=timeout_s)

    def _is_running(self, member: object) -> bool:
        try:
            return bool(member.is_running() and member.status() != self._psutil.STATUS_ZOMBIE)  # type: ignore[attr-defined]
        except self._psutil.NoSuchProcess:
            return False
