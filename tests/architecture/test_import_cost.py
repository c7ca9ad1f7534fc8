"""`import podium` is cheap: it loads no engine, no transport, no web framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "vllm", "diffusers", "transformers", "zmq", "ray", "fastapi"}
INNER = ("podium", "podium.core", "podium.ports", "podium.runtime", "podium.testing", "podium.cli.main")


def modules_after_importing(name: str) -> set[str]:
    code = f"import sys, {name}; print(*{{module.split('.')[0] for module in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.rule("ORCH-INV-003")
@pytest.mark.parametrize("name", ["podium.core.orchestrator"])
def test_core_needs_no_shell(name: str) -> None:
    """The core runs where there is no event loop: nothing that it imports brings one along."""
    code = (
        "import sys, typing, msgspec, enum, graphlib, heapq, collections\n"
        "before = set(sys.modules)\n"
        f"import {name}\n"
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"asyncio", "threading", "random", "logging"}.isdisjoint(loaded)
    assert {module.split(".")[1] for module in loaded if module.startswith("podium.")} <= {"compiled", "core", "errors"}


@pytest.mark.parametrize("name", INNER)
def test_import_loads_nothing_heavy(name: str) -> None:
    assert modules_after_importing(name) & HEAVY == set()
