"""Errors for people and programs: one clear line, or one object, and the exit code that goes with it.

Every verb reports through `Problem`; the exit codes of requests are those of `podium.errors.KINDS`.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from podium.errors import (
    ConfigurationError,
    ErrorKind,
    ErrorRecord,
    Fault,
    PodiumError,
    RequestError,
    StartError,
)

USAGE_EXIT, START_EXIT, INTERNAL_EXIT, INTERRUPTED_EXIT = 2, 69, 70, 130

EXIT_CODES = {
    0: "success",
    1: "a stage failed",
    2: "wrong usage, an invalid request, or a faulty pipeline file",
    69: "a stage or the engine is not available, or did not start",
    70: "the engine died: a bug, or a broken machine",
    75: "overloaded; try again later",
    124: "a deadline or another limit of time was exceeded",
    130: "interrupted; what was produced until then is saved",
}

_HINTS = {
    ErrorKind.DUPLICATE_REQUEST_ID: "choose another --request-id, or leave it out",
    ErrorKind.DEADLINE_EXCEEDED: "raise --deadline",
    ErrorKind.WAIT_TIMEOUT: "raise the limit that the message names, in the pipeline file",
    ErrorKind.BUFFER_OVERFLOW: "raise the limit that the message names, in the pipeline file",
    ErrorKind.STAGE_UNAVAILABLE: "see the log above for what the stage said",
    ErrorKind.REPLICA_LOST: "see the log above for what the stage said",
    ErrorKind.ENGINE_DEAD: "see the log above; please report it with the journal",
}


class Problem(NamedTuple):
    """Why a verb did not succeed. `hint` may be empty; `faults` are those of a pipeline file."""

    kind: str
    message: str
    exit_code: int
    stage: str | None = None
    hint: str = ""
    status: int | None = None
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The object that `--json` shows."""
        return {
            "kind": self.kind,
            "message": self.message,
            "stage": self.stage,
            "hint": self.hint or None,
            "status": self.status,
            "exit_code": self.exit_code,
            "faults": [fault._asdict() for fault in self.faults],
        }


def problem_of(error: PodiumError) -> Problem:
    """What to report for an error, whichever it is."""
    if isinstance(error, RequestError):
        return problem_of_record(error.record)
    if isinstance(error, ConfigurationError):
        faults = error.faults
        count = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}"
        return Problem("configuration", f"{error.subject}: {count}", USAGE_EXIT, faults=faults)
    if isinstance(error, StartError):
        return Problem("start", str(error), START_EXIT, error.stage, "see the log above for what the stage said")
    return Problem("internal", str(error), INTERNAL_EXIT, hint="this is a bug of podium; please report it")


def problem_of_record(record: ErrorRecord) -> Problem:
    """What to report for the error of a request."""
    hint = _HINTS.get(record.kind, "")
    if record.retry_after_s is not None:
        hint = f"try again in {record.retry_after_s:g} s"
    return Problem(record.kind, record.message, record.exit_code, record.stage, hint, record.status)


def print_problem(console: Console, problem: Problem) -> None:
    """One red line (kind, stage, message, hint), and below it one for each fault."""
    line = Text(f"error: {problem.kind}", "bold red")
    if problem.stage is not None and f"'{problem.stage}'" not in problem.message:
        line.append(f" in stage '{problem.stage}'")
    line.append(f": {problem.message}", "red")
    if problem.hint:
        line.append(f" ({problem.hint})", "red")
    console.print(line, soft_wrap=True)
    print_faults(console, problem.faults)


def print_faults(console: Console, faults: tuple[Fault, ...]) -> None:
    """Each fault with its line, what is wrong, and the remedy."""
    for fault in faults:
        line = Text("  ")
        if fault.line:
            line.append(f"line {fault.line}: ", "cyan")
        line.append(f"{fault.where}: ", "bold")
        line.append(f"{fault.problem}; ")
        line.append(fault.remedy, "green")
        console.print(line, soft_wrap=True)
