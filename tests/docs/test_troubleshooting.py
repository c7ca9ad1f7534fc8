"""The page for trouble has every error that there is, and quotes only texts that the code really has."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

import msgspec
import pytest

from podium.cli.problems import EXIT_CODES
from podium.core.admission import EngineLimits
from podium.core.graph import Limits
from podium.core.records import Wait
from podium.errors import KINDS, ErrorKind
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = sorted(set(re.findall(r'"([^"\n]*…[^"\n]*|[^"\n]{20,})"', re.sub(r"`[^`]*`", "", PAGE.replace("\n", " ")))))


def cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.strip("|").split("|")]


@lru_cache
def templates() -> tuple[str, ...]:
    """Every string of the package, with `…` for what is put in."""
    found: list[str] = []
    for path in (ROOT / "src" / "podium").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value.replace("%s", "…").replace("%g", "…"))
            elif isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
    return tuple(found)


@pytest.mark.rule("ORCH-INV-200")
def test_every_kind_of_error_has_its_row_and_its_section() -> None:
    rows = [cells(line) for line in PAGE.splitlines() if line.startswith("| `")]
    table = {row[0]: row[1:] for row in rows if len(row) == 5}

    assert table == {
        str(kind): [
            KINDS[kind].exception.__name__,
            str(KINDS[kind].status),
            str(KINDS[kind].exit_code),
            "yes" if KINDS[kind].retryable else "no",
        ]
        for kind in ErrorKind
    }
    sections = " ".join(line for line in PAGE.splitlines() if line.startswith("### "))
    assert [kind for kind in ErrorKind if f"`{kind}`" not in sections] == []


@pytest.mark.parametrize("text", QUOTED)
def test_what_is_quoted_is_said_by_the_code(text: str) -> None:
    """Piece by piece, since some messages are put together from several."""
    pieces = [piece.strip() for piece in text.split("…") if piece.strip(" ;:'().")]

    assert [piece for piece in pieces if not any(piece in template for template in templates())] == []


@pytest.mark.rule("ORCH-INV-204")
def test_every_wait_and_every_limit_of_time_is_explained() -> None:
    defaults = msgspec.structs.asdict(Limits()) | msgspec.structs.asdict(EngineLimits())

    assert [wait for wait in Wait if wait is not Wait.NOTHING and f"| {wait} |" not in PAGE] == []
    assert [
        name
        for name, default in defaults.items()
        if name.endswith("_timeout_s") and f"| `{name}`, {default:g} |" not in PAGE
    ] == []


def test_every_exit_code_is_explained() -> None:
    assert [code for code, meaning in EXIT_CODES.items() if f"| {code} | {meaning} |" not in PAGE] == []
