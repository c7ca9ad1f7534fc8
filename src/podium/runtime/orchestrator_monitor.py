"""Health of an engine: alive when its loop answers, ready when each stage has a live replica too.

The answer is measured by asking the loop, never read from a flag that could be stale.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from podium.core.statistics import Statistics
from podium.errors import EngineStoppedError, WaitTimeoutError
from podium.runtime.host import EngineHost, HostState
from podium.runtime.observer import LoopStatistics

StatisticsReader: TypeAlias = Callable[[], Awaitable[Statistics]]


class Health(msgspec.Struct, frozen=True):
    """`is_live`: the loop makes progress. `is_ready`: it serves every output. `reason` names the stage at fault."""

    is_live: bool
    is_ready: bool
    reason: str = ""
    unavailable_stages: tuple[str, ...] = ()


class EngineStatistics(msgspec.Struct, frozen=True):
    """Everything an engine can say about itself. `streams` are requests that a caller still follows."""

    core: Statistics
    loop: LoopStatistics
    streams: int
    open_calls: int
    inbox_depth: int
    released_payloads: int


async def check_health(host: EngineHost, read: StatisticsReader) -> Health:
    """Ask the loop with `read`, which raises WaitTimeoutError when that takes too long."""
    if host.state is not HostState.SERVING:
        return Health(is_live=False, is_ready=False, reason=f"the engine is {host.state}")
    try:
        core = await read()
    except (WaitTimeoutError, EngineStoppedError) as error:
        return Health(is_live=False, is_ready=False, reason=str(error))
    return judge(core)


def judge(core: Statistics) -> Health:
    """Ready when each stage has at least one live replica."""
    missing = tuple(name for name, stage in core.stages.items() if not stage.is_available)
    if not missing:
        return Health(is_live=True, is_ready=True)
    names = ", ".join(f"'{name}'" for name in missing)
    return Health(is_live=True, is_ready=False, reason=f"no live replica of stage {names}", unavailable_stages=missing)
