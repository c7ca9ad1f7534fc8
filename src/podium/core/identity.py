"""The names by which the core, the ports and the shell mean the same thing: jobs, replicas, payload handles.

Nothing here has behaviour. A payload is a handle: the core passes it on and never looks inside.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Payload: TypeAlias = object
"""An opaque handle to data of a stage: by reference in one process, by name across processes."""

MAIN = "main"
"""The sibling of a request that has no others, and the role of every sibling that is no companion."""

PROMPT = "prompt"
"""The name under which a stage without sources gets the request's prompt, as if it came from a source."""


def sibling_name(sample: int, samples: int, role: str = MAIN) -> str:
    """What a sibling is called: `main`, or `0`, `1` … where there are several samples; a companion adds its role."""
    base = MAIN if samples == 1 else str(sample)
    return base if role == MAIN else f"{base}.{role}"


class JobKey(NamedTuple):
    """The work of one request at one stage for one sibling.

    `attempt` is never used twice by one core, whatever happens to request ids: so what is late for a former attempt,
    or for a former use of the same request id, matches nothing.
    """

    request: str
    stage: str
    sibling: str
    attempt: int

    @property
    def sample(self) -> int:
        """Which of the request's samples it belongs to, counted from 0."""
        base = self.sibling.partition(".")[0]
        return int(base) if base.isdigit() else 0

    @property
    def role(self) -> str:
        """`main`, or the role of the companion that it works for."""
        return self.sibling.partition(".")[2] or MAIN

    def __str__(self) -> str:
        return f"{self.request}/{self.stage}/{self.sibling}#{self.attempt}"


class ReplicaKey(NamedTuple):
    """One life of one replica: a replica that is replaced in its slot gets the next generation."""

    stage: str
    slot: int
    generation: int

    def __str__(self) -> str:
        return f"{self.stage}[{self.slot}]@{self.generation}"
