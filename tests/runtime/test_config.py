"""Pipelines as data, and the one order in which sampling parameters are merged."""

from __future__ import annotations

import pytest

from podium.core.graph import Modality, Source, Stage, StageKind
from podium.errors import InvalidRequestError
from podium.runtime.config import PipelineConfig, StageConfig, merge_params

DEFAULTS: dict[str, dict[str, object]] = {
    "thinker": {"max_tokens": 100, "seed": 1},
    "speaker": {"voice": "a"},
    "painter": {},
}


@pytest.mark.case("B076", "B110")
def test_request_covers_engine_covers_file_parameter_by_parameter() -> None:
    engine = {"thinker": {"max_tokens": 50, "temperature": 0.5}}
    request = {"thinker": {"max_tokens": 5}, "painter": {"steps": 3}}

    assert merge_params(DEFAULTS, engine, request) == {
        "thinker": {"max_tokens": 5, "seed": 1, "temperature": 0.5},
        "speaker": {"voice": "a"},
        "painter": {"steps": 3},
    }


def test_merging_changes_none_of_its_arguments() -> None:
    engine = {"thinker": {"max_tokens": 50}}
    merged = merge_params(DEFAULTS, engine)
    merged["thinker"]["max_tokens"] = 1

    assert (DEFAULTS["thinker"]["max_tokens"], engine["thinker"]["max_tokens"]) == (100, 50)


@pytest.mark.case("B076")
@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({"thinkr": {}}, "params: unknown stage 'thinkr'; did you mean 'thinker'?"),
        ({"vocoder": {}}, "params: unknown stage 'vocoder'; use one of: thinker, speaker, painter"),
        ({"thinker": 5}, "params.thinker: is a whole number (5); it must map names of parameters to values"),
        (
            [{"max_tokens": 5}],
            "params: is a list; it must map each stage to its parameters, as in {'thinker': {'name': value}}",
        ),
    ],
)
def test_a_wrong_overlay_is_the_callers_fault(overlay: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        merge_params(DEFAULTS, overlay)

    assert (str(caught.value), caught.value.status) == (message, 400)


def test_a_pipeline_gives_its_graph_and_its_default_parameters() -> None:
    thinker = Stage(name="thinker", kind=StageKind.AUTOREGRESSIVE, produces=Modality.TEXT)
    speaker = Stage(
        name="speaker",
        kind=StageKind.FUNCTION,
        produces=Modality.SPEECH,
        sources=(Source("thinker"),),
        output="speech",
    )
    config = PipelineConfig(
        name="voice",
        stages=(StageConfig(stage=speaker, backend="b"), StageConfig(stage=thinker, backend="b", params={"seed": 1})),
    )

    assert list(config.graph.stages) == ["thinker", "speaker"]
    assert config.default_params == {"speaker": {}, "thinker": {"seed": 1}}
