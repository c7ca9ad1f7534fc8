"""Prefers the compiled modules of the core to their sources, when they were made from exactly these sources.

They lie in `_native/`, in a folder that is named after the sources: when one of these is edited, no folder has that
name, and all of podium runs as plain Python again. It is all or none, because compiled modules know each other's
layout. `PODIUM_PURE=1` selects the sources in any case. Nothing is compiled here; that is the build's work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import source_hash, spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
NATIVE = PACKAGE / "_native"


def folder_name() -> str:
    """Where the compiled modules of these sources, for this Python, have to lie in `_native/`.

    All of the core counts, and `errors`: the core imports nothing else of podium, and a compiled module may have taken
    over a constant or a type from any module that it imports.
    """
    sources = [*sorted((PACKAGE / "core").glob("*.py")), PACKAGE / "errors.py"]
    text = b"\0".join(part for path in sources for part in (path.name.encode(), path.read_bytes()))
    return f"{sys.implementation.cache_tag}-{source_hash(text).hex()}"


def is_pure_wanted() -> bool:
    """Whether PODIUM_PURE asks for the sources."""
    return os.environ.get("PODIUM_PURE", "0") not in {"", "0"}


@cache
def modules() -> Mapping[str, Path]:
    """The compiled modules that this process uses, and their files; none when it runs on the sources."""
    folder = NATIVE / folder_name()
    suffix = EXTENSION_SUFFIXES[0]
    if is_pure_wanted() or not folder.is_dir():
        return {}
    names = {path: str(path.relative_to(folder)).removesuffix(suffix) for path in folder.rglob(f"*{suffix}")}
    return {name.replace(os.sep, "."): path for path, name in names.items()}


def describe() -> str:
    """What this process runs on, and if it is the sources, why."""
    if modules():
        return "compiled core"
    if is_pure_wanted():
        return "pure Python: PODIUM_PURE is set"
    stale = any(NATIVE.glob(f"{sys.implementation.cache_tag}-*"))
    return "pure Python: the core has changed since it was compiled" if stale else "pure Python: it was not compiled"


class CompiledFinder:
    """Asked first for every import; answers for what is compiled, and is looked up once in a process."""

    @staticmethod
    def find_spec(
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG004 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG004 - the protocol's
    ) -> ModuleSpec | None:
        """The compiled module of that name, if there is one."""
        file = modules().get(fullname) if fullname.startswith("podium") else None
        return None if file is None else spec_from_file_location(fullname, file)


def install() -> None:
    """Let imports find compiled modules from now on. Idempotent."""
    if CompiledFinder not in sys.meta_path:
        sys.meta_path.insert(0, CompiledFinder)
