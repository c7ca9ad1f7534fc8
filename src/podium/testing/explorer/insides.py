"""The one door to the core's private tables, for tools that copy a core or compare two: nothing is changed through it.

What is behind it may differ from version to version, so whoever comes in treats it as a graph of objects: instances of
classes with slots or without, compiled or not, lists, dictionaries, sets and tuples of them, and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter

import msgspec

from podium.core.graph import Graph
from podium.core.plan import Planner

Reader = Callable[[object], Mapping[str, object]]
"""Tells what an object holds, by name."""

_CONSTANTS = (Graph, Planner, Enum, str, int, float, bytes, frozenset, type(None))


def is_constant(kind: type) -> bool:
    """Whether two cores can share objects of that class: none changes, but to remember what it would make again."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return issubclass(kind, _CONSTANTS) or (issubclass(kind, tuple) and kind is not tuple)


def attributes_of(kind: type) -> tuple[str, ...]:
    """The names of what an object of that class holds; none when it has a dictionary for that."""
    compiled: tuple[str, ...] = vars(kind).get("__mypyc_attrs__", ())
    if compiled:
        return compiled
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    return tuple(name for several in slots for name in ((several,) if isinstance(several, str) else several))


def reader_of(kind: type, without: frozenset[str] = frozenset()) -> Callable[[object], tuple[object, ...]]:
    """A quick function that reads what an object of that class holds, in the order of `attributes_of`."""
    names = [name for name in attributes_of(kind) if name not in without]
    if not names:
        return lambda _thing: ()
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda thing: (read(thing),)
