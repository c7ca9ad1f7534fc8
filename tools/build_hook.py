"""Adds the compiled core to a wheel; with PODIUM_PURE=1, or where compiling fails, the wheel is pure Python.

An editable install stays as it is: there `make install` compiles.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from podium import compiled  # noqa: E402 - the one that is built

NEEDED = ["msgspec>=0.19", "mypy==2.4.1", "setuptools>=78"]
"""What compiling takes: the core's types are made of msgspec."""


class CompileHook(BuildHookInterface):  # type: ignore[misc]  # hatchling is there in builds only
    """Hatchling finds it in pyproject.toml."""

    def dependencies(self) -> list[str]:
        return [] if compiled.is_pure_wanted() else NEEDED

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        if version == "editable" or compiled.is_pure_wanted():
            return
        command = [sys.executable, str(ROOT / "tools" / "compile.py")]
        run = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        folder = compiled.NATIVE / compiled.folder_name()
        if run.returncode != 0 or not folder.is_dir():
            self.app.display_warning(f"{run.stdout}\nThis wheel is pure Python: its core takes twice as long.")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] = {str(folder): f"podium/{compiled.NATIVE.name}/{folder.name}"}
