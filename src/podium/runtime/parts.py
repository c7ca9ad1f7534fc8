"""What an engine is assembled from: its pipeline, and for each stage how to check parameters and make replicas.

`podium.bootstrap` assembles the parts of pipeline files; tests and embedders may assemble their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from podium.core.admission import EngineLimits
from podium.core.graph import Graph
from podium.core.identity import Payload, ReplicaKey
from podium.ports.stage_backend import Capabilities
from podium.ports.stage_client import StageClient
from podium.runtime.config import StageParams
from podium.runtime.replica_slot import NO_RESTART, ReplicaSpec, RestartLimits


class StageParts(NamedTuple):
    """One stage: `parse_params` checks merged sampling parameters (raises InvalidRequestError).

    `restart` says how a lost replica comes back; without it, it does not.
    """

    capabilities: Capabilities
    parse_params: Callable[[Mapping[str, object]], Payload]
    make_client: Callable[[ReplicaKey], StageClient]
    replicas: int = 1
    restart: RestartLimits = NO_RESTART


class EngineParts(NamedTuple):
    """One engine: its graph, what runs each stage of it, the default parameters of its file, and its limits.

    `companions` makes the prompts of a request's CFG companions: it is called with the prompt and with the parameters
    of every stage, and returns a mapping of roles to prompts, in the order in which they are joined.
    """

    graph: Graph
    stages: Mapping[str, StageParts]
    default_params: StageParams
    limits: EngineLimits = EngineLimits()
    companions: Callable[..., object] | None = None

    def replica_specs(self) -> list[ReplicaSpec]:
        """Every replica to start, in the order of the stages."""
        return [
            ReplicaSpec(ReplicaKey(name, slot, 0), parts.make_client, stage.limits.start_timeout_s, parts.restart)
            for name, stage in self.graph.stages.items()
            for parts in (self.stages[name],)
            for slot in range(parts.replicas)
        ]
