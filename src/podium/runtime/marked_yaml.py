"""YAML that remembers its lines: mappings are read key by key, and every fault is noted instead of raised.

A `FaultLog` gathers what is wrong and knows at which line each place stands; a `Section` is one mapping with a fixed
set of keys. Nothing here knows what a pipeline is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

import msgspec
import yaml

from podium.errors import Fault

_Scalar = TypeVar("_Scalar", str, int, float, bool)
_Choice = TypeVar("_Choice", bound=StrEnum)
_Limits = TypeVar("_Limits", bound=msgspec.Struct)

_TYPE_NAMES: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    type(None): "empty",
}
_MAX_DEPTH = 64
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
_PLAIN_TAGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the one that was probably meant, or all that there are."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"use one of: {', '.join(names)}" if names else "there is none to choose from"


class FaultLog:
    """Every fault of one file. Places are strings such as `stage 'speaker', limits.max_inflight`."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lines: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<FaultLog faults={len(self._faults)} places={len(self._lines)}>"

    def mark(self, where: str, line: int) -> None:
        """Remember the line at which a place stands."""
        self._lines[where] = line

    def line_of(self, where: str) -> int:
        """The line of a place, or of the nearest place around it; 0 when nothing is known of it."""
        place = where
        while place and place not in self._lines:
            cut = max(place.rfind("."), place.rfind(", "))
            place = place[:cut] if cut > 0 else ""
        return self._lines.get(place, 0)

    def add(self, where: str, problem: str, remedy: str, line: int = 0) -> None:
        """Note a fault; without a `line`, the one of its place."""
        self._faults.append(Fault(where, problem, remedy, line or self.line_of(where)))

    def has_fault_at(self, where: str) -> bool:
        """Whether something is wrong at exactly this place, so that what was read from it is only a stand-in."""
        return any(fault.where == where for fault in self._faults)

    def has_fault_in(self, where: str) -> bool:
        """Whether something is wrong at this place or inside it."""
        return self.has_fault_at(where) or any(fault.where.startswith(f"{where}.") for fault in self._faults)

    @property
    def faults(self) -> list[Fault]:
        """The faults, from the top of the file to its end."""
        return sorted(self._faults, key=lambda fault: fault.line or math.inf)


def parse_yaml(text: str, log: FaultLog) -> yaml.Node | None:
    """The document in `text`; None when there is none, with the reason in `log`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader) if _is_plain(text, log) else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"not valid YAML: {error.problem or error.context}"
        log.add("pipeline", problem, "correct the syntax there", mark.line + 1 if mark else 0)
        return None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        log.add("pipeline", f"not valid YAML: character #x{error.character:04x}", "remove the character", line)
        return None
    if node is None and not log.faults:
        log.add("pipeline", "the file is empty", "declare at least `name` and `stages`")
    return node


def _is_plain(text: str, log: FaultLog) -> bool:
    """Whether `text` can be composed safely: not nested deeply, and without aliases, which can repeat without end."""
    depth = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        line = token.start_mark.line + 1
        if depth > _MAX_DEPTH:
            log.add("pipeline", f"nested more than {_MAX_DEPTH} levels deep", "flatten it", line)
            return False
        if isinstance(token, yaml.AliasToken):
            log.add("pipeline", f"alias '*{token.value}' is not supported", "write the value out", line)
    return not log.faults


class Section:
    """One mapping of the file whose keys are fixed.

    A key that is probably a slip is noted, and then read as the key that was meant, so that it does not entail further
    faults. Getters return None for what is absent, empty, or wrong.
    """

    def __init__(self, log: FaultLog, where: str, node: yaml.Node, known: Sequence[str]) -> None:
        self.where = where
        self.is_readable = isinstance(node, yaml.MappingNode)
        self._log = log
        self._nodes: dict[str, yaml.Node] = {}
        entries = read_entries(log, where, node)
        for key in entries:
            if key not in known:
                log.add(self.place(key), f"unknown key '{key}'", nearest(key, known))
        for key, value in entries.items():
            meant = key if key in known else next(iter(get_close_matches(key, known, n=1)), None)
            if meant is not None and (meant == key or meant not in entries):
                self._nodes[meant] = value
                log.mark(self.place(meant), log.line_of(self.place(key)))

    def place(self, key: str) -> str:
        """Where `key` stands, as faults say it."""
        return place(self.where, key)

    def node(self, key: str) -> yaml.Node | None:
        """What stands at `key`, unread; None for an absent or an empty one."""
        node = self._nodes.get(key)
        return None if node is None or node.tag == "tag:yaml.org,2002:null" else node

    def require(self, key: str, remedy: str) -> None:
        """Note a fault when `key` is absent or empty."""
        if self.node(key) is None:
            self._log.add(self.place(key), "is missing", remedy)

    def scalar(self, key: str, kind: type[_Scalar]) -> _Scalar | None:
        """A text, number or flag. A whole number serves as a number, nothing else is converted."""
        node = self.node(key)
        if node is None:
            return None
        value = read_value(self._log, self.place(key), node)
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is kind:
            return value
        if not self._log.has_fault_at(self.place(key)):
            self._wrong_type(key, value, _TYPE_NAMES[kind])
        return None

    def choice(self, key: str, kinds: type[_Choice]) -> _Choice | None:
        """One of a closed set of words."""
        value = self.scalar(key, str)
        if value is None:
            return None
        return read_choice(self._log, self.place(key), value, kinds)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        node = self.node(key)
        value = None if node is None else read_value(self._log, self.place(key), node)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong_type(key, value, "a list of texts")
            return ()
        return tuple(value)

    def mapping(self, key: str) -> dict[str, object]:
        """A mapping with any keys."""
        node = self.node(key)
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            self._wrong_type(key, read_value(self._log, self.place(key), node), "a mapping")
            return {}
        where = self.place(key)
        return {
            name: read_value(self._log, place(where, name), value)
            for name, value in read_entries(self._log, where, node).items()
        }

    def limits(self, key: str, kind: type[_Limits], may_be_zero: Sequence[str] = ()) -> _Limits:
        """A mapping of named limits, each a positive number (or 0); `kind` has the names and the defaults."""
        node = self.node(key)
        if node is None:
            return kind()
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        section = Section(self._log, self.place(key), node, list(fields))
        values: dict[str, int | float] = {}
        for name, number in fields.items():
            value = section.scalar(name, int) if number is int else section.scalar(name, float)
            if value is None:
                continue
            if math.isfinite(value) and (value > 0 or (value == 0 and name in may_be_zero)):
                values[name] = value
            else:
                least = "at least 0" if name in may_be_zero else "greater than 0"
                self._log.add(section.place(name), f"{value} makes no sense", f"it must be {least}, and finite")
        return kind(**values)

    def _wrong_type(self, key: str, value: object, wanted: str) -> None:
        self._log.add(self.place(key), f"is {describe(value)}", f"it must be {wanted}")


def place(where: str, key: str) -> str:
    """The place of `key` in the mapping at `where`: `stage 'a', options` and `stage 'a', options.model`."""
    if not where:
        return key
    return f"{where}, {key}" if where.endswith("'") else f"{where}.{key}"


def describe(value: object) -> str:
    """What a wrong value is, for a message: `text ('5')`, `a list`."""
    name = _TYPE_NAMES.get(type(value), type(value).__name__)
    return f"{name} ({value!r})" if isinstance(value, str | int | float) else name


def read_entries(log: FaultLog, where: str, node: yaml.Node) -> dict[str, yaml.Node]:
    """The keys of a mapping as they are written, with what stands there; a key that comes twice is a fault."""
    if not isinstance(node, yaml.MappingNode):
        value = read_value(log, where or "pipeline", node)
        log.add(where or "pipeline", f"is {describe(value)}", "it must be a mapping", _line(node))
        return {}
    entries: dict[str, yaml.Node] = {}
    for key_node, value in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            log.add(where or "pipeline", "a key is not a word", "use plain words as keys", _line(key_node))
            continue
        key = str(key_node.value)
        if key in entries:
            remedy = f"keep one; line {log.line_of(place(where, key))} has the first"
            log.add(place(where, key), f"key '{key}' comes twice", remedy, _line(key_node))
            continue
        entries[key] = value
        log.mark(place(where, key), _line(key_node))
    return entries


def read_value(log: FaultLog, where: str, node: yaml.Node) -> object:
    """The Python value of a node, None with a fault where it has none."""
    if isinstance(node, yaml.ScalarNode):
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            log.add(where, f"'{node.value}' cannot be read as {node.tag}", "quote it if it is a text", _line(node))
            return None
    if node.tag not in _PLAIN_TAGS:
        log.add(where, f"tag {node.tag} is not supported", "remove the tag", _line(node))
        return None
    if isinstance(node, yaml.SequenceNode):
        return [read_value(log, where, item) for item in node.value]
    return {key: read_value(log, place(where, key), item) for key, item in read_entries(log, where, node).items()}


def read_choice(log: FaultLog, where: str, value: str, kinds: type[_Choice]) -> _Choice | None:
    """`value` as a member of a closed set of words."""
    known = [str(kind) for kind in kinds]
    if value in known:
        return kinds(value)
    log.add(where, f"unknown value '{value}'", nearest(value, known))
    return None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
