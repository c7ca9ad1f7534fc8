"""Compiles the core's hot modules with mypyc into `src/podium/_native/`, in `make install` and when a wheel is built.

Nothing is done when that folder has what these sources give. `podium.compiled` says which folder that is, and takes
nothing from any other, so a half-made or outdated one is never used.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from podium import compiled  # noqa: E402 - this checkout's, even where podium is not installed

MODULES = (
    "control",
    "deadlines",
    "ending",
    "forwarding",
    "orchestrator",
    "ordering",
    "records",
    "stage_pool",
    "state",
)
"""Of `podium.core`. Structs cannot be compiled, so modules that define some stay out; see docs/design.md."""

RECIPE = "recipe.txt"
GROUP = "podium"
"""mypyc's shared library is the module `podium__mypyc`."""

OPTIMISATION = "3"
"""-O1 takes a third less time to compile, and what it makes is 5 to 10 % slower."""

KEPT = 4
"""Folders of former sources that stay, so that going back to another branch costs nothing."""


def say(text: str) -> None:
    print(f"[compile] {text}", flush=True)


def c_compiler() -> str | None:
    """The C compiler that this Python's extensions are built with, if the machine has it."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(shlex.split(command)[0])


def recipe() -> str:
    """What besides the sources decides what comes out."""
    return f"mypy {version('mypy')}, -O{OPTIMISATION}: {' '.join(MODULES)}"


def is_up_to_date(folder: Path) -> bool:
    recorded = folder / RECIPE
    return recorded.is_file() and recorded.read_text(encoding="utf-8") == recipe()


def build(folder: Path) -> None:
    """Write the extension modules into `folder`. Exits with mypy's messages when the sources have type errors."""
    from mypyc.build import mypycify  # noqa: PLC0415 - slow to import, and not there where nothing is to be compiled
    from setuptools import Distribution  # noqa: PLC0415 - as above

    os.chdir(ROOT)  # mypyc finds its configuration, and names the modules, from here
    with tempfile.TemporaryDirectory() as scratch:
        extensions = mypycify(
            ["--no-warn-unused-ignores", *(f"src/podium/core/{name}.py" for name in MODULES)],
            opt_level=OPTIMISATION,
            debug_level="0",
            group_name=GROUP,
            target_dir=scratch,
        )
        say("  translated to C; the C compiler has the rest")
        distribution = Distribution({"name": GROUP, "ext_modules": extensions, "package_dir": {"": "src"}})
        options = distribution.get_option_dict("build_ext")
        options.update(build_lib=("compile", str(folder)), build_temp=("compile", scratch))
        distribution.run_command("build_ext")
    (folder / RECIPE).write_text(recipe(), encoding="utf-8")


def compile_core() -> None:
    """Make the folder of these sources, in one piece, and forget the oldest of the others."""
    folder = compiled.NATIVE / compiled.folder_name()
    if is_up_to_date(folder):
        return
    say("the core, with mypyc: about a minute, once for these sources (PODIUM_PURE=1 goes without)")
    began = time.monotonic()
    compiled.NATIVE.mkdir(exist_ok=True)
    unfinished = compiled.NATIVE / f"unfinished-{os.getpid()}"
    try:
        build(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    by_age = sorted(compiled.NATIVE.glob(f"*/{RECIPE}"), key=lambda recipe: recipe.stat().st_mtime)
    for outdated in by_age[:-KEPT]:
        shutil.rmtree(outdated.parent)
    say(f"done in {time.monotonic() - began:.0f} s")


def main() -> int:
    if compiled.is_pure_wanted():
        return 0
    if c_compiler() is None:
        say("no C compiler (gcc or clang): podium runs as plain Python, where the core takes twice as long")
        return 0
    compile_core()
    return 0


if __name__ == "__main__":
    sys.exit(main())
