"""What is typed, as an engine takes it."""

from __future__ import annotations

import io

import pytest

from podium.cli.arguments import complete_pipeline, parse_outputs, parse_params, read_prompt
from podium.errors import InvalidRequestError


def test_parameters_are_yaml_by_stage_and_the_last_one_counts() -> None:
    entries = [
        "a.n=5",
        "a.n=6",
        "a.ratio=0.5",
        "b.stop=[x, y]",
        "b.loud=true",
        "b.name=tom",
        "b.eq=x=y",
        "b.nested.name=1",
        "b.none=",
    ]

    assert parse_params(entries) == {
        "a": {"n": 6, "ratio": 0.5},
        "b": {"stop": ["x", "y"], "loud": True, "name": "tom", "eq": "x=y", "nested.name": 1, "none": None},
    }


@pytest.mark.parametrize("entry", ["", "=", "a=1", "a.=1", ".a=1", "a.b", "a.b: 1"])
def test_what_is_no_parameter_is_refused(entry: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"is not stage\.name=value; write it like"):
        parse_params([entry])


def test_outputs_are_separated_by_commas() -> None:
    assert parse_outputs(None) is None
    assert parse_outputs("text, speech,") == ("text", "speech")


def test_a_prompt_from_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidRequestError, match="prompt: standard input is closed; give the prompt as an argument"):
        read_prompt("-", None)


def test_a_prompt_from_standard_input_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    with pytest.raises(InvalidRequestError, match=r"prompt: standard input is not text: .*; send UTF-8"):
        read_prompt("-", None)


def test_the_shell_completes_shipped_pipelines() -> None:
    assert "echo" in complete_pipeline("")
    assert complete_pipeline("ec") == ["echo"]
    assert complete_pipeline("nothing") == []
