"""Health of an engine: alive when its loop answers, ready when each stage has a live replica too.

The answer is measured by asking the loop, never read from a flag that could be stale.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from podium.core.statistics import Statistics
from podium.errors import EngineStoppedError, WaitTimeoutError
from podium.runtime.host import EngineHost, HostState
from podium.runtime.observer import LoopStatistics
from podium.runtime.replica_slot import SlotPhase, SlotStatistics

StatisticsReader: TypeAlias = Callable[[], Awaitable[Statistics]]


class Health(msgspec.Struct, frozen=True):
    """`is_live`: the loop makes progress. `is_ready`: it serves every output. `reason` names the stage at fault.

    A stage in `restarting_stages` has a replica that is about to come back; with others it may be available even so.
    """

    is_live: bool
    is_ready: bool
    reason: str = ""
    unavailable_stages: tuple[str, ...] = ()
    restarting_stages: tuple[str, ...] = ()


class EngineStatistics(msgspec.Struct, frozen=True):
    """Everything an engine can say about itself. `streams` are requests that a caller still follows; `slots` are the
    places for replicas.
    """

    core: Statistics
    loop: LoopStatistics
    streams: int
    open_calls: int
    inbox_depth: int
    released_payloads: int
    slots: tuple[SlotStatistics, ...] = ()


async def check_health(host: EngineHost, read: StatisticsReader) -> Health:
    """Ask the loop with `read`, which raises WaitTimeoutError when that takes too long."""
    if host.state is not HostState.SERVING:
        return Health(is_live=False, is_ready=False, reason=f"the engine is {host.state}")
    try:
        core = await read()
    except (WaitTimeoutError, EngineStoppedError) as error:
        return Health(is_live=False, is_ready=False, reason=str(error))
    return judge(core, host.slots())


def judge(core: Statistics, slots: Sequence[SlotStatistics] = ()) -> Health:
    """Ready when each stage has at least one live replica."""
    missing = tuple(name for name, stage in core.stages.items() if not stage.is_available)
    coming = [slot for slot in slots if slot.is_coming]
    restarting = tuple(name for name in core.stages if any(slot.stage == name for slot in coming))
    if not missing:
        return Health(is_live=True, is_ready=True, restarting_stages=restarting)
    names = ", ".join(f"'{name}'" for name in missing)
    what = [_describe(slot) for slot in coming if slot.stage in missing]
    more = f" ({'; '.join(what)})" if what else ""
    return Health(
        is_live=True,
        is_ready=False,
        reason=f"no live replica of stage {names}{more}",
        unavailable_stages=missing,
        restarting_stages=restarting,
    )


_PHASES = {
    SlotPhase.STARTING: "is starting again",
    SlotPhase.CLOSING: "is being closed",
    SlotPhase.BACKING_OFF: "will start again soon",
}


def _describe(slot: SlotStatistics) -> str:
    failure = f", after this: {slot.failure}" if slot.failure else ""
    return f"replica {slot.slot} of stage '{slot.stage}' {_PHASES[slot.phase]}{failure}"
