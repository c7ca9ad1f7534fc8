"""Copies of a core and of what goes with it: deep where something can change, shared where nothing can.

A core on plain Python is copied object by object, several times faster than `copy.deepcopy` or `pickle` do it. A
compiled core cannot be built without its constructors, so it is not for here: a new one is told the same again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import TypeVar

import msgspec

from podium.testing.explorer.insides import attributes_of, is_constant, reader_of

T = TypeVar("T")
Memory = dict[int, object]
"""What was copied already, by the original's id."""
Copier = Callable[[object, Memory], object]

SHARED = frozenset({"stages", "outputs"})
"""What of a model, which knows them as tables, is never changed after it was made."""


def copy_of(thing: T) -> T:
    """A copy with a life of its own: what happens to one has no effect on the other."""
    copier = _COPIERS[type(thing)]
    if copier is None:
        return thing
    copied = copier(thing, {})
    assert isinstance(copied, type(thing))
    return copied


class _Copiers(dict[type, "Copier | None"]):
    """How to copy an object of each class, found out when the first one is met; None for constants."""

    def __missing__(self, kind: type) -> Copier | None:
        self[kind] = copier = None if is_constant(kind) else _copier_of_objects(kind)
        return copier


def _copy_list(thing: object, memory: Memory) -> object:
    assert isinstance(thing, list)
    copied = thing.copy()
    if copied:
        known = memory.get(id(thing))
        if known is not None:
            return known
        memory[id(thing)] = copied
        for number, value in enumerate(thing):
            copier = _COPIERS[type(value)]
            if copier is not None:
                copied[number] = copier(value, memory)
    return copied


def _copy_tuple(thing: object, memory: Memory) -> object:
    assert isinstance(thing, tuple)
    return tuple([value if (copier := _COPIERS[type(value)]) is None else copier(value, memory) for value in thing])


def _copy_dict(thing: object, memory: Memory) -> object:
    assert isinstance(thing, dict)
    copied = thing.copy()
    if copied:
        known = memory.get(id(thing))
        if known is not None:
            return known
        memory[id(thing)] = copied
        for key, value in thing.items():
            copier = _COPIERS[type(value)]
            if copier is not None:
                copied[key] = copier(value, memory)
    return copied


def _copy_set(thing: object, _memory: Memory) -> object:
    assert isinstance(thing, set)
    return thing.copy()


def _copier_of_objects(kind: type) -> Copier:
    names = attributes_of(kind)
    if issubclass(kind, msgspec.Struct):
        return _copier_of_structs(kind)
    return _copier_with_slots(kind, names) if names else _copier_with_dictionary(kind)


def _copier_of_structs(kind: type[msgspec.Struct]) -> Copier:
    """For structs of numbers and texts that are not frozen."""
    names, read = attributes_of(kind), reader_of(kind)
    return lambda thing, _memory: kind(**dict(zip(names, read(thing), strict=True)))


def _copier_with_slots(kind: type, names: tuple[str, ...]) -> Copier:
    read = reader_of(kind)
    new: Callable[[], object] = partial(object.__new__, kind)
    to_copy = _ToCopy()

    def copy(thing: object, memory: Memory) -> object:
        known = memory.get(id(thing))
        if known is not None:
            return known
        copied = new()
        memory[id(thing)] = copied
        values = read(thing)
        deque(map(setattr, repeat(copied), names, values), 0)
        for index, copier in to_copy[tuple(map(type, values))]:
            setattr(copied, names[index], copier(values[index], memory))
        return copied

    return copy


class _ToCopy(dict[tuple[type, ...], "list[tuple[int, Copier]]"]):
    """Which of the values of an object are no constants, by the classes of all of them."""

    def __missing__(self, kinds: tuple[type, ...]) -> list[tuple[int, Copier]]:
        copiers = ((index, _COPIERS[kind]) for index, kind in enumerate(kinds))
        self[kinds] = found = [(index, copier) for index, copier in copiers if copier is not None]
        return found


def _copier_with_dictionary(kind: type) -> Copier:
    new: Callable[[], object] = partial(object.__new__, kind)

    def copy(thing: object, memory: Memory) -> object:
        known = memory.get(id(thing))
        if known is not None:
            return known
        copied = new()
        memory[id(thing)] = copied
        held = vars(copied)
        held.update(vars(thing))
        for name, value in vars(thing).items():
            copier = _COPIERS[type(value)]
            if copier is not None and name not in SHARED:
                held[name] = copier(value, memory)
        return copied

    return copy


_COPIERS = _Copiers({list: _copy_list, tuple: _copy_tuple, dict: _copy_dict, set: _copy_set})
