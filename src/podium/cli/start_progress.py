"""Shows what the stages do while an engine starts: a line with a spinner and a clock each, or plain lines in a log.

It writes to the console it is given (standard error) and is gone before the first output. What backends say of their
start, they say to the log `podium.progress`; it listens there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_log = logging.getLogger("podium.progress")


class StartProgress:
    """Use it as a context, and as the `on_progress` of an engine. Safe to call from any thread."""

    def __init__(self, console: Console, stages: Iterable[str]) -> None:
        self._console = console
        self._began = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", style="bold", markup=False),
            TextColumn("{task.fields[message]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._listener = _Listener(self)
        self._level = logging.NOTSET
        self._tasks: dict[str, TaskID] = {}
        for stage in stages:
            self._add(stage, "waiting")

    def __enter__(self) -> Self:
        self._level = _log.level
        _log.addHandler(self._listener)
        _log.setLevel(logging.INFO)
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __call__(self, stage: str, message: str) -> None:
        """Note what `stage` is doing now."""
        if not self._console.is_terminal:
            elapsed_s = time.monotonic() - self._began
            self._console.print(
                f"{elapsed_s:6.1f} s  {stage}: {message}", markup=False, highlight=False, soft_wrap=True
            )
        elif stage in self._tasks:
            self._progress.update(self._tasks[stage], message=message)
        else:
            self._add(stage, message)

    def refresh(self) -> None:
        """Draw what is known now; it is drawn ten times a second anyway."""
        self._progress.refresh()

    def end(self) -> None:
        """Take the lines away, and listen no more. Idempotent."""
        if self._listener in _log.handlers:
            _log.removeHandler(self._listener)
            _log.setLevel(self._level)
        if self._console.is_terminal:
            self._progress.stop()

    def _add(self, stage: str, message: str) -> None:
        self._tasks[stage] = self._progress.add_task(stage, total=None, message=message)


class _Listener(logging.Handler):
    """Passes on what a stage does, where a record says both; the rest is for logs."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        said = vars(record)
        if "stage" in said and "doing" in said:
            self._show(str(said["stage"]), str(said["doing"]))
