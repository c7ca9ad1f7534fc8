"""Reads the pages of the documentation and runs what they show, as a reader would who copies block after block.

A comment in front of a block says what it is for: `run` (Python, in one namespace for the page), `prints` (exactly what
the block before printed), `file: NAME` (to be saved under that name), `shell` (its `$` lines are run, and the lines
below must come; `…` stands for anything, and numbers may differ), `not run: REASON`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*$")
_DIRECTIVE = re.compile(r"^\s*<!-- (?P<name>run|prints|file|shell|not run)(?:: (?P<argument>.*))? -->$")
_SHELL_LIMIT_S = 60.0


class Block(NamedTuple):
    """One fenced block: what is done with it, and where it stands (the line of its first line, from 1)."""

    directive: str
    argument: str
    language: str
    text: str
    line: int


def read_blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order; the directive is empty where none was given."""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    directive, argument = "", ""
    for _, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            found = _DIRECTIVE.match(line)
            if found is not None:
                directive, argument = found["name"], found["argument"] or ""
            elif line.strip():
                directive, argument = "", ""
            continue
        indent = len(fence["indent"])
        body: list[str] = []
        first = 0
        for number, inner in lines:
            first = first or number
            if inner.strip() == "```":
                break
            body.append(inner[indent:])
        yield Block(directive, argument, fence["language"], "\n".join(body) + "\n", first)
        directive, argument = "", ""


class Reader:
    """Somebody who follows one page in an empty directory."""

    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._namespace: dict[str, object] = {"__name__": "__main__"}
        self._printed = ""

    def follow(self) -> None:
        """Do what the page says, block by block; raises AssertionError where it is wrong."""
        for block in read_blocks(self._page):
            where = f"{self._page.name}, line {block.line}"
            match block.directive:
                case "run":
                    self._run(block)
                case "prints":
                    assert self._printed == block.text, f"{where}: it prints\n{self._printed}"
                case "file":
                    (self._folder / block.argument).write_text(block.text, encoding="utf-8")
                case "shell":
                    self._run_shell(block, where)
                case _:
                    pass

    def _run(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + block.text, str(self._page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self._namespace)
        self._printed = printed.getvalue()

    def _run_shell(self, block: Block, where: str) -> None:
        for entry in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = entry.partition("\n")
            run = subprocess.run(
                command,
                shell=True,
                cwd=self._folder,
                env={**os.environ, **_environment()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_SHELL_LIMIT_S,
                check=False,
            )
            expected = int(block.argument.removeprefix("exits ")) if block.argument else 0
            assert run.returncode == expected, f"{where}: {command} exits with {run.returncode}:\n{run.stdout}"
            assert _is_shown(shown, run.stdout), f"{where}: {command} prints\n{run.stdout}"
            self._printed = run.stdout


def _environment() -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    return {"PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}", "COLUMNS": "120", "NO_COLOR": "1"}


def _is_shown(shown: str, printed: str) -> bool:
    """Whether every line of `shown` was printed, in that order; numbers and the width of gaps may differ."""
    printed_lines = iter(map(_outline, printed.splitlines()))
    for line in filter(None, map(_outline, shown.splitlines())):
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if not any(pattern.fullmatch(candidate) for candidate in printed_lines):
            return False
    return True


def _outline(line: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "0", " ".join(line.split()))
