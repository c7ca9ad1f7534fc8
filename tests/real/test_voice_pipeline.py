"""The shipped `voice` pipeline as its users have it: text and speech, by two real engines, through the public API.

One engine serves all tests. Faults and limits are in `test_voice_faults.py`, the command line in `test_voice_cli.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from podium import AbortReport, Audio, FinishReason, OmniOutput, OmniResult, Text
from podium.bootstrap import AsyncOmniEngine
from podium.core.effects import AbortStatus, Outcome
from podium.core.statistics import Statistics
from podium.errors import InvalidRequestError
from podium.payloads import join
from podium.runtime.config import StageParams
from podium.runtime.omni_engine import OmniEngine
from podium.runtime.request_stream import RequestStream
from tests.real.shared_loop import SharedLoop
from tests.real.speech_figures import measure

QUESTION = "Why is the sky blue?"
SHORT: StageParams = {"thinker": {"max_tokens": 24}}
ENDLESS: StageParams = {"thinker": {"max_tokens": 1500, "ignore_eos": True}}
"""An answer that takes more than a minute."""
WORDS_PER_S = (1.5, 4.5)
"""How fast people talk, and more."""
NOUNS = tuple(
    re.findall(
        r"\w+",
        """
        cat dog horse violin piano guitar bicycle car train boat airplane river mountain ocean desert forest island
        volcano apple banana carrot potato bread cheese coffee tea milk sugar salt pepper book pencil computer telephone
        camera clock window door chair table lamp mirror blanket pillow hammer ladder bridge castle school hospital
        library museum planet star comet rainbow thunder snow butterfly spider elephant penguin tiger clown
        """,
    )
)

pytestmark = pytest.mark.timeout(600)


class Voice:
    """One engine, for asynchronous and for synchronous callers."""

    def __init__(self) -> None:
        self.engine = AsyncOmniEngine.from_pipeline("voice")
        self.blocking = OmniEngine(self.engine)
        self.loop = SharedLoop()

    def ask(self, prompt: object = QUESTION, params: StageParams | None = SHORT, **options: str) -> Answer:
        """One request on its own, read to its end."""
        return self.ask_all([prompt], params, **options)[0]

    def ask_all(self, prompts: Sequence[object], params: StageParams | None = SHORT, **options: str) -> list[Answer]:
        """All of them at the same time."""

        async def read_all() -> list[Answer]:
            outputs = tuple(options["outputs"].split()) if "outputs" in options else None
            streams = [self.engine.generate(prompt, outputs=outputs, params=params) for prompt in prompts]
            return await asyncio.gather(*(read(stream) for stream in streams))

        return self.loop.run(read_all(), timeout_s=500)

    async def wait_idle(self, limit_s: float) -> Statistics:
        """The core's figures once every table is empty; raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while True:
                figures = (await self.engine.statistics()).core
                if figures.is_idle:
                    return figures
                await asyncio.sleep(0.05)


class Answer(NamedTuple):
    """What came of one request, and the stream that it came by, after its end."""

    items: list[OmniOutput]
    stream: RequestStream

    @property
    def text(self) -> str:
        whole = join(self.deltas("text"))
        return whole.text if isinstance(whole, Text) else ""

    @property
    def speech(self) -> Audio:
        whole = join(self.deltas("speech"))
        assert isinstance(whole, Audio)
        return whole

    def deltas(self, output: str) -> list[object]:
        return [item.delta for item in self.items if item.output == output and item.delta is not None]

    def finish(self, output: str) -> OmniOutput:
        (found,) = [item for item in self.items if item.output == output and item.stage_finished]
        return found


async def read(stream: RequestStream) -> Answer:
    return Answer([item async for item in stream], stream)


@pytest.fixture(scope="module")
def voice() -> Iterator[Voice]:
    """An engine that lives as long as this module's tests."""
    voice = Voice()
    try:
        voice.blocking.start()
        yield voice
    finally:
        voice.blocking.shutdown()
        voice.loop.close()


@pytest.fixture(scope="module")
def answer(voice: Voice) -> Answer:
    """The answer to the demo's question, as the pipeline file has it."""
    return voice.ask(params=None)


def check_order(answer: Answer, outputs: Sequence[str] = ("text", "speech")) -> None:
    """Numbered without gaps; each output has one finish, behind all of its pieces; the last item is the request's."""
    assert [item.sequence for item in answer.items] == list(range(len(answer.items)))
    assert [item.at for item in answer.items] == sorted(item.at for item in answer.items)
    assert [item.request_finished for item in answer.items] == [False] * (len(answer.items) - 1) + [True]
    assert {item.output for item in answer.items} == set(outputs)
    for output in outputs:
        own = [item for item in answer.items if item.output == output]
        assert [item.stage_finished for item in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].finish_reason is not None
    assert answer.stream.outcome is Outcome.COMPLETED
    assert answer.stream.error is None


@pytest.mark.rule("ORCH-INV-103", "ORCH-INV-105", "ORCH-INV-106", "ORCH-INV-116")
@pytest.mark.case("B031", "B075")
def test_text_and_speech_stream_back_in_order(answer: Answer) -> None:
    check_order(answer)
    assert "sky" in answer.text.lower()
    assert len(answer.deltas("text")) > 10
    assert len(answer.deltas("speech")) >= len(sentences(answer.text)) > 1
    finish = answer.finish("text")
    assert finish.finish_reason in {FinishReason.STOP, FinishReason.LENGTH}
    pieces = [piece for piece in answer.deltas("text") if isinstance(piece, Text)]
    assert all(piece.text or piece.token_ids for piece in pieces)
    assert finish.usage["completion_tokens"] == sum(len(piece.token_ids) for piece in pieces)


def test_speech_starts_before_the_text_is_complete(answer: Answer) -> None:
    first_speech = next(item for item in answer.items if item.output == "speech")
    assert first_speech.delta is not None
    assert first_speech.at < answer.finish("text").at
    assert first_speech.sequence < answer.finish("text").sequence
    thinker, speaker = answer.stream.timeline["thinker"], answer.stream.timeline["speaker"]
    assert thinker.first_output_at is not None
    assert speaker.first_output_at is not None
    assert thinker.finished_at is not None
    assert thinker.submitted_at <= thinker.first_output_at < speaker.first_output_at < thinker.finished_at


def test_the_speech_is_speech_of_that_text(answer: Answer) -> None:
    """24 kHz, loud enough, as long as the words take; voiced, with the rhythm and the melody of speech."""
    speech = answer.speech
    assert speech.sample_rate == 24_000
    assert speech.samples.dtype == np.float32
    assert np.isfinite(speech.samples).all()
    figures = measure(speech)
    assert figures.is_speech, figures
    assert figures.peak <= 1.0
    words_per_s = len(answer.text.split()) / speech.duration_s
    assert WORDS_PER_S[0] < words_per_s < WORDS_PER_S[1]
    for piece in answer.deltas("speech"):
        assert isinstance(piece, Audio)
        assert measure(piece).rms > 0.005, "a silent sentence"


@pytest.mark.parametrize("name", ["silence", "tone", "beeps", "noise", "bursts of noise"])
def test_the_measure_of_speech_is_not_met_by(name: str) -> None:
    time_s = np.arange(72_000) / 24_000
    tone, noise = np.sin(2 * np.pi * 220 * time_s), np.random.default_rng(0).standard_normal(len(time_s))
    on_and_off = np.sin(2 * np.pi * 3 * time_s) > 0
    sounds = {
        "silence": 0 * tone,
        "tone": tone,
        "beeps": tone * on_and_off,
        "noise": noise,
        "bursts of noise": noise * on_and_off,
    }
    assert not measure(Audio((0.2 * sounds[name]).astype(np.float32), 24_000)).is_speech


def test_the_same_prompt_and_seed_give_the_same_text_and_samples(voice: Voice) -> None:
    def ask(thinker_seed: int, speaker_seed: int) -> Answer:
        thinker = {"max_tokens": 24, "temperature": 0.8, "seed": thinker_seed}
        return voice.ask(params={"thinker": thinker, "speaker": {"seed": speaker_seed}})

    first, again, other_voice, other_words = ask(7, 7), ask(7, 7), ask(7, 8), ask(8, 7)
    assert first.text == again.text == other_voice.text != other_words.text
    assert len(first.deltas("speech")) == len(again.deltas("speech"))
    assert np.array_equal(first.speech.samples, again.speech.samples)
    assert not np.array_equal(first.speech.samples, other_voice.speech.samples)


@pytest.mark.case("B110", "B076")
def test_parameters_reach_their_stages(voice: Voice) -> None:
    """And lie over the file's: what is not given stays as it is there."""
    short = voice.ask(params={"thinker": {"max_tokens": 6}})
    assert short.finish("text").finish_reason is FinishReason.LENGTH
    assert short.finish("text").usage["completion_tokens"] == 6
    fast = voice.ask(params={"thinker": {"max_tokens": 6}, "speaker": {"speed": 2.0}})
    assert fast.text == short.text, "the file's temperature is 0"
    assert fast.speech.duration_s < 0.75 * short.speech.duration_s


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.case("B107")
@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"thinker": {"max_tokns": 3}}, "max_tokns"),
        ({"thinker": {"max_tokens": 0}}, "max_tokens"),
        ({"speaker": {"speed": 9.0}}, "speed"),
        ({"singer": {"speed": 1.0}}, "singer"),
    ],
)
def test_what_is_not_known_is_refused_before_anything_starts(voice: Voice, params: StageParams, says: str) -> None:
    before = voice.loop.run(voice.engine.statistics()).core.counters
    with pytest.raises(InvalidRequestError, match=says):
        voice.ask(params=params)
    assert voice.loop.run(voice.engine.statistics()).core.counters == before


@pytest.mark.rule("ORCH-INV-107")
def test_only_what_was_asked_for_is_made(voice: Voice) -> None:
    text = voice.ask(outputs="text")
    check_order(text, ["text"])
    assert list(text.stream.timeline) == ["thinker"]
    speech = voice.ask(outputs="speech")
    check_order(speech, ["speech"])
    assert list(speech.stream.timeline) == ["thinker", "speaker"]
    with pytest.raises(InvalidRequestError, match="video"):
        voice.ask(outputs="video")


def test_chat_messages_are_a_prompt_too(voice: Voice) -> None:
    question = {"role": "user", "content": QUESTION}
    plain, chat = voice.ask_all([QUESTION, [question]])
    assert chat.text == plain.text
    later = [question, {"role": "assistant", "content": plain.text}, {"role": "user", "content": "What is a cat?"}]
    assert "cat" in voice.ask(later).text.lower()


@pytest.mark.rule("ORCH-INV-205", "ORCH-INV-207", "ORCH-INV-209")
@pytest.mark.case("B015")
def test_an_abort_mid_answer_returns_what_there_is(voice: Voice) -> None:
    """The text so far, which continues what was streamed; the speech of the sentences spoken; and no error."""

    async def test() -> tuple[Answer, AbortReport]:
        stream = voice.engine.generate(QUESTION, params=ENDLESS)
        items = []
        async for item in stream:
            items.append(item)
            if item.output == "speech":
                break
        items += [await anext(stream) for _ in range(5)]
        asked_at = time.monotonic()
        report = await voice.engine.abort(stream.request_id, wait="stopped")
        assert time.monotonic() - asked_at < 5.0
        items += [item async for item in stream]
        await voice.wait_idle(limit_s=5.0)
        return Answer(items, stream), report

    answer, report = voice.loop.run(test())
    record = report[answer.stream.request_id]
    assert record.status is AbortStatus.ABORTED
    assert answer.stream.outcome is Outcome.ABORTED
    assert [item.sequence for item in answer.items] == list(range(len(answer.items)))
    text, speech = answer.finish("text"), answer.finish("speech")
    assert text.finish_reason is speech.finish_reason is FinishReason.ABORT
    assert text.sequence < speech.sequence
    assert (text.request_finished, speech.request_finished) == (False, True)
    assert isinstance(text.partial, Text)
    assert text.partial.text.startswith(answer.text)
    assert len(text.partial.token_ids) < 1000
    assert record.partials["thinker"] == text.partial
    whole = voice.ask(params={"thinker": {"max_tokens": len(text.partial.token_ids), "ignore_eos": True}})
    assert whole.text.startswith(text.partial.text)
    spoken = answer.deltas("speech")
    assert spoken
    for piece, same_piece in zip(spoken, whole.deltas("speech"), strict=False):
        assert isinstance(piece, Audio)
        assert isinstance(same_piece, Audio)
        assert np.array_equal(piece.samples, same_piece.samples), "not the speech of that text"
    assert measure(answer.speech).is_speech


@pytest.mark.rule("ORCH-INV-211")
def test_an_abort_of_what_is_over_or_was_never_there_changes_nothing(voice: Voice, answer: Answer) -> None:
    report = voice.loop.run(voice.engine.abort([answer.stream.request_id, "never there"]))
    assert [record.status for record in report.records] == [AbortStatus.ALREADY_ENDED, AbortStatus.UNKNOWN]


@pytest.mark.rule("ORCH-INV-212")
def test_leaving_the_stream_stops_the_engine(voice: Voice) -> None:
    """Both stages have confirmed within seconds; the answer would have taken more than a minute."""

    async def test() -> tuple[Statistics, Statistics]:
        before = await voice.wait_idle(limit_s=5.0)
        async with voice.engine.generate(QUESTION, params=ENDLESS) as stream:
            async for item in stream:
                if item.sequence == 3:
                    break
        return before, await voice.wait_idle(limit_s=5.0)

    before, after = voice.loop.run(test())
    assert after.counters.cancelled == before.counters.cancelled + 1
    assert all(stage.running == 0 for stage in after.stages.values())


@pytest.mark.rule("ORCH-INV-103", "ORCH-INV-101")
@pytest.mark.case("B008")
def test_sixty_four_at_once_each_get_their_own_answer(voice: Voice) -> None:
    prompts = [f"What is a {noun}?" for noun in NOUNS[:64]]
    assert len(set(prompts)) == 64
    answers = voice.ask_all(prompts)
    for answer in answers:
        check_order(answer)
        assert 1.0 < len(answer.text.split()) / answer.speech.duration_s < 5.0
    strangers = [answer.text for noun, answer in zip(NOUNS, answers, strict=True) if noun not in answer.text.lower()]
    assert len(strangers) <= 6, strangers
    for number in (0, 21, 42, 63):
        alone = voice.ask(prompts[number])
        assert alone.text == answers[number].text
        assert np.array_equal(alone.speech.samples, answers[number].speech.samples)
    figures = voice.loop.run(voice.engine.statistics())
    assert (figures.core.is_idle, figures.streams) == (True, 0)


@pytest.mark.case("B002")
def test_a_blocking_batch_comes_back_in_input_order(voice: Voice) -> None:
    """One bad item fails alone."""
    prompts: list[object] = [f"What is a {noun}?" for noun in NOUNS[:8]]
    prompts[4] = "word " * 4000
    results = voice.blocking.generate(prompts, params=SHORT, progress=False)
    assert [isinstance(result, OmniResult) for result in results] == [True] * 8
    for number, (noun, result) in enumerate(zip(NOUNS, results, strict=False)):
        if number == 4:
            assert isinstance(result.error, InvalidRequestError)
            assert (result.error.stage, result.outcome) == ("thinker", Outcome.FAILED)
            continue
        assert result.error is None
        text, speech = result.outputs["text"], result.outputs["speech"]
        assert isinstance(text, Text)
        assert noun in text.text.lower()
        assert isinstance(speech, Audio)
        assert measure(speech).rms > 0.005


def sentences(text: str) -> list[str]:
    """The sentences of a plain answer, by the simplest rule."""
    return [piece for piece in re.split(r"(?<=[.!?])\s+", text) if len(piece) > 3]
