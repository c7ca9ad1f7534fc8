"""What callers pass to `generate` is checked once, on their side, and every refusal names the field and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from podium.core.admission import EngineLimits
from podium.core.graph import Graph
from podium.core.identity import ReplicaKey
from podium.errors import InvalidRequestError
from podium.options import read_params
from podium.ports.stage_client import StageClient
from podium.runtime.config import StageParams
from podium.runtime.parts import EngineParts, StageParts
from podium.runtime.preparation import (
    RequestPreparation,
    checked_affinity,
    checked_limit_s,
    checked_priority,
    request_id_or_new,
)
from podium.testing.fake_backend import FakeBackend
from tests.support.core_world import make_stage, streaming


class Params(msgspec.Struct, frozen=True):
    seed: int = 0
    speed: float = 1.0


class Parsed(NamedTuple):
    values: Params


def no_client(replica: ReplicaKey) -> StageClient:
    raise AssertionError(f"{replica} is not needed here")


def preparation(file: StageParams | None = None, engine: StageParams | None = None) -> RequestPreparation:
    stages = make_stage("a", output="text"), make_stage("b", streaming("a"), output="speech")
    part = StageParts(FakeBackend.capabilities, lambda values: Parsed(read_params(Params, values)), no_client)
    parts = EngineParts(Graph(stages), {"a": part, "b": part}, {"a": {}, "b": {}, **(file or {})})
    return RequestPreparation(parts, engine)


@pytest.mark.case("B076")
def test_a_request_comes_before_the_engine_and_the_engine_before_the_file() -> None:
    prepared = preparation({"a": {"seed": 1, "speed": 1.5}, "b": {"seed": 2}}, {"a": {"seed": 3}, "b": {"speed": 4.0}})
    assert prepared.params(None) == {"a": Parsed(Params(3, 1.5)), "b": Parsed(Params(2, 4.0))}
    assert prepared.params({"a": {"seed": 5}}) == {"a": Parsed(Params(5, 1.5)), "b": Parsed(Params(2, 4.0))}
    assert prepared.params({"a": {"seed": 6}, "b": {"seed": 7}}) == {
        "a": Parsed(Params(6, 1.5)),
        "b": Parsed(Params(7, 4.0)),
    }
    assert prepared.params(None) == {"a": Parsed(Params(3, 1.5)), "b": Parsed(Params(2, 4.0))}, "one request is one"


def test_parameters_without_changes_are_not_checked_again() -> None:
    prepared = preparation()
    assert prepared.params(None) is prepared.params({})
    assert prepared.params({"a": {"seed": 1}})["b"] is prepared.params(None)["b"]


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"a": {"sed": 1}}, r"^stage 'a', params.sed: is unknown; did you mean 'seed'\?"),
        ({"a": {"seed": "x"}}, r"^stage 'a', params.seed: .*correct the value"),
        ({"c": {}}, "params: unknown stage 'c'"),
        ({"a": 7}, "params.a: is .*; it must map names of parameters to values"),
        ([{"seed": 1}], "params: is .*; it must map each stage to its parameters"),
    ],
)
def test_unfit_parameters_are_refused(params: StageParams, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        preparation().params(params)
    with pytest.raises(InvalidRequestError, match=message):
        preparation(engine=params)


def test_an_unfit_parameter_names_its_stage() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        preparation().params({"a": {"sed": 1}})
    assert caught.value.stage == "a"


@pytest.mark.rule("ORCH-INV-107")
def test_outputs_are_those_of_the_pipeline() -> None:
    prepared = preparation()
    assert prepared.outputs(None) is None
    assert prepared.outputs(["speech"]) == ("speech",)
    assert prepared.outputs(("text", "speech")) == ("text", "speech")


@pytest.mark.rule("ORCH-INV-107")
@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ("speech", r"outputs: is the text 'speech'; pass a list, as in \['speech'\]"),
        (5, "outputs: is of type int; pass a list of names"),
        ([["text"]], r"outputs: this pipeline has no output '\['text'\]'; ask for some of: text, speech"),
        (["video"], "outputs: this pipeline has no output 'video'; ask for some of: text, speech"),
        ([], "outputs: nothing is asked for; ask for some of: text, speech"),
    ],
)
def test_other_outputs_are_refused(outputs: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        preparation().outputs(outputs)


def test_a_prompt_is_passed_on_as_it_is() -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert preparation().prompt(messages) is messages
    with pytest.raises(InvalidRequestError, match="prompt: is of type int"):
        preparation().prompt(7)


@pytest.mark.rule("ORCH-INV-102")
@pytest.mark.case("B039")
@pytest.mark.parametrize("missing", [None, ""])
def test_a_missing_id_is_made_up(missing: str | None) -> None:
    made = {request_id_or_new(missing) for _ in range(100)}
    assert len(made) == 100
    assert all(made)


@pytest.mark.rule("ORCH-INV-102")
def test_a_given_id_is_kept_whatever_it_looks_like() -> None:
    assert [request_id_or_new(one) for one in ("r1", " ", "0")] == ["r1", " ", "0"]
    with pytest.raises(InvalidRequestError, match="request_id: is a int; pass a text, or leave it out"):
        request_id_or_new(0)
    with pytest.raises(InvalidRequestError, match="request_id: has a lone surrogate at character 1"):
        request_id_or_new("r\ud800")  # a journal could not write it


def test_priorities_are_whole_numbers() -> None:
    assert [checked_priority(number) for number in (-1, 0, 2**40)] == [-1, 0, 2**40]
    for wrong in (1.5, "1", True, None, 2**53, -(2**53)):
        with pytest.raises(
            InvalidRequestError, match=r"priority: .* is no whole number of at most 53 bits; lower numbers run first"
        ):
            checked_priority(wrong)


def test_limits_are_positive_seconds() -> None:
    assert [checked_limit_s(limit, "deadline_s") for limit in (1, 0.001)] == [1.0, 0.001]
    for wrong in (0, -1, float("inf"), float("nan"), 10**400, "1", True, None):
        with pytest.raises(InvalidRequestError, match=r"deadline_s: .* is no positive number of seconds"):
            checked_limit_s(wrong, "deadline_s")


class TestCompanions:
    """What a pipeline's own function makes of a prompt."""

    def prepared(self, expand: Callable[..., object]) -> RequestPreparation:
        stage = make_stage("a", output="text")
        part = StageParts(FakeBackend.capabilities, lambda values: Parsed(read_params(Params, values)), no_client)
        limits = EngineLimits(max_siblings=4)
        parts = EngineParts(Graph([stage]), {"a": part}, {"a": {"seed": 1}}, limits, companions=expand)
        return RequestPreparation(parts, {"a": {"speed": 2.0}})

    def test_it_gets_the_prompt_and_the_merged_parameters(self) -> None:
        seen: list[object] = []

        def expand(prompt: object, params: object) -> dict[str, object]:
            seen.append((prompt, params))
            return {"negative": "not this", "style": "so"}

        prepared = self.prepared(expand)
        assert prepared.companions("this", {"a": {"seed": 7}}, 1) == {"negative": "not this", "style": "so"}
        assert seen == [("this", {"a": {"seed": 7, "speed": 2.0}})]

    def test_without_one_there_are_none(self) -> None:
        assert preparation().companions("this", None, 3) == {}

    def test_siblings_have_a_limit(self) -> None:
        prepared = self.prepared(lambda prompt, params: {"negative": f"{prompt}{len(params)}"})
        assert list(prepared.companions("this", None, 2)) == ["negative"]
        with pytest.raises(InvalidRequestError, match="3 samples with 1 companions each are 6 siblings"):
            prepared.companions("this", None, 3)

    @pytest.mark.rule("ORCH-INV-005")
    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (["negative"], "companions: the pipeline made a list; it must map roles to prompts"),
            ({"main": "x"}, "companions: 'main' is no role"),
            ({"a b": "x"}, "companions: 'a b' is no role"),
            ({7: "x"}, "companions: 7 is no role"),
            ({"negative": 7}, "prompt: is of type int"),
        ],
    )
    def test_what_is_no_companion_is_refused(self, made: object, message: str) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            self.prepared(lambda prompt, params: made).companions("this", None, 1)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (InvalidRequestError.because("prompt: has no scene; add one"), "prompt: has no scene; add one"),
            (KeyError("secret"), "companions: cannot be made of this prompt: KeyError; change the prompt"),
        ],
    )
    def test_what_it_raises_is_the_requests_fault(self, error: Exception, message: str) -> None:
        def expand(prompt: object, params: object) -> object:
            raise error

        with pytest.raises(InvalidRequestError, match=message) as caught:
            self.prepared(expand).companions("this", None, 1)
        assert "secret" not in caught.value.record.message


def test_an_affinity_is_a_text_or_nothing() -> None:
    assert (checked_affinity("user 7"), checked_affinity(""), checked_affinity(None)) == ("user 7", None, None)
    with pytest.raises(InvalidRequestError, match="affinity: is a int; pass a text, or leave it out"):
        checked_affinity(7)
