"""Reads options and parameters into strict structs, and import paths into objects; every fault is named.

Backends, processors and pipelines use it for whatever comes from a pipeline file or from a caller. It knows nothing of
what an option means.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec

from podium.errors import ConfigurationError, Fault, InvalidRequestError

S = TypeVar("S", bound=msgspec.Struct)


def read_options(struct: type[S], values: Mapping[str, object], where: str = "options") -> S:
    """Make a `struct` of `values`, as found at `where` in a pipeline file.

    Raises ConfigurationError with a fault for each unknown, missing or unfit value.
    """
    made = _make(struct, values)
    if made is None:
        raise ConfigurationError(where, find_faults(struct, values, where))
    return made


def read_params(struct: type[S], values: Mapping[str, object], where: str = "params") -> S:
    """Make a `struct` of a caller's `values`. Raises InvalidRequestError that names every fault."""
    made = _make(struct, values)
    if made is None:
        raise InvalidRequestError.because("; ".join(str(fault) for fault in find_faults(struct, values, where)))
    return made


def _make(struct: type[S], values: Mapping[str, object]) -> S | None:
    """A `struct` of `values`; None when there is any fault. This is all that a good request costs."""
    if not _names(struct).issuperset(values):
        return None
    try:
        return msgspec.convert(dict(values), struct)
    except msgspec.ValidationError:
        return None


@lru_cache
def _names(struct: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(struct))


def find_faults(struct: type[msgspec.Struct], values: Mapping[str, object], where: str) -> list[Fault]:
    """Everything that keeps `values` from being a `struct`: unknown names, then its fields, then the whole."""
    fields = msgspec.structs.fields(struct)
    known = [field.encode_name for field in fields]
    faults = [_unknown(name, known, where) for name in values if name not in known]
    for field in fields:
        at = f"{where}.{field.encode_name}"
        if field.encode_name in values:
            faults += _value_faults(field.type, values[field.encode_name], at)
        elif field.required:
            faults.append(Fault(at, "is missing", "give it a value"))
    return faults or list(_value_faults(struct, dict(values), where))


def _unknown(name: str, known: list[str], where: str) -> Fault:
    close = difflib.get_close_matches(str(name), known, n=1)
    if close:
        remedy = f"did you mean '{close[0]}'?"
    elif known:
        remedy = f"use one of: {', '.join(known)}"
    else:
        remedy = "remove it, nothing can be set here"
    return Fault(f"{where}.{name}", "is unknown", remedy)


def _value_faults(expected: object, value: object, where: str) -> Iterable[Fault]:
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        problem, _, inner = str(error).partition(" - at ")
        at = where + inner.strip("`").removeprefix("$")
        yield Fault(at, problem[:1].lower() + problem[1:], "correct the value")


def import_object(path: str, where: str) -> object:
    """The object at `path`, written `package.module:name`. Raises ConfigurationError when it is not there."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name.isidentifier()):
        raise _unusable(path, where, "is not an import path", "write it as package.module:name")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs foreign code, which may raise anything
        reason = f"cannot be imported: {type(error).__name__}: {error}"
        raise _unusable(path, where, reason, f"install or correct the module '{module_name}'") from error
    if name not in vars(module):
        close = difflib.get_close_matches(name, vars(module), n=1)
        remedy = f"did you mean '{module_name}:{close[0]}'?" if close else "correct the name after the colon"
        raise _unusable(path, where, f"names nothing in module '{module_name}'", remedy)
    return vars(module)[name]


def import_callable(path: str, where: str) -> Callable[..., object]:
    """The callable object at `path`. Raises ConfigurationError when it is not there or cannot be called."""
    return check_callable(import_object(path, where), path, where)


def check_callable(found: object, path: str, where: str) -> Callable[..., object]:
    """`found`, which stands at `path`. Raises ConfigurationError when it cannot be called."""
    if not callable(found):
        problem = f"is a {type(found).__name__}, which cannot be called"
        raise _unusable(path, where, problem, "name a function or a class")
    return found


def _unusable(path: str, where: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(where, [Fault(where, f"'{path}' {problem}", remedy)])
