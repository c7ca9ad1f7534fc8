"""The public API: every name is there, is loaded when it is used, and is the one from its home."""

from __future__ import annotations

import subprocess
import sys

import pytest

import podium
from podium import bootstrap


@pytest.mark.parametrize("name", podium.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert vars(podium)["__getattr__"](name).__name__ == name


def test_the_listed_names_are_those_with_a_home() -> None:
    assert sorted(podium._HOMES) == sorted(podium.__all__)


def test_an_unknown_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'podium' has no attribute 'Nothing'"):
        vars(podium)["__getattr__"]("Nothing")
    with pytest.raises(ImportError, match="Nothing"):
        exec("from podium import Nothing")


def test_the_engine_is_the_one_with_pipelines() -> None:
    assert podium.AsyncOmniEngine is bootstrap.AsyncOmniEngine
    assert podium.OmniEngine is bootstrap.OmniEngine


def test_importing_loads_nothing() -> None:
    script = "import sys, podium; print([name for name in sys.modules if name.startswith('podium.')])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['podium.compiled']", "which decides where modules are loaded from"


def test_there_is_a_version() -> None:
    assert [part.isdigit() for part in podium.__version__.split(".")] == [True] * 3
