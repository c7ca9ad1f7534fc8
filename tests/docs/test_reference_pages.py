"""The reference pages name what the code has: every exit code, option, key and limit with its default."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from typer.main import get_command

from podium.backends.function import FunctionOptions
from podium.backends.vllm.options import VllmOptions, VllmParams
from podium.bootstrap import BACKENDS, CATALOG, PROCESSORS, TRANSPORTS, load_pipeline
from podium.cli.main import app
from podium.cli.problems import EXIT_CODES
from podium.core.admission import EngineLimits
from podium.core.graph import Limits
from podium.runtime.pipeline_file import PIPELINE_KEYS, STAGE_KEYS, parse_pipeline
from podium.testing.explorer.worlds import WORLDS
from tests.runtime.fake_catalog import FakeCatalog

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMAND_LINE = (DOCS / "cli.md").read_text(encoding="utf-8")
PIPELINE_FILES = (DOCS / "pipelines.md").read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """The rows of all tables, by their first cell."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


def section(title: str) -> str:
    """A section of the page about pipelines."""
    return PIPELINE_FILES.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_exit_code_is_on_the_page() -> None:
    assert {code: rows(COMMAND_LINE)[str(code)] for code in EXIT_CODES} == {
        code: [meaning] for code, meaning in EXIT_CODES.items()
    }


def test_every_verb_and_option_is_on_the_page() -> None:
    command = get_command(app)
    verbs = command.commands  # type: ignore[attr-defined]
    options = [option for parameter in verbs["generate"].params for option in parameter.opts if option.startswith("--")]

    assert [verb for verb in verbs if f"## `podium {verb} " not in COMMAND_LINE] == []
    assert [option for option in options if option not in COMMAND_LINE] == []


def test_every_world_is_on_the_page() -> None:
    described = rows((DOCS / "exploring.md").read_text(encoding="utf-8"))

    assert {world.name: described[world.name] for world in WORLDS} == {world.name: [world.about] for world in WORLDS}


@pytest.mark.parametrize("limits", [Limits, EngineLimits])
def test_every_limit_is_on_the_page_with_its_default(limits: type[msgspec.Struct]) -> None:
    defaults = msgspec.structs.asdict(limits())

    assert {name: float(rows(section("Limits"))[name][-1]) for name in defaults} == defaults


def test_every_key_is_on_the_page() -> None:
    assert [key for key in STAGE_KEYS if key not in rows(PIPELINE_FILES)] == []
    assert [key for key in PIPELINE_KEYS if f"\n{key}:" not in PIPELINE_FILES] == []


@pytest.mark.parametrize("options", [FunctionOptions, VllmOptions, VllmParams])
def test_every_option_and_parameter_is_on_the_page(options: type[msgspec.Struct]) -> None:
    documented = set(re.findall(r"`(\w+)`", section("Options of the backends")))

    assert [field.name for field in msgspec.structs.fields(options) if field.name not in documented] == []


def test_every_short_name_is_on_the_page() -> None:
    documented = set(re.findall(r"`(\w+)`", PIPELINE_FILES))

    assert {*BACKENDS, *PROCESSORS, *TRANSPORTS, *CATALOG.pipelines} - documented == set()


@pytest.mark.parametrize("pipeline", list(CATALOG.pipelines))
def test_every_shipped_pipeline_is_described(pipeline: str) -> None:
    config = load_pipeline(pipeline)
    described = section(f"The `{pipeline}` pipeline")

    for stage in config.stages:
        assert f"| `{stage.name}` | `{stage.stage.output}`" in described
        assert [name for name in stage.params if f"`{name}`" not in described] == []


def test_the_example_on_the_page_is_right_but_for_its_names() -> None:
    example = re.search(r"```yaml\n(.*?)```", PIPELINE_FILES, re.DOTALL)
    assert example is not None
    text = example[1]
    for word, known in (("vllm\n", "fake\n"), ("backend: function", "backend: fake"), ("sentences", "text")):
        text = text.replace(word, known)

    assert (
        parse_pipeline(text.replace("function: my_package", "model: my_package"), "example", FakeCatalog()).name
        == "voice"
    )
