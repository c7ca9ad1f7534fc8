"""What the installed build of vLLM can do on its device, known without importing it.

vLLM's CPU build takes a call to give up memory, and does nothing: so here it is not offered at all.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

SCHEDULING = "scheduling"
"""What every level puts to sleep; at level 0 it is all."""
MEMORY = frozenset({"weights", "kv_cache"})

DISCARDING_LEVEL = 2
"""At this level weights are not kept anywhere: after a wake-up they have to be loaded again."""


def sleep_levels() -> dict[int, frozenset[str]]:
    """The levels that engines of this build can sleep at, each with what it gives up."""
    levels = {0: frozenset({SCHEDULING})}
    if not is_cpu_build():
        levels |= {1: MEMORY, DISCARDING_LEVEL: MEMORY}
    return levels


def is_cpu_build() -> bool:
    """Whether vLLM is built for CPUs, or not there."""
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        return True
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # builds for CPUs go by another name
        return True
