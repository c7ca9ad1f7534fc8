"""What all verbs share: where a pipeline file's own modules are looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
