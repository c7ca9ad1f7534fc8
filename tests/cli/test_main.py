"""What all verbs share: where a pipeline file's own modules are looked for, and a standard output of any kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from podium.cli.main import app

FILE = """
name: mine
stages:
  one: {kind: function, produces: text, output: text, backend: function, options: {function: my_own_stage:shout}}
"""


def test_a_pipeline_file_may_name_modules_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "my_own_stage.py").write_text("def shout(item): return item\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(FILE, encoding="utf-8")
    podium = Path(sys.executable).with_name("podium")

    run = subprocess.run(
        [podium, "check", "mine.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )

    assert (run.returncode, run.stdout) == (0, "mine.yaml: ok; stages one; outputs text\n")


PODIUM = Path(sys.executable).with_name("podium")


def test_a_closed_standard_output_is_no_fault_of_the_request(tmp_path: Path) -> None:
    command = f"'{PODIUM}' generate echo hi --param thinker.delay_s=0 --out out >&-"

    run = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert (run.returncode, "Traceback" in run.stderr) == (0, False)
    assert (tmp_path / "out" / "text.txt").read_text(encoding="utf-8") == "hi"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_standard_output_may_lack_a_character(tmp_path: Path, form: list[str]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}

    run = subprocess.run(
        [PODIUM, "generate", "echo", "h\u00e9", "--param", "thinker.delay_s=0", *form],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert run.returncode == 0
    assert (json.loads(run.stdout)["text"] if form else run.stdout) == ("h\u00e9" if form else "h?\n")


def test_a_prompt_that_is_no_unicode_is_refused_in_one_document(tmp_path: Path) -> None:
    run = subprocess.run(
        [PODIUM, "generate", "echo", b"\xff", "--json"], cwd=tmp_path, capture_output=True, check=False, timeout=60
    )

    assert run.returncode == 2
    assert json.loads(run.stdout)["error"]["message"].startswith("prompt: has a lone surrogate at character 0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--json"], "Missing argument"),
        (["generate", "echo", "hi", "--json", "--deadline", "soon"], "Invalid value for '--deadline'"),
        (["check", "--json", "--nothing"], "No such option"),
        (["replay", "a", "b", "--json"], "unexpected extra argument"),
    ],
)
def test_arguments_that_cannot_be_understood_give_a_document_too(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("sys.argv", ["podium", *arguments])
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert list(document) == ["error"]
    assert message in document["error"]["message"]
    assert (document["error"]["kind"], document["error"]["exit_code"]) == ("usage", 2)
    monkeypatch.setattr("sys.argv", ["podium", *(argument for argument in arguments if argument != "--json")])
    assert CliRunner().invoke(app, sys.argv[1:]).stdout == ""
