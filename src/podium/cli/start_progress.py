"""Shows what the stages do while an engine starts: a line with a spinner and a clock each, or plain lines in a log.

It writes to the console it is given (standard error) and is gone before the first output.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


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
        self._tasks: dict[str, TaskID] = {}
        for stage in stages:
            self._add(stage, "waiting")

    def __enter__(self) -> Self:
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
        """Take the lines away. Idempotent."""
        if self._console.is_terminal:
            self._progress.stop()

    def _add(self, stage: str, message: str) -> None:
        self._tasks[stage] = self._progress.add_task(stage, total=None, message=message)
