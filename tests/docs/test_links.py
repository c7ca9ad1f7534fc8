"""The pages belong together: links lead somewhere, the navigation has every page, the overview every module."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`[^`\n]+`")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", word) for word in words}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_INLINE.sub("", _FENCED.sub("", page.read_text(encoding="utf-8")))):
        name, _, anchor = link.partition("#")
        target = page if not name else page.parent / name
        if not link.startswith(("https://", "http://")) and (
            not target.exists() or (anchor and anchor not in anchors(target))
        ):
            broken.append(link)
    assert broken == []


def test_the_navigation_has_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = re.findall(r"[\w-]+\.md", str(nav))

    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("package", ["core", "runtime"])
def test_the_overview_has_every_module(package: str) -> None:
    modules = {path.stem for path in (ROOT / "src" / "podium" / package).glob("[!_]*.py")}
    rows = " ".join(line for line in ARCHITECTURE.splitlines() if line.startswith("| `"))

    assert modules - {"clock"} - set(re.findall(r"`(\w+)`", rows)) == set()


def test_the_layers_are_drawn_as_they_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    drawn = ARCHITECTURE.partition("## The layers")[2].partition("```text\n")[2].partition("```")[0].splitlines()

    assert len(drawn) == len(layers)
    for layer, line in zip(layers, drawn, strict=True):
        names = [name for name in layer.split(" | ") if not name.startswith("(")]
        assert line.strip().startswith(" │ ".join(names))
