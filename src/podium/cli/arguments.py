"""Turns what was typed into what an engine takes: parameters by stage, names of outputs, the prompt; completes names.

Whatever is wrong raises InvalidRequestError, so that it is reported like any other invalid request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from podium import bootstrap
from podium.errors import InvalidRequestError


def parse_params(entries: Iterable[str]) -> dict[str, dict[str, object]]:
    """`stage.name=value` entries as a mapping by stage; values are YAML, so numbers and flags are what they seem."""
    params: dict[str, dict[str, object]] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        stage, dot, name = key.strip().partition(".")
        if not (equals and dot and stage and name):
            raise InvalidRequestError.because(
                f"--param {entry}: is not stage.name=value; write it like --param thinker.max_tokens=64"
            )
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:
            raise InvalidRequestError.because(
                f"--param {entry}: the value cannot be read; quote it if it is a text, as in 'stage.name=\"a: b\"'"
            ) from error
        params.setdefault(stage, {})[name] = value
    return params


def complete_pipeline(incomplete: str) -> list[str]:
    """The shipped pipelines whose names begin like that, for the shell's completion."""
    return [name for name in bootstrap.CATALOG.pipelines if name.startswith(incomplete)]


def parse_outputs(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas; None, for every output, when nothing was given."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InvalidRequestError.because("--outputs: names no output; give names like text,speech or leave it out")
    return names


def read_prompt(prompt: str | None, messages: Path | None) -> object:
    """The prompt as typed, from standard input for `-`, or the chat messages of a JSON file; exactly one is given."""
    if (prompt is None) == (messages is None):
        raise InvalidRequestError.because("prompt: give either PROMPT or --messages FILE.json")
    if messages is not None:
        return _read_messages(messages)
    return _read_stdin() if prompt == "-" else prompt


def check_journal(path: Path | None) -> Path | None:
    """A journal that can be written; its folder is made where there is none."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise InvalidRequestError.because(
                f"--journal {path}: cannot be written: {error.strerror}; choose another file"
            ) from error
    return path


def _read_stdin() -> str:
    if sys.stdin is None:
        raise InvalidRequestError.because("prompt: standard input is closed; give the prompt as an argument")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError.because(f"prompt: standard input is not text: {error}; send UTF-8") from error


def _read_messages(path: Path) -> object:
    remedy = 'it holds a list like [{"role": "user", "content": "Hello"}]'
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError.because(f"--messages {path}: cannot be read: {error.strerror}; {remedy}") from error
    except ValueError as error:
        raise InvalidRequestError.because(f"--messages {path}: is not JSON: {error}; {remedy}") from error
