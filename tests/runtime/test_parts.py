"""What an engine is assembled from."""

from __future__ import annotations

from podium.core.graph import Limits
from podium.core.identity import ReplicaKey
from tests.support.core_world import make_stage
from tests.support.shell_world import ShellWorld


def test_every_replica_of_every_stage_is_started_within_its_own_limit() -> None:
    slow = make_stage("slow", output="text", limits=Limits(start_timeout_s=7.0))
    world = ShellWorld(slow, make_stage("quick", output="other"), replicas=2)
    specs = world.parts().replica_specs()
    assert [(spec.key, spec.start_timeout_s) for spec in specs] == [
        (ReplicaKey("slow", 0, 0), 7.0),
        (ReplicaKey("slow", 1, 0), 7.0),
        (ReplicaKey("quick", 0, 0), Limits().start_timeout_s),
        (ReplicaKey("quick", 1, 0), Limits().start_timeout_s),
    ]
    assert world.backends == {}, "nothing is made before it is started"
    assert [spec.make_client(spec.key).replica for spec in specs] == [spec.key for spec in specs]
    assert list(world.backends) == [spec.key for spec in specs]
