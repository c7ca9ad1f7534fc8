"""The short processors: prompt, passthrough, complete, function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest

from podium.core.graph import Modality
from podium.core.identity import MAIN, PROMPT, JobKey, Payload
from podium.errors import ConfigurationError, InvalidRequestError
from podium.payloads import Audio, Text
from podium.ports.input_processor import InputProcessor, InputStream
from podium.processors.complete import CompleteProcessor
from podium.processors.function import FunctionProcessor
from podium.processors.passthrough import PassthroughProcessor
from podium.processors.prompt import PromptProcessor
from podium.processors.sentences import SentencesProcessor

JOB = JobKey("r1", "stage", MAIN, 0)
TWO = {"a": Modality.TEXT, "b": Modality.TEXT}


def make(kind: type[InputProcessor], **options: object) -> InputProcessor:
    return kind(kind.parse_options(options))


def open_stream(kind: type[InputProcessor], sources: Mapping[str, Modality], **options: object) -> InputStream:
    return make(kind, **options).open(JOB, "the prompt", sources)


@pytest.mark.parametrize("prompt", ["hello", Text("hello"), [{"role": "user", "content": "hello"}]])
def test_the_prompt_goes_through_as_it_is(prompt: object) -> None:
    stream = open_stream(PromptProcessor, {})
    (item,) = stream.feed(PROMPT, [prompt])
    assert item is prompt
    assert list(stream.end(PROMPT)) == []


@pytest.mark.rule("ORCH-INV-004")
def test_what_is_no_prompt_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequestError, match="prompt: is of type int"):
        open_stream(PromptProcessor, {}).feed(PROMPT, [5])


def test_passthrough_gives_every_chunk() -> None:
    stream = open_stream(PassthroughProcessor, TWO)
    assert list(stream.feed("a", [1, 2])) == [1, 2]
    assert list(stream.feed("b", [3])) == [3]
    assert list(stream.end("a")) == list(stream.end("b")) == []


@pytest.mark.rule("ORCH-INV-116")
def test_complete_gives_one_item_for_each_source_at_the_end() -> None:
    stream = open_stream(CompleteProcessor, TWO)
    assert list(stream.feed("b", [Text("3")])) == []
    assert list(stream.feed("a", [Text("1"), Text("2")])) == []
    assert list(stream.end("b")) == []
    assert list(stream.end("b")) == [], "an end that is repeated"
    assert list(stream.end("a")) == [Text("12"), Text("3")]
    assert list(stream.end("a")) == [], "once"


def test_complete_joins_sounds_and_leaves_out_what_is_empty() -> None:
    stream = open_stream(CompleteProcessor, TWO)
    piece = Audio(np.ones(2, dtype=np.float32), 24_000)
    stream.feed("a", [piece, piece])
    stream.end("b")
    (sound,) = stream.end("a")
    assert isinstance(sound, Audio)
    assert sound.samples.shape == (4,)


def test_complete_takes_the_prompt_too() -> None:
    stream = open_stream(CompleteProcessor, {})
    stream.feed(PROMPT, ["hello"])
    assert list(stream.end(PROMPT)) == ["hello"]


def shape(sources: dict[str, list[Payload]]) -> dict[str, int]:
    return {source: len(payloads) for source, payloads in sources.items()}


def refuse(sources: dict[str, list[Payload]]) -> None:
    raise InvalidRequestError.because("prompt: no")


def nothing(sources: dict[str, list[Payload]]) -> None:
    return None


HERE = "tests.processors.test_streams"


def test_a_function_gets_everything_once() -> None:
    stream = open_stream(FunctionProcessor, TWO, function=f"{HERE}:shape")
    assert list(stream.feed("a", [1, 2])) == []
    assert list(stream.end("a")) == []
    assert list(stream.end("b")) == [{PROMPT: 1, "a": 2, "b": 0}]


def test_a_function_may_give_nothing() -> None:
    stream = open_stream(FunctionProcessor, {}, function=f"{HERE}:nothing")
    assert list(stream.end(PROMPT)) == []


@pytest.mark.rule("ORCH-INV-004")
def test_what_a_function_raises_comes_out() -> None:
    stream = open_stream(FunctionProcessor, {}, function=f"{HERE}:refuse")
    with pytest.raises(InvalidRequestError, match="prompt: no"):
        stream.end(PROMPT)


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError) as caught:
        FunctionProcessor.parse_options({"function": f"{HERE}:shapes"})
    assert caught.value.faults[0].where == "processor_options.function"
    assert caught.value.faults[0].remedy == f"did you mean '{HERE}:shape'?"


class TestDeclared:
    options: ClassVar[dict[type[InputProcessor], dict[str, object]]] = {
        FunctionProcessor: {"function": f"{HERE}:shape"},
    }

    @pytest.mark.rule("ORCH-INV-007")
    @pytest.mark.parametrize(
        ("kind", "accepts"),
        [
            (PromptProcessor, frozenset()),
            (PassthroughProcessor, None),
            (CompleteProcessor, None),
            (FunctionProcessor, None),
            (SentencesProcessor, frozenset({Modality.TEXT})),
        ],
    )
    def test_what_it_accepts(self, kind: type[InputProcessor], accepts: frozenset[Modality] | None) -> None:
        assert kind.accepts == accepts
        assert make(kind, **self.options.get(kind, {})).accepts == accepts

    @pytest.mark.parametrize("kind", [PromptProcessor, PassthroughProcessor, CompleteProcessor, FunctionProcessor])
    def test_unknown_options_are_refused(self, kind: type[InputProcessor]) -> None:
        with pytest.raises(ConfigurationError, match="speed"):
            kind.parse_options({"speed": 1, **self.options.get(kind, {})})
