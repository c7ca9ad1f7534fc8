"""`podium pipelines`, `check`, `graph`, and the command itself: for people, and for programs."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from podium import bootstrap
from podium.cli.main import app
from podium.cli.problems import EXIT_CODES
from podium.compiled import describe
from podium.errors import KINDS

STAGE = "kind: function, backend: function, options: {function: 'operator:neg'}"
DIAMOND = f"""\
name: diamond
description: two ways
requires: [no_such_module]
install: make it
stages:
  reader: {{{STAGE}, produces: text, output: text}}
  left: {{{STAGE}, produces: text, sources: {{reader: streaming}}, processor: passthrough, replicas: 2}}
  right: {{{STAGE}, produces: text, sources: [reader], processor: complete}}
  end: {{{STAGE}, produces: speech, output: speech, sources: [left, right], processor: complete}}
"""


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def diamond(tmp_path: Path) -> Path:
    path = tmp_path / "diamond.yaml"
    path.write_text(DIAMOND, encoding="utf-8")
    return path


@pytest.fixture
def shipped(diamond: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `diamond` and a broken one are shipped."""
    (diamond.parent / "broken.yaml").write_text("name: broken\n", encoding="utf-8")
    monkeypatch.setattr(bootstrap, "PIPELINES", diamond.parent)


def lines_of(*arguments: str, exit_code: int = 0) -> list[str]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]


def test_the_version() -> None:
    assert lines_of("--version") == [f"podium {version('podium')} ({describe()})"]


def test_help_names_every_exit_code_that_an_error_has() -> None:
    text = "\n".join(lines_of("--help"))

    assert {traits.exit_code for traits in KINDS.values()} <= set(EXIT_CODES)
    assert all(f"{code}: {meaning}." in text for code, meaning in EXIT_CODES.items())
    assert "--install-completion" in text


def test_no_verb_shows_the_help() -> None:
    assert "generate" in "\n".join(lines_of(exit_code=2))


@pytest.mark.usefixtures("shipped")
def test_pipelines_lists_what_is_there_and_what_is_missing() -> None:
    assert lines_of("pipelines")[2:] == [
        "broken no: the file has faults, see below",
        "diamond two ways reader → left → right → end text, speech no: no_such_module not installed; make it",
        "stages: is missing; declare at least one stage",
    ]


@pytest.mark.usefixtures("shipped")
def test_pipelines_for_programs() -> None:
    broken, diamond = json.loads("\n".join(lines_of("pipelines", "--json")))

    assert (broken["name"], broken["ready"], broken["faults"][0]["where"]) == ("broken", False, "stages")
    assert diamond == {
        "name": "diamond",
        "description": "two ways",
        "stages": ["reader", "left", "right", "end"],
        "outputs": ["text", "speech"],
        "missing": ["no_such_module"],
        "install": "make it",
        "faults": [],
        "ready": False,
    }


def test_the_shipped_echo_pipeline_is_ready() -> None:
    summaries = {summary["name"]: summary for summary in json.loads("\n".join(lines_of("pipelines", "--json")))}

    assert summaries["echo"]["ready"]
    assert [summary["faults"] for summary in summaries.values()] == [[]] * len(summaries)


def test_check_says_ok_and_what_is_not_installed_here(diamond: Path) -> None:
    assert lines_of("check", str(diamond)) == [
        f"{diamond}: ok; stages reader → left → right → end; outputs text, speech",
        "not installed here: no_such_module; make it",
    ]


def test_check_prints_every_fault_with_line_and_remedy(diamond: Path) -> None:
    diamond.write_text(DIAMOND.replace("name:", "nam:").replace("[left, right]", "[left, rihgt]"), encoding="utf-8")

    assert lines_of("check", str(diamond), exit_code=2) == [
        f"error: configuration: {diamond}: 3 faults",
        "line 1: nam: unknown key 'nam'; did you mean 'name'?",
        (
            "line 8: stage 'right': no output needs it, so it would never run;"
            " give it an `output`, make it a source of another stage, or remove it"
        ),
        "line 9: stage 'end', sources: unknown source 'rihgt'; use one of: reader, left, right, end",
    ]


def test_check_for_programs(diamond: Path) -> None:
    good = json.loads("\n".join(lines_of("check", str(diamond), "--json")))
    diamond.write_text(DIAMOND.replace("name:", "nam:"), encoding="utf-8")
    bad = json.loads("\n".join(lines_of("check", str(diamond), "--json", exit_code=2)))

    assert good == {"file": str(diamond), "ok": True, "faults": [], "missing": ["no_such_module"]}
    assert bad["faults"] == [
        {"where": "nam", "problem": "unknown key 'nam'", "remedy": "did you mean 'name'?", "line": 1},
    ]


def test_a_graph_for_the_terminal(diamond: Path) -> None:
    assert lines_of("graph", str(diamond)) == [
        "diamond two ways",
        "└── prompt",
        "└── reader function",
        "├── => text (text)",
        "├── text, streaming -> left function x2",
        "│ └── text, complete -> end function",
        "│ └── => speech (speech)",
        "└── text, complete -> right function",
        "└── text, complete -> end (above)",
    ]


def test_a_graph_for_documents(diamond: Path) -> None:
    assert lines_of("graph", str(diamond), "--format", "mermaid") == [
        "flowchart LR",
        "prompt([prompt])",
        'stage_reader["reader<br/>function"]',
        "prompt --> stage_reader",
        "stage_reader --> output_reader([text])",
        'stage_left["left<br/>function"]',
        'stage_right["right<br/>function"]',
        'stage_end["end<br/>function"]',
        "stage_end --> output_end([speech])",
        "stage_reader ==>|text, streaming| stage_left",
        "stage_reader -->|text, complete| stage_right",
        "stage_left -->|text, complete| stage_end",
        "stage_right -->|text, complete| stage_end",
    ]


def test_a_graph_for_graphviz(diamond: Path) -> None:
    lines = lines_of("graph", str(diamond), "--format", "dot")

    assert lines[0] == 'digraph "diamond" {'
    assert 'stage_reader -> stage_left [label="text, streaming", style=bold];' in lines
    assert 'stage_right -> stage_end [label="text, complete", style=solid];' in lines
    assert 'output_end [label="speech", shape=oval];' in lines
    assert lines[-1] == "}"


def test_a_graph_of_a_faulty_file_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["graph", str(tmp_path / "none.yaml")])

    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no such file" in result.stderr


def test_a_graph_names_conditions(tmp_path: Path) -> None:
    path = tmp_path / "fork.yaml"
    text = DIAMOND.replace("output: text}", "output: text, labels: [short]}", 1)
    path.write_text(text.replace("sources: [reader]", "sources: {reader: {when: short}}"), encoding="utf-8")
    assert "text, complete, when short -> right" in " ".join(lines_of("graph", str(path)))
    assert any("text, complete, when short" in line for line in lines_of("graph", str(path), "--format", "dot"))
