"""Which class a name stands for, which pipelines are shipped, and what is missing to run one."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium import bootstrap
from podium.backends.function import FunctionBackend
from podium.core.graph import Modality, Stage, StageKind
from podium.errors import ConfigurationError
from podium.ports.input_processor import BundleProcessor
from podium.processors.prompt import PromptProcessor
from podium.runtime.config import PipelineConfig, StageConfig

STAGE = StageConfig(
    stage=Stage(name="a", kind=StageKind.FUNCTION, produces=Modality.TEXT, output="text"),
    backend="function",
)


class NotABackend:
    """Has the look of a backend, and no more."""

    capabilities = "all of them"


class UndeclaredBackend(FunctionBackend):
    """Everything but capabilities."""

    capabilities = None  # type: ignore[assignment]


def fault_of(error: pytest.ExceptionInfo[ConfigurationError]) -> str:
    (fault,) = error.value.faults
    return str(fault)


def test_short_names_and_import_paths_name_classes() -> None:
    assert bootstrap.resolve_backend("function") is FunctionBackend
    assert bootstrap.resolve_backend("podium.backends.function:FunctionBackend") is FunctionBackend
    assert bootstrap.resolve_processor("prompt") is PromptProcessor


@pytest.mark.parametrize("name", bootstrap.BACKENDS)
@pytest.mark.rule("ORCH-INV-007")
def test_every_short_name_of_a_backend_resolves_without_its_engine(name: str) -> None:
    assert bootstrap.resolve_backend(name).capabilities.kinds


@pytest.mark.parametrize("name", bootstrap.PROCESSORS)
def test_every_short_name_of_a_processor_resolves(name: str) -> None:
    assert bootstrap.resolve_processor(name).__name__.endswith("Processor")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("functoin", "backend: unknown backend 'functoin'; did you mean 'function'? (or write package.module:Class)"),
        (
            "triton",
            "backend: unknown backend 'triton'; use one of: function, vllm (or write package.module:Class)",
        ),
        (
            "json:dumps",
            (
                "backend: 'json:dumps' cannot be used: it is not a class;"
                " name a class that implements podium.ports.StageBackend"
            ),
        ),
        (
            f"{__name__}:NotABackend",
            (
                f"backend: '{__name__}:NotABackend' cannot be used: it lacks call, close, end_input, feed, load,"
                " next_outputs, parse_options, parse_params, stop, submit; implement all of StageBackend"
            ),
        ),
        (
            f"{__name__}:UndeclaredBackend",
            (
                f"backend: '{__name__}:UndeclaredBackend' cannot be used: its `capabilities` are no Capabilities;"
                " declare them as a ClassVar"
            ),
        ),
        (
            "no_such_package.thing:Thing",
            (
                "backend: 'no_such_package.thing:Thing' cannot be imported: ModuleNotFoundError: No module named"
                " 'no_such_package'; install or correct the module 'no_such_package.thing'"
            ),
        ),
    ],
)
@pytest.mark.rule("ORCH-INV-007")
def test_what_is_no_backend_is_refused(name: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        bootstrap.resolve_backend(name)

    assert fault_of(error) == fault


def test_what_is_no_processor_is_refused() -> None:
    with pytest.raises(ConfigurationError) as error:
        bootstrap.resolve_processor("json:JSONDecoder")

    assert fault_of(error) == (
        "processor: 'json:JSONDecoder' cannot be used: it lacks accepts, open, parse_options, placement;"
        " implement all of InputProcessor"
    )


def test_missing_modules_are_named_with_how_to_get_them() -> None:
    config = PipelineConfig(
        name="voice",
        stages=(STAGE,),
        requires=("json", "no_such_module", "no_such_package.part"),
        install="make demo",
    )

    assert bootstrap.missing_requirements(config) == ("no_such_module", "no_such_package.part")
    with pytest.raises(ConfigurationError) as error:
        bootstrap.check_requirements(config)
    assert str(error.value) == (
        "pipeline 'voice': 1 fault\n"
        "  requires: not installed: no_such_module, no_such_package.part; install what it needs: make demo"
    )


def test_nothing_missing_is_no_fault() -> None:
    bootstrap.check_requirements(PipelineConfig(name="voice", stages=(STAGE,), requires=("json",)))


def test_a_broken_file_is_listed_with_its_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.yaml").write_text("name: broken\n", encoding="utf-8")
    monkeypatch.setattr(bootstrap, "PIPELINES", tmp_path)

    (summary,) = bootstrap.list_pipelines()

    assert (summary.name, summary.is_ready) == ("broken", False)
    assert [str(fault) for fault in summary.faults] == ["stages: is missing; declare at least one stage"]


def test_shipped_pipelines_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo.yaml").write_text(
        "name: echo\ndescription: says it again\nrequires: [no_such_module]\ninstall: pip install it\n"
        "stages:\n  words: {kind: function, produces: text, output: text, backend: function,"
        " options: {function: 'operator:neg'}}\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(bootstrap, "PIPELINES", tmp_path)

    assert bootstrap.list_pipelines() == [
        bootstrap.PipelineSummary(
            name="echo",
            description="says it again",
            stages=("words",),
            outputs=("text",),
            missing=("no_such_module",),
            install="pip install it",
        )
    ]


def test_a_bundle_processor_is_one_by_its_base() -> None:
    assert issubclass(bootstrap.resolve_processor("bundle"), BundleProcessor)
    with pytest.raises(ConfigurationError, match="it is not a class"):
        bootstrap.resolve_processor("json:loads")
