"""What all tests share: coroutines as tests, marks that are checked, real engines only where they are installed."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import re
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
IDENTIFIERS = {"rule": re.compile(r"ORCH-INV-\d{3}"), "case": re.compile(r"[A-Z]\d{3}")}

# The same examples every time. PODIUM_HYPOTHESIS=explore looks for new ones, PODIUM_HYPOTHESIS=once leaves a failure
# as it was found (for tools/mutate.py). No deadlines: they measure the machine.
hypothesis.settings.register_profile("repeat", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.register_profile("once", deadline=None, derandomize=True, phases=[hypothesis.Phase.generate])
hypothesis.settings.load_profile(os.environ.get("PODIUM_HYPOTHESIS", "repeat"))

if importlib.util.find_spec("vllm") is None and not os.environ.get("PODIUM_REQUIRE_ENGINES"):
    collect_ignore = ["real"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check what tests cite, and let the engines' own code warn without failing a test."""
    for item in items:
        for name, pattern in IDENTIFIERS.items():
            for mark in item.iter_markers(name):
                if not mark.args or not all(isinstance(one, str) and pattern.fullmatch(one) for one in mark.args):
                    raise pytest.UsageError(f"{item.nodeid}: {name}{mark.args} should name ids like {pattern.pattern}")
        if TESTS / "real" in item.path.parents:
            for line in ("error:::podium.*", "default"):  # the mark that is added last is applied first
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function as a test, in a loop of its own; a task that outlives it fails it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs}

    async def run_and_look_around() -> None:
        await pyfuncitem.obj(**arguments)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks outlived the test: {left}"

    asyncio.run(run_and_look_around())
    return True
