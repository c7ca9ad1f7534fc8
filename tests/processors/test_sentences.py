"""Sentences, however the text arrives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.graph import Modality
from podium.core.identity import MAIN, PROMPT, JobKey
from podium.errors import ConfigurationError, InvalidRequestError
from podium.payloads import Text
from podium.processors.plain_text import make_plain
from podium.processors.sentence_ends import Lengths
from podium.processors.sentences import SentenceCutter, SentencesOptions, SentencesProcessor

JOB = JobKey("r1", "speaker", MAIN, 0)


def cut(*chunks: str, min_letters: int = 4, max_characters: int = 240) -> list[str]:
    cutter = SentenceCutter(Lengths(min_letters, max_characters))
    return [sentence for chunk in chunks for sentence in cutter.feed(chunk)] + cutter.end()


def speak(*chunks: object, **options: object) -> list[str]:
    """What the processor gives for one streamed source."""
    processor = SentencesProcessor(SentencesProcessor.parse_options(options))
    stream = processor.open(JOB, None, {"thinker": Modality.TEXT})
    given = [item for chunk in chunks for item in stream.feed("thinker", [chunk])]
    items = [*given, *stream.end("thinker")]
    assert all(isinstance(item, Text) for item in items)
    return [item.text for item in items if isinstance(item, Text)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Hello there!", "How are you?", "Fine."],
        ["Dr. Smith met Mrs. Jones vs. Prof. X.", "They talked."],
        ["It is small, e.g. a mouse, i.e. tiny.", "Right?"],
        ["The value is 3.14 or 2.5e3, not 1,000.50.", "Good."],
        ["Wait... what happened?", "Nothing… really."],
        ["He left...", "Then she came."],
        ['"Really?" he asked.', '"Never!"', "She laughed."],
        ["(This is an aside.)", "Back to the topic."],
        ["What?!", "No way!!!", "It is true."],
        ["He lives in the U.S. Army base.", "It is big."],
        ["He lives in the U.S.", "The house is big."],
        ["J. R. R. Tolkien wrote it.", "Plan B.", "It works."],
        ["Apples, pears, etc. are fruit.", "We sell books, pens, etc.", "They are cheap."],
        ["It starts at 5 p.m. on Monday.", "It ends at 9 p.m.", "The next one is free."],
        ["See Fig. 3 and No. 5 in vol. 2.", "The answer is no.", "Then why?"],
        ["Visit www.example.com today.", "Version 2.0.1 is out."],
        ["The year was 2020.", "Then it began."],
        ["hello you.", "how are you?", "all is fine."],
        ["Acme Inc. makes it.", "I work for Acme Inc.", "They pay well."],
        ["It costs approx. five dollars.", "That is all."],
        ["\u4f60\u597d\u5417\u5417\u3002", "\u518d\u89c1\u518d\u89c1\uff01"],
    ],
)
def test_english_sentences(sentences: list[str]) -> None:
    text = " ".join(sentences)
    assert cut(text) == sentences
    assert cut(*text) == sentences, "letter by letter"


def test_lines_and_lists() -> None:
    text = "Steps:\n\n1. Mix the flour.\n2. Bake it\n- with care\n* slowly, and\nfor an hour\n\nEnjoy"
    assert cut(*text) == [
        "Steps:",
        "1. Mix the flour.",
        "2. Bake it",
        "- with care",
        "* slowly, and\nfor an hour",
        "Enjoy",
    ]


def test_a_paragraph_ends_what_an_abbreviation_would_not() -> None:
    assert cut("We sell pens, etc.\n\nand books from 9 a.m.\n\n...") == [
        "We sell pens, etc.",
        "and books from 9 a.m.",
        "...",
    ]
    assert cut("We met Dr.\nWho.") == ["We met Dr.\nWho."], "a line alone is not enough"


def test_a_sentence_is_given_as_soon_as_it_is_certain() -> None:
    cutter = SentenceCutter(Lengths(4, 240))
    assert cutter.feed("One is here.") == [], "3.14 or a quotation mark may follow"
    assert cutter.feed(" ") == []
    assert cutter.feed("T") == ["One is here."]
    assert cutter.feed("wo is in the U.S. A") == [], "a word may begin here that decides"
    assert cutter.feed("rmy now. B") == ["Two is in the U.S. Army now."]
    assert cutter.end() == ["B"]
    assert cutter.end() == []


def test_short_pieces_go_with_the_next() -> None:
    assert cut("No. Yes. It is so.") == ["No. Yes.", "It is so."]
    assert cut("No. Yes. It is so.", min_letters=0) == ["No.", "Yes.", "It is so."]
    assert cut("1. 2. 3.") == ["1. 2. 3."]
    assert cut("Fine. 1.") == ["Fine.", "1."]


def test_a_run_on_is_cut_behind_a_comma_else_at_a_space_else_anywhere() -> None:
    words = "word " * 12
    assert cut(f"first words, then {words}", max_characters=30)[0] == "first words,"
    assert cut(words, max_characters=31)[0] == "word word word word word word"
    assert cut("x" * 50, max_characters=20) == ["x" * 20, "x" * 20, "x" * 10]
    assert cut("x" * 19 + " yy", max_characters=20) == ["x" * 19, "yy"]


def test_a_run_on_is_cut_while_it_is_still_running() -> None:
    cutter = SentenceCutter(Lengths(4, 40))
    assert cutter.feed("so it goes on and on and on and on and o") == []
    assert cutter.feed("n") == ["so it goes on and on and on and on and"]


def test_white_space_gives_nothing() -> None:
    assert cut("", " ", "\n\n", "\t") == []
    assert speak(Text(" "), Text("\n")) == []


CHARACTERS = st.sampled_from("aabcI Tx  \n\n..!?…,;:\"'()*_-123、。é ")
WORDS = """
Hello the The U.S. e.g. etc. Dr. no. 5 3.14 ... ?! "Oh!" 1. - **bold** end. (so.) A a.m. \u3002 (((((((((((((
supercalifragilisticexpialidocious
"""
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=120),
    st.lists(st.sampled_from([*WORDS.split(), "\n", "\n\n"]), max_size=30).map(" ".join),
)
LENGTHS = st.builds(Lengths, st.integers(0, 8), st.integers(20, 60))


def chunked(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@pytest.mark.rule("ORCH-INV-104")
@pytest.mark.case("B025")
@given(TEXTS, st.lists(st.integers(0, 1000), max_size=12), LENGTHS)
def test_the_chunks_make_no_difference(text: str, cuts: list[int], lengths: Lengths) -> None:
    whole = cut(text, min_letters=lengths.min_letters, max_characters=lengths.max_characters)
    pieces = cut(*chunked(text, cuts), min_letters=lengths.min_letters, max_characters=lengths.max_characters)
    letters = cut(*text, min_letters=lengths.min_letters, max_characters=lengths.max_characters)
    assert whole == pieces == letters


@given(TEXTS, LENGTHS)
def test_nothing_visible_is_lost_or_repeated(text: str, lengths: Lengths) -> None:
    sentences = cut(*text, min_letters=lengths.min_letters, max_characters=lengths.max_characters)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    assert all(len(sentence) <= lengths.max_characters for sentence in sentences)


@given(TEXTS, st.lists(st.integers(0, 1000), max_size=12), st.booleans())
def test_what_is_given_can_be_spoken(text: str, cuts: list[int], plain: bool) -> None:
    chunks = [Text(chunk) for chunk in chunked(text, cuts)]
    spoken = speak(*chunks, plain=plain)
    assert spoken == speak(Text(text), plain=plain)
    if plain:
        assert all(any(map(str.isalnum, sentence)) for sentence in spoken)
    else:
        assert "".join("".join(spoken).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("markdown", "plain"),
    [
        ("**Bold** and *italic* and __strong__ and _soft_.", "Bold and italic and strong and soft."),
        ("## A heading", "A heading"),
        ("- an item", "an item"),
        ("> a quotation", "a quotation"),
        ("Use `print(x)` or ```code```.", "Use print(x) or code."),
        ("See [the page](https://example.com/a_b) now.", "See the page now."),
        ("![A cat](cat.png) sleeps", "A cat sleeps"),
        ("2 * 3 is 6, and snake_case stays.", "2 * 3 is 6, and snake_case stays."),
        ("~~old~~ new", "old new"),
        ("two\nlines", "two lines"),
        ("***", ""),
        ("---", ""),
        ("…!", ""),
    ],
)
def test_markdown_is_not_spoken(markdown: str, plain: str) -> None:
    assert make_plain(markdown) == plain


def test_plain_is_an_option() -> None:
    assert speak(Text("**Bold** words. *** ")) == ["Bold words."]
    assert speak(Text("**Bold** words. *** "), plain=False) == ["**Bold** words.", "***"]


def test_a_prompt_can_be_cut() -> None:
    processor = SentencesProcessor(SentencesOptions())
    stream = processor.open(JOB, "One here. Two here.", {})
    assert [*stream.feed(PROMPT, ["One here. Two here."]), *stream.end(PROMPT)] == [
        Text("One here."),
        Text("Two here."),
    ]
    with pytest.raises(InvalidRequestError, match="prompt: is of type dict; this stage takes a text only"):
        stream.feed(PROMPT, [{}])


def test_sources_do_not_continue_each_other() -> None:
    stream = SentencesProcessor(SentencesOptions()).open(JOB, None, {"a": Modality.TEXT, "b": Modality.TEXT})
    assert list(stream.feed("a", ["Hello from a."])) == []
    assert list(stream.feed("b", ["And from two. Again."])) == [Text("And from two.")]
    assert list(stream.end("a")) == [Text("Hello from a.")]
    assert list(stream.end("b")) == [Text("Again.")]


@pytest.mark.rule("ORCH-INV-004")
def test_another_kind_of_payload_is_the_services_fault() -> None:
    with pytest.raises(TypeError, match="source 'thinker' gave a int, and this stage's input processor takes text"):
        speak(5)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigurationError) as caught:
        SentencesProcessor.parse_options({"plane": True, "min_letters": -1, "max_characters": 5})
    assert [str(fault) for fault in caught.value.faults] == [
        "processor_options.plane: is unknown; did you mean 'plain'?",
        "processor_options.min_letters: expected `int` >= 0; correct the value",
        "processor_options.max_characters: expected `int` >= 20; correct the value",
    ]


def test_it_can_be_looked_at() -> None:
    cutter = SentenceCutter(Lengths(4, 240))
    cutter.feed("Half a sen")
    assert repr(cutter) == "<SentenceCutter 'Half a sen'>"
