"""Copies of a core and of what goes with it: deep where something can change, shared where nothing can.

A core on plain Python is copied object by object, in a tenth of the time of `copy.deepcopy` or `pickle`. A compiled core
cannot be built without its constructors, so a copy of one is a new core that was told the same again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from podium.testing.explorer.insides import attributes_of, is_constant, reader_of

T = TypeVar("T")
Memory = dict[int, object]
"""What was copied already, by the original's id."""
Copier = Callable[[object, Memory], object]

SHARED = frozenset({"stages", "outputs", "params"})
"""Names of tables that are never changed after they were made."""


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

    def copy(thing: object, memory: Memory) -> object:
        known = memory.get(id(thing))
        if known is not None:
            return known
        copied: object = kind.__new__(kind)
        memory[id(thing)] = copied
        for name, value in zip(names, read(thing), strict=True):
            copier = _COPIERS[type(value)]
            setattr(copied, name, value if copier is None or name in SHARED else copier(value, memory))
        return copied

    return copy


def _copier_with_dictionary(kind: type) -> Copier:
    def copy(thing: object, memory: Memory) -> object:
        known = memory.get(id(thing))
        if known is not None:
            return known
        copied: object = kind.__new__(kind)
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
