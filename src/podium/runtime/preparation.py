"""What happens to a request on its caller's side, before it is submitted: everything that can be wrong is said here.

Checked once, in the caller's thread; nothing was touched yet when one of these raises.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from podium.core.identity import MAIN, Payload
from podium.errors import InvalidRequestError
from podium.prompts import check_prompt, check_unicode
from podium.runtime.config import StageParams, merge_params
from podium.runtime.parts import EngineParts

_log = logging.getLogger("podium.preparation")

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

    def samples(self, number: object) -> int:
        """How many samples are asked for: a whole number, 1 or more."""
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise InvalidRequestError.because(f"n: {number!r} makes no sense; it must be a whole number, 1 or more")
        return number

    def companions(self, prompt: object, requested: StageParams | None, samples: int) -> Mapping[str, Payload]:
        """The prompts of the request's companions by role; together with the samples they are not too many."""
        expand = self._parts.companions
        companions = {} if expand is None else _expanded(expand, prompt, merge_params(self._merged, requested or {}))
        siblings, most = samples * (1 + len(companions)), self._parts.limits.max_siblings
        if siblings > most:
            each = f" with {len(companions)} companions each" if companions else ""
            raise InvalidRequestError.because(
                f"n: {samples} samples{each} are {siblings} siblings; a request may have {most} (limits.max_siblings)"
            )
        return companions

    def _parse(self, stage: str, values: Mapping[str, object]) -> Payload:
        try:
            return self._parts.stages[stage].parse_params(values)
        except InvalidRequestError as error:  # a backend knows its parameters, but not whose they are
            message = f"stage '{stage}', {error.record.message}"
            raise InvalidRequestError(msgspec.structs.replace(error.record, message=message, stage=stage)) from None


def _expanded(
    expand: Callable[..., object], prompt: object, params: Mapping[str, Mapping[str, object]]
) -> Mapping[str, Payload]:
    """What a pipeline's own function makes of a prompt: whatever is wrong with it is wrong with this request only."""
    try:
        companions = expand(prompt, params)
    except InvalidRequestError:
        raise
    except Exception as error:  # foreign code; what it says is for the log only
        _log.exception("the pipeline's companions cannot be made")
        problem = f"companions: cannot be made of this prompt: {type(error).__name__}"
        raise InvalidRequestError.because(f"{problem}; change the prompt or the parameters") from error
    if not isinstance(companions, Mapping):
        kind = type(companions).__name__
        raise InvalidRequestError.because(f"companions: the pipeline made a {kind}; it must map roles to prompts")
    for role, companion in companions.items():
        if not isinstance(role, str) or not role.isidentifier() or role == MAIN:
            raise InvalidRequestError.because(f"companions: {role!r} is no role; use a name like 'negative'")
        check_prompt(companion)
    return companions


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


def checked_group(group: object) -> str | None:
    """The name of a group of requests, or None."""
    if group is None:
        return None
    if not isinstance(group, str) or not group:
        raise InvalidRequestError.because(f"group: {group!r} is no name; pass a text, or leave it out")
    check_unicode(group, "group")
    return group


def checked_samples(samples: object, ids: Sequence[str] | None) -> tuple[int, ...]:
    """The samples of one request, by index; none for all of it."""
    if samples is None:
        return ()
    if ids is None or len(ids) != 1:
        raise InvalidRequestError.because("samples: belong to one request; pass its id alone")
    indices = tuple(samples) if isinstance(samples, list | tuple | set | frozenset | range) else (samples,)
    if not indices or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in indices):
        raise InvalidRequestError.because(f"samples: {samples!r} are no indices; pass whole numbers, 0 or more")
    return tuple(one for one in indices if isinstance(one, int))


def checked_affinity(affinity: object) -> str | None:
    """A text that says which requests belong together, if any do."""
    if affinity is None or affinity == "":
        return None
    if not isinstance(affinity, str):
        raise InvalidRequestError.because(f"affinity: is a {type(affinity).__name__}; pass a text, or leave it out")
    check_unicode(affinity, "affinity")
    return affinity


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
