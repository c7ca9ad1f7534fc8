"""Ends vLLM's engine process when the process that started it dies, whatever way it dies.

vLLM's workers end with their engine process, but that one would stay for ever. Imported in the engine process and where
an engine is started; it needs vLLM.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

_GRACE_S = 5.0


class GuardedMultiprocExecutor(MultiprocExecutor):  # type: ignore[misc]
    """The executor with worker processes, in an engine process that does not outlive its parent."""

    def _init_executor(self) -> None:
        end_with_parent()
        super()._init_executor()


class GuardedUniProcExecutor(UniProcExecutor):  # type: ignore[misc]
    """The executor without worker processes, in an engine process that does not outlive its parent."""

    def _init_executor(self) -> None:
        end_with_parent()
        super()._init_executor()


def guarded(executor: type[Executor]) -> type[Executor]:
    """The executor class that does the same and guards; classes of other kinds stay as they are."""
    return {MultiprocExecutor: GuardedMultiprocExecutor, UniProcExecutor: GuardedUniProcExecutor}.get(
        executor, executor
    )


def end_with_parent() -> None:
    """From now on, end this process when its parent process has ended. Nothing happens in a process without one."""
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_wait_and_end, name="podium parent watch", daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # vLLM then ends its workers
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
