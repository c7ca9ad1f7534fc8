"""YAML with lines: syntax faults, types, places, and what is refused outright."""

from __future__ import annotations

from enum import StrEnum

import pytest

from podium.runtime.marked_yaml import FaultLog, Section, describe, nearest, parse_yaml, place


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


def section_of(text: str, *known: str) -> tuple[Section, FaultLog]:
    log = FaultLog()
    node = parse_yaml(text, log)
    assert node is not None
    return Section(log, "", node, known), log


def messages(log: FaultLog) -> list[str]:
    return [str(fault) for fault in log.faults]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "a: 1\nb: [1, 2\nc: 3\n",
            "line 3: pipeline: not valid YAML: expected ',' or ']', but got ':'; correct the syntax there",
        ),
        (
            "a: b: c\n",
            "line 1: pipeline: not valid YAML: mapping values are not allowed here; correct the syntax there",
        ),
        ("a: 1\nb: '\x01'\n", "line 2: pipeline: not valid YAML: character #x0001; remove the character"),
        ("a: 1\n---\nb: 2\n", "line 2: pipeline: not valid YAML: but found another document; correct the syntax there"),
        ("a: &x 1\nb: *x\n", "line 2: pipeline: alias '*x' is not supported; write the value out"),
        ("a: " + "[" * 100, "line 1: pipeline: nested more than 64 levels deep; flatten it"),
        ("# nothing\n", "pipeline: the file is empty; declare at least `name` and `stages`"),
    ],
)
def test_what_is_no_document_is_one_fault(text: str, fault: str) -> None:
    log = FaultLog()

    assert parse_yaml(text, log) is None
    assert messages(log) == [fault]


def test_an_alias_to_itself_ends() -> None:
    log = FaultLog()

    assert parse_yaml("a: &x [*x, *x]\n", log) is None
    assert messages(log) == ["line 1: pipeline: alias '*x' is not supported; write the value out"] * 2


def test_scalars_are_read_as_declared_and_not_converted() -> None:
    text = "text: x\ncount: 3\nratio: 2\nflag: yes\nnothing: ~\n"
    section, log = section_of(text, "text", "count", "ratio", "flag", "nothing")

    assert section.scalar("text", str) == "x"
    assert section.scalar("count", int) == 3
    ratio = section.scalar("ratio", float)
    assert (ratio, type(ratio)) == (2.0, float)
    assert section.scalar("flag", bool) is True
    assert section.scalar("nothing", str) is None
    assert messages(log) == []


def test_a_flag_is_not_a_number() -> None:
    section, log = section_of("count: true\n", "count")

    assert section.scalar("count", int) is None
    assert messages(log) == ["line 1: count: is true or false (True); it must be a whole number"]


def test_keys_are_taken_as_written() -> None:
    section, log = section_of("options: {on: 1, 5: x}\n", "options")

    assert section.mapping("options") == {"on": 1, "5": "x"}
    assert messages(log) == []


def test_a_slip_in_a_key_is_noted_and_read_as_what_was_meant() -> None:
    section, log = section_of("coulor: red\n", "colour")

    assert section.choice("colour", Colour) is Colour.RED
    assert messages(log) == ["line 1: coulor: unknown key 'coulor'; did you mean 'colour'?"]


def test_a_slip_never_covers_the_right_key() -> None:
    section, log = section_of("coulor: red\ncolour: green\n", "colour")

    assert section.choice("colour", Colour) is Colour.GREEN
    assert len(log.faults) == 1


def test_a_key_that_is_not_a_word() -> None:
    section, log = section_of("[1, 2]: red\ncolour: green\n", "colour")

    assert section.choice("colour", Colour) is Colour.GREEN
    assert messages(log) == ["line 1: pipeline: a key is not a word; use plain words as keys"]


def test_values_nest_and_keep_their_lines() -> None:
    section, log = section_of("options:\n  a:\n    b: [1, {c: two}]\n", "options")

    assert section.mapping("options") == {"a": {"b": [1, {"c": "two"}]}}
    assert log.line_of("options.a.b") == 3
    assert log.line_of("options.a.unknown") == 2
    assert log.line_of("elsewhere") == 0


def test_a_tag_is_never_followed() -> None:
    text = "options:\n  a: !!python/object:os.system {b: 1}\n  c: !!python/name:os.system x\n"
    section, log = section_of(text, "options")

    assert section.mapping("options") == {"a": None, "c": None}
    assert messages(log) == [
        "line 2: options.a: tag tag:yaml.org,2002:python/object:os.system is not supported; remove the tag",
        "line 3: options.c: 'x' cannot be read as tag:yaml.org,2002:python/name:os.system; quote it if it is a text",
    ]


def test_faults_stand_in_the_order_of_the_file_and_those_without_a_line_last() -> None:
    log = FaultLog()
    log.mark("b", 9)
    log.mark("a", 2)
    for where in ("nowhere", "b", "a.c"):
        log.add(where, "is wrong", "correct it")

    assert messages(log) == [
        "line 2: a.c: is wrong; correct it",
        "line 9: b: is wrong; correct it",
        "nowhere: is wrong; correct it",
    ]
    assert log.has_fault_at("b")
    assert not log.has_fault_at("a")
    assert repr(log) == "<FaultLog faults=3 places=2>"


def test_places() -> None:
    assert place("", "name") == "name"
    assert place("stage 'a'", "limits") == "stage 'a', limits"
    assert place("stage 'a', limits", "max_inflight") == "stage 'a', limits.max_inflight"


def test_the_nearest_name_or_all_of_them() -> None:
    assert nearest("fucntion", ["function", "vllm"]) == "did you mean 'function'?"
    assert nearest("ray", ["function", "vllm"]) == "use one of: function, vllm"
    assert nearest("ray", []) == "there is none to choose from"


def test_descriptions_show_the_value_where_it_is_short() -> None:
    values: list[object] = ["x", 1, [1], {}, None, object]

    assert [describe(value) for value in values] == [
        "text ('x')",
        "a whole number (1)",
        "a list",
        "a mapping",
        "empty",
        "type",
    ]


def test_a_section_of_something_else_reads_as_empty() -> None:
    log = FaultLog()
    node = parse_yaml("[1]", log)
    assert node is not None
    section = Section(log, "stage 'a'", node, ["kind"])

    assert not section.is_readable
    assert section.node("kind") is None
    assert messages(log) == ["line 1: stage 'a': is a list; it must be a mapping"]
