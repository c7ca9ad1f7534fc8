"""The worlds in which podium itself is explored, each small enough to be exhausted. A world is data.

`WORLDS` are explored whenever podium is tested; `DEEP_WORLDS` are the same with more of everything, for an hour.
"""

from __future__ import annotations

from podium.testing.explorer.control_worlds import CONTROL
from podium.testing.explorer.outside import World
from podium.testing.explorer.plain_worlds import PLAIN
from podium.testing.explorer.sibling_worlds import SIBLINGS
from podium.testing.explorer.trouble_worlds import TROUBLE

WORLDS: tuple[World, ...] = tuple(make(0) for make in (*PLAIN, *TROUBLE, *SIBLINGS, *CONTROL))
DEEP_WORLDS: tuple[World, ...] = tuple(make(1) for make in (*PLAIN, *TROUBLE, *SIBLINGS, *CONTROL))
