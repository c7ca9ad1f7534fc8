"""Writes the pinned lists in `requirements/` from what is installed in `.venv`: `make lock`.

Each list is the closure of the names in the `.in` file beside it, without the packages that `install.py` leaves out. To
change a version: install it into `.venv` with pip, run `make lock test`, commit the list.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tools.install import LEFT_OUT, ROOT, canonical, pinned

HEADER = "# Written by `make lock` from {}; do not edit. Installed with --no-deps (see tools/install.py).\n"


def closure(roots: list[str]) -> dict[str, str]:
    """Every distribution that `roots` need, as `name==version` by canonical name."""
    pins: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        key = (canonical(wanted.name), frozenset(wanted.extras))
        if key in seen or key[0] in LEFT_OUT:
            continue
        seen.add(key)
        found = distribution(wanted.name)
        pins[key[0]] = f"{found.metadata['Name']}=={found.version}"
        for line in found.requires or []:
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *wanted.extras}):
                waiting.append(needed)
    return pins


def write(source: Path) -> None:
    pins = closure(pinned(source))
    target = source.with_suffix(".lock")
    lines = "".join(f"{pins[name]}\n" for name in sorted(pins))
    target.write_text(HEADER.format(source.name) + lines, encoding="utf-8")
    print(f"{target.relative_to(ROOT)}: {len(pins)} packages")


def main() -> int:
    try:
        for source in sorted((ROOT / "requirements").glob("*.in")):
            write(source)
    except PackageNotFoundError as missing:
        print(f"{missing.name} is not installed: run `make install` first", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
