"""The executors that podium has vLLM's engine process use: they end with their parent, and take calls for the workers.

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

from podium.backends.vllm.worker_calls import RUN, run

_GRACE_S = 5.0
SCHEDULING = "scheduling"
"""A tag that stays asleep: vLLM would otherwise start to schedule as soon as all of its memory is back."""


class _Guard:
    """What both kinds of executor have in common."""

    def _init_executor(self) -> None:
        end_with_parent()
        super()._init_executor()  # type: ignore[misc]

    def collective_rpc(self, method: object, *args: object, **kwargs: object) -> object:
        """As vLLM's; a call of podium's is a function, of which only the name was sent."""
        return super().collective_rpc(run if method == RUN else method, *args, **kwargs)  # type: ignore[misc]

    def sleep(self, level: int = 1) -> None:
        """As vLLM's; but waking up does not start the scheduler: only podium's `resume` does."""
        super().sleep(level)  # type: ignore[misc]
        self.sleeping_tags.add(SCHEDULING)  # type: ignore[attr-defined]


class GuardedMultiprocExecutor(_Guard, MultiprocExecutor):  # type: ignore[misc]
    """The executor with worker processes, in an engine process that does not outlive its parent."""


class GuardedUniProcExecutor(_Guard, UniProcExecutor):  # type: ignore[misc]
    """The executor without worker processes, in an engine process that does not outlive its parent."""


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
