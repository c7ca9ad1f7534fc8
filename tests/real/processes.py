"""Processes as /proc shows them: whose they are, what they are called, whether they still run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def descendants(root: int | None = None) -> dict[int, str]:
    """The processes below `root` (this one, by default), without Python's resource tracker, with their titles.

    The tracker belongs to this process and stays until it ends.
    """
    found: dict[int, str] = {}
    pending = [os.getpid() if root is None else root]
    while pending:
        for child in _children(pending.pop()):
            found[child] = title_of(child)
            pending.append(child)
    return {process: title for process, title in found.items() if "resource_tracker" not in title}


def find_process(name: str) -> int:
    """The descendant that has `name` in its title; raises LookupError when there is none, or several."""
    found = [process for process, title in descendants().items() if name in title]
    if len(found) != 1:
        raise LookupError(f"{len(found)} processes are called '{name}': {descendants()}")
    return found[0]


def still_running(processes: dict[int, str]) -> dict[int, str]:
    """Those that neither have ended nor were replaced by others of the same id."""
    return {process: title for process, title in processes.items() if _is_running(process)}


def title_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def engine_process_of(worker: object) -> int:
    """The engine process of a worker, when it is called there: the worker's own, or the parent of that."""
    return next(process for process in (os.getpid(), os.getppid()) if "EngineCore" in title_of(process))


def _children(process: int) -> list[int]:
    children: list[int] = []
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, listing.read_text().split())
    return children


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
