"""Everything that the pages show is run; nothing escapes by being forgotten."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, Reader, read_blocks

MADE_BY_PROGRAMS = {"lifecycle.md", "performance.md"}
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.glob("*.md") if page.name not in MADE_BY_PROGRAMS)]
SHOWN_TO_BE_RUN = {"python", "pycon", "yaml", "console", "sh", "bash", "json"}

every_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(sys.modules[name].__dict__.get("__file__") or "").startswith(str(tmp_path)):
            del sys.modules[name]


@every_page
def test_every_block_says_what_is_done_with_it(page: Path) -> None:
    assert [
        f"line {block.line}: {block.language}"
        for block in read_blocks(page)
        if block.language in SHOWN_TO_BE_RUN and not block.directive
    ] == []


@every_page
def test_what_the_page_shows_works(page: Path, folder: Path) -> None:
    Reader(page, folder).follow()
