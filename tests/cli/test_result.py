"""Putting a request's outputs together: names, text to show, figures, and what is missing from them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from podium.cli.result import Result
from podium.core.effects import StageTimings
from podium.core.events import FinishReason
from podium.core.graph import Modality
from podium.payloads import Audio, Text
from tests.cli.fake_engine import RATE, TIMELINE, finish, speech, text


def test_only_the_first_text_is_shown_as_it_comes() -> None:
    result = Result("two")

    outputs = [text("a"), text("hm", "critic", "critique"), speech(0.1), text("b")]
    shown = [result.take(output) for output in outputs]

    assert shown == ["a", "", "", "b"]
    assert result.text == "ab"
    assert [output.name for output in result.outputs.values()] == ["text", "critique", "speech"]


def test_a_partial_covers_what_was_delivered_before_it() -> None:
    result = Result("voice")

    shown = [result.take(text("Hel")), result.take(finish("thinker", FinishReason.ABORT, Text("Hello")))]

    assert shown == ["Hel", "lo"]
    assert result.outputs["thinker"].finish_reason is FinishReason.ABORT


def test_a_piece_costs_the_same_however_many_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    monkeypatch.setattr("podium.cli.result.join", lambda pieces: joined.append(len(pieces)))
    result = Result("voice")
    for _ in range(50):
        result.take(text("a"))
        result.take(speech(0.1))

    assert joined == [], "pieces are joined when the whole is asked for"


def test_sounds_of_different_rates_are_told(tmp_path: Path) -> None:
    result = Result("voice")
    result.take(speech(0.1))
    result.take(msgspec.structs.replace(speech(0.1), delta=Audio(np.zeros(2, np.float32), 2 * RATE)))
    result.save(tmp_path)

    assert result.outputs["speaker"].file is None
    assert result.outputs["speaker"].mismatch == (
        "stage 'speaker' gave sounds of different sample rates as the output 'speech'; give one rate"
    )


def test_an_output_without_anything_has_a_reason_and_no_file(tmp_path: Path) -> None:
    result = Result("voice")
    result.take(finish("speaker"))
    result.save(tmp_path)

    assert result.outputs["speaker"].file is None
    assert result.to_json()["finish_reasons"] == {"speech": "stop"}
    assert list(tmp_path.iterdir()) == []


def test_stations_that_were_never_reached_are_empty() -> None:
    result = Result("voice")
    result.timeline = {"thinker": StageTimings(5.0, 5.5)}
    result.take(text("a"))

    assert result.first_output_s(Modality.TEXT) is None
    assert (result.total_s, result.audio_s, result.real_time_factor) == (None, None, None)
    assert result.summary() == []


def test_a_text_that_cannot_be_written_is_saved_all_the_same(tmp_path: Path) -> None:
    result = Result("echo")
    result.take(text("a\ud800b"))
    result.save(tmp_path)

    assert (tmp_path / "text.txt").read_text(encoding="utf-8") == "a?b"


def test_the_real_time_factor_counts_until_speech_is_finished() -> None:
    result = Result("voice")
    result.timeline = {**TIMELINE, "painter": StageTimings(100.0, finished_at=200.0)}
    result.take(speech(1.0))

    assert result.total_s == pytest.approx(100.0)
    assert result.real_time_factor == pytest.approx(2.0)
