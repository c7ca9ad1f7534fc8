"""Where every piece that came into the core went: used, released, or lost, which is a violation.

It is an Observer. Pieces are texts of which no two are the same; other payloads are none of its business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from podium.core.effects import Effect, EmitOutput, FeedJob, ReleasePayloads, StartJob
from podium.core.events import Event, RequestSubmitted, StageProduced
from podium.core.graph import Graph
from podium.core.identity import JobKey, Payload
from podium.core.orchestrator import Orchestrator
from podium.testing.simulation.ledger import planned


class PayloadAccount:
    """Counts what came, what was given on, and what was released."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._outputs: dict[Payload, tuple[str, ...] | None] = {}
        self._prompts: dict[JobKey, Payload] = {}
        self._made_by: dict[Payload, JobKey] = {}
        self._arrived: Counter[Payload] = Counter()
        self._released: Counter[Payload] = Counter()
        self._used: set[Payload] = set()

    def __repr__(self) -> str:
        return f"<PayloadAccount of {len(self._arrived)} pieces>"

    def on_start(self, core: Orchestrator) -> None:
        """Nothing is to be done."""

    def on_cost(self, events: int, seconds: float) -> None:
        """Nothing is to be done."""

    def on_end(self) -> None:
        """Nothing is to be done."""

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:  # noqa: ARG002 - the port
        """Enter what came, then where it went."""
        for event in events:
            if isinstance(event, StageProduced):
                for output in event.outputs:
                    self._arrived.update(output.payloads)
                    self._made_by.update(dict.fromkeys(output.payloads, output.job))
            elif isinstance(event, RequestSubmitted):
                self._outputs[event.prompt] = event.outputs
        for effect in effects:
            match effect:
                case EmitOutput() | FeedJob():
                    self._used.update(effect.payloads)
                case StartJob():
                    self._prompts[effect.job] = effect.prompt
                    for one in effect.inputs:
                        self._used.update(one.payloads)
                case ReleasePayloads():
                    self._released.update(payload for payload in effect.payloads if isinstance(payload, str))
                case _:
                    pass

    def find_violations(self) -> list[str]:
        """What is wrong once the core is idle."""
        return [fault for payload, arrivals in self._arrived.items() for fault in self._check(payload, arrivals)]

    def _check(self, payload: Payload, arrivals: int) -> Iterable[str]:
        released, is_used = self._released[payload], payload in self._used
        if released > arrivals:
            yield f"{payload} came {arrivals} times and was released {released} times"
        if self._takers(self._made_by[payload]) != 1:
            return  # whoever shares it gives it up without a word
        if not is_used and not released:
            yield f"{payload} was neither used nor released"
        if is_used and released >= arrivals:
            yield f"{payload} was used, and released {released} times of {arrivals}"

    def _takers(self, job: JobKey) -> int:
        """How many get what a job makes: consumers in its request's plan, and the client."""
        prompt = self._prompts.get(job)
        if prompt is None:
            return 1  # nobody's
        asked = self._outputs[prompt]
        finals = {self._graph.outputs[output].name for output in (self._graph.outputs if asked is None else asked)}
        needed = planned(self._graph, finals)
        return sum(consumer in needed for consumer in self._graph.consumers[job.stage]) + (job.stage in finals)
