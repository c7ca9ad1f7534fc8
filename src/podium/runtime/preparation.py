"""What happens to a request on its caller's side, before it is submitted: everything that can be wrong is said here.

Checked once, in the caller's thread; nothing was touched yet when one of these raises.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from collections.abc import Collection, Mapping

import msgspec

from podium.core.identity import Payload
from podium.errors import InvalidRequestError
from podium.prompts import check_prompt, check_unicode
from podium.runtime.config import StageParams, merge_params
from podium.runtime.parts import EngineParts

_PREFIX = secrets.token_hex(8)
_NUMBERS = itertools.count(1)


class RequestPreparation:
    """Checks and completes what callers pass to `generate`. Safe from any thread."""

    def __init__(self, parts: EngineParts, engine_params: StageParams | None) -> None:
        """Merge the engine's parameters over the file's; raises InvalidRequestError when they do not fit."""
        self._parts = parts
        self._merged = merge_params(parts.default_params, engine_params or {})
        self._defaults = {name: self._parse(name, values) for name, values in self._merged.items()}

    def params(self, requested: StageParams | None) -> Mapping[str, Payload]:
        """The parameters of every stage: request over engine over file. Unknown names are refused."""
        if not requested:
            return self._defaults
        merged = merge_params(self._merged, requested)
        return {
            name: self._parse(name, values) if name in requested else self._defaults[name]
            for name, values in merged.items()
        }

    def outputs(self, requested: object) -> tuple[str, ...] | None:
        """The outputs that are asked for; None for all."""
        if requested is None:
            return None
        if isinstance(requested, str):
            raise InvalidRequestError.because(f"outputs: is the text '{requested}'; pass a list, as in ['{requested}']")
        if not isinstance(requested, Collection):
            raise InvalidRequestError.because(f"outputs: is of type {type(requested).__name__}; pass a list of names")
        known = self._parts.graph.outputs
        names: list[str] = []
        for name in requested:
            if not isinstance(name, str) or name not in known:
                raise InvalidRequestError.because(
                    f"outputs: this pipeline has no output '{name}'; ask for some of: {', '.join(known)}"
                )
            names.append(name)
        if not names:
            raise InvalidRequestError.because(f"outputs: nothing is asked for; ask for some of: {', '.join(known)}")
        return tuple(names)

    def prompt(self, prompt: object) -> object:
        """A plain prompt or chat messages, of a known shape."""
        check_prompt(prompt)
        return prompt

    def _parse(self, stage: str, values: Mapping[str, object]) -> Payload:
        try:
            return self._parts.stages[stage].parse_params(values)
        except InvalidRequestError as error:  # a backend knows its parameters, but not whose they are
            message = f"stage '{stage}', {error.record.message}"
            raise InvalidRequestError(msgspec.structs.replace(error.record, message=message, stage=stage)) from None


def request_id_or_new(request_id: object) -> str:
    """The caller's id; a missing or empty one is replaced by one that nobody else has."""
    if request_id is None or request_id == "":
        return f"request-{_PREFIX}-{os.getpid():x}-{next(_NUMBERS):x}"  # a fork has another process id
    if not isinstance(request_id, str):
        raise InvalidRequestError.because(f"request_id: is a {type(request_id).__name__}; pass a text, or leave it out")
    check_unicode(request_id, "request_id")
    return request_id


def checked_ids(request_ids: object) -> tuple[str, ...]:
    """The ids of an abort: one, or any number of them."""
    if isinstance(request_ids, str):
        return (request_ids,)
    ids = tuple(request_ids) if isinstance(request_ids, list | tuple | set | frozenset) else (request_ids,)
    for one in ids:
        if not isinstance(one, str):
            raise InvalidRequestError.because(
                f"request_ids: has a {type(one).__name__}, which is no id; pass an id, or a list of ids"
            )
    return ids


def checked_priority(priority: object) -> int:
    """A priority: a whole number of at most 53 bits, lower ones first."""
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) >= 1 << 53:
        raise InvalidRequestError.because(
            f"priority: {priority!r} is no whole number of at most 53 bits; lower numbers run first"
        )
    return priority


def checked_slot(replica: object) -> int:
    """The number of a replica."""
    if not isinstance(replica, int) or isinstance(replica, bool):
        raise InvalidRequestError.because(f"replica: {replica!r} is no whole number; replicas are numbered from 0")
    return replica


def checked_limit_s(value: object, field: str) -> float:
    """A positive number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise InvalidRequestError.because(f"{field}: {value!r} is no positive number of seconds")
    return float(value)
