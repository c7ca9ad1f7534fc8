"""Which core a process runs on: the compiled one where it fits the sources, the sources where it does not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from podium import compiled
from tools import compile as compiling
from tools import install

COMPILED_NAMES = {"podium__mypyc", *(f"podium.core.{name}" for name in compiling.MODULES)}

needs_compiled = pytest.mark.skipif(
    not (compiled.NATIVE / compiled.folder_name()).is_dir(),
    reason="the core is not compiled, or has changed since: .venv/bin/python -m tools.compile",
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the same shape, whose one compiled module fits its sources."""
    package = tmp_path / "podium"
    (package / "core").mkdir(parents=True)
    (package / "core" / "state.py").write_text("limit = 1\n", encoding="utf-8")
    (package / "errors.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(compiled, "PACKAGE", package)
    monkeypatch.setattr(compiled, "NATIVE", package / "_native")
    monkeypatch.delenv("PODIUM_PURE", raising=False)
    module = package / "_native" / compiled.folder_name() / "podium" / "core" / f"state{EXTENSION_SUFFIXES[0]}"
    module.parent.mkdir(parents=True)
    module.touch()
    compiled.modules.cache_clear()
    yield package
    compiled.modules.cache_clear()


def test_what_fits_the_sources_is_found(package: Path) -> None:
    spec = compiled.CompiledFinder.find_spec("podium.core.state")
    assert spec is not None
    assert spec.origin == str(compiled.modules()["podium.core.state"])
    assert compiled.describe() == "compiled core"


@pytest.mark.parametrize("name", ["podium.core.graph", "podium", "asyncio", "state"])
def test_everything_else_is_left_to_others(package: Path, name: str) -> None:
    assert compiled.CompiledFinder.find_spec(name) is None


@pytest.mark.parametrize("source", ["core/state.py", "core/added.py", "errors.py"])
def test_an_edited_source_brings_back_the_sources(package: Path, source: str) -> None:
    (package / source).write_text("limit = 2\n", encoding="utf-8")
    assert compiled.modules() == {}
    assert compiled.describe() == "pure Python: the core has changed since it was compiled"


def test_a_source_of_the_shell_changes_nothing(package: Path) -> None:
    (package / "bootstrap.py").touch()
    assert set(compiled.modules()) == {"podium.core.state"}


def test_modules_for_another_python_are_not_taken(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "EXTENSION_SUFFIXES", [".cpython-399-x86_64-linux-gnu.so"])
    assert compiled.modules() == {}


@pytest.mark.parametrize(("value", "is_pure"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_selects_the_sources(
    package: Path, monkeypatch: pytest.MonkeyPatch, value: str, is_pure: bool
) -> None:
    monkeypatch.setenv("PODIUM_PURE", value)
    assert (compiled.describe() == "pure Python: PODIUM_PURE is set") is is_pure
    assert (compiled.modules() == {}) is is_pure


def test_nothing_is_compiled_when_nothing_was(package: Path) -> None:
    shutil.rmtree(package / "_native")
    assert compiled.describe() == "pure Python: it was not compiled"


def test_the_finder_is_asked_once() -> None:
    compiled.install()
    assert sys.meta_path.count(compiled.CompiledFinder) == 1


# What the build does


def test_without_a_c_compiler_podium_stays_python(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    (package / "errors.py").write_text("changed = True\n", encoding="utf-8")
    assert compiling.main() == 0
    assert "no C compiler" in capsys.readouterr().out
    assert compiled.modules() == {}


def test_a_build_appears_in_one_piece(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "errors.py").write_text("changed = True\n", encoding="utf-8")

    def interrupted(folder: Path) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiling.compile_core()
    assert not (compiled.NATIVE / compiled.folder_name()).exists()
    assert len(list(compiled.NATIVE.iterdir())) == 1, "what was there before"


def test_a_build_is_made_once_and_old_ones_go(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(folder: Path) -> None:
        folder.mkdir()
        (folder / compiling.RECIPE).write_text(compiling.recipe(), encoding="utf-8")
        os.utime(folder / compiling.RECIPE, (len(built), len(built)))
        built.append(compiled.folder_name())

    monkeypatch.setattr(compiling, "build", build)
    for number in range(compiling.KEPT + 2):
        (package / "errors.py").write_text(f"number = {number}\n", encoding="utf-8")
        compiling.compile_core()
        compiling.compile_core()
    assert len(built) == compiling.KEPT + 2
    kept = {recipe.parent.name for recipe in compiled.NATIVE.glob(f"*/{compiling.RECIPE}")}
    assert kept == set(built[-compiling.KEPT :])


def test_another_mypy_builds_anew(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiled.NATIVE / compiled.folder_name()
    (folder / compiling.RECIPE).write_text(compiling.recipe(), encoding="utf-8")
    assert compiling.is_up_to_date(folder)
    monkeypatch.setattr(compiling, "version", lambda name: "0.1")
    assert not compiling.is_up_to_date(folder)


def test_wheels_and_checkouts_are_compiled_by_the_same_mypy() -> None:
    hook = (install.ROOT / "tools" / "build_hook.py").read_text(encoding="utf-8")
    (wanted,) = re.findall(r'"(mypy==[^"]+)"', hook)
    assert wanted in install.pinned(install.ROOT / install.LISTS["dev"][0])


# The real thing


def what_runs(package: Path, **variables: str) -> str:
    """What a fresh process says of the core that it got from `package`, after one step of it."""
    code = (
        "import sys\n"
        "from podium import compiled\n"
        "from podium.core import graph, orchestrator\n"
        "stage = graph.Stage(name='a', kind=graph.StageKind.FUNCTION, produces=graph.Modality.TEXT, output='text')\n"
        "core = orchestrator.Orchestrator(graph.Graph([stage]))\n"
        "assert core.step([], 0.0) == []\n"
        "print(compiled.describe(), orchestrator.__file__.rpartition('.')[2], sep=', ')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PODIUM_PURE"}
    environment |= {"PYTHONPATH": str(package.parent), **variables}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return run.stdout.strip()


@needs_compiled
def test_what_was_compiled_runs_until_a_source_changes(tmp_path: Path) -> None:
    package = tmp_path / "podium"
    shutil.copytree(Path(compiled.__file__).parent, package)
    assert what_runs(package) == "compiled core, so"
    assert what_runs(package, PODIUM_PURE="1") == "pure Python: PODIUM_PURE is set, py"
    with (package / "core" / "state.py").open("a", encoding="utf-8") as source:
        source.write("# edited\n")
    assert what_runs(package) == "pure Python: the core has changed since it was compiled, py"


@needs_compiled
@pytest.mark.skipif(compiled.is_pure_wanted(), reason="PODIUM_PURE is set")
def test_these_modules_are_compiled() -> None:
    assert set(compiled.modules()) == COMPILED_NAMES
    for name in COMPILED_NAMES & sys.modules.keys():
        assert sys.modules[name].__file__ == str(compiled.modules()[name])
