"""Where the first sentence of an English text ends, as soon as that can be told from what is there so far.

The answer for a beginning of a text never differs from the answer for all of it: what is not certain yet is None. So
the text may arrive in any pieces. White space must be narrowed: one space, one line break, or two for a paragraph.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CLOSERS = "\"'”’»)\\]}*_`"
_WIDE = r"\u3002\uff01\uff1f"  # full stop, exclamation and question mark of scripts that put no space behind them
_END = re.compile(
    rf"(?P<marks>[.!?…][.!?…{_CLOSERS}]*)(?=\s|\Z)"  # the end of a sentence, of an abbreviation, of a list's number
    rf"|(?P<wide>[{_WIDE}][{_WIDE}\u300d\u300f\uff09{_CLOSERS}]*)"
    r"|(?P<line>\n\n?)"
)
_CLAUSE_END = re.compile(rf"[,;:—–][{_CLOSERS}]*(?=\s)")
_OPENERS = "\"'“‘(\\[*_`"  # noqa: RUF001 - quotation marks as they are printed
_LAST_WORD = re.compile(rf"[^\s{_OPENERS}]*\Z")
_NEXT_WORD = re.compile(rf"\s*[{_OPENERS}]*(\w*)")
_DOTTED = re.compile(r"[a-z]{1,3}(\.[a-z]{1,2})+")
_LIST_MARKER = re.compile(r"\d{1,3}|[a-zA-Z]|[ivx]{1,5}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    """
    mr mrs ms mx dr prof st mt ft rev hon gov sen rep gen col lt sgt capt cmdr messrs mme mlle vs cf viz e.g i.e eg
    ie approx ca incl excl esp aka
    """
)
"""Abbreviations that something always follows."""

_BEFORE_NUMBERS = _words(
    """
    no nos nr fig figs vol vols p pp ch chap sec sect eq art para jan feb apr aug sept sep oct nov dec
    """
)
"""Abbreviations when a number follows; plain words, or the end of a sentence, otherwise."""

_SOMETIMES_LAST = _words(
    """
    etc inc ltd co corp bros jr sr al est dept univ assn ave blvd rd max min avg misc orig temp ed eds trans
    """
)
"""Abbreviations that may also be the last word: what follows decides."""

_STARTERS = _words(
    """
    The This That These Those There Here It Its He His She Her We Our They Their You Your I My A An In On At If But
    And Or So Then Thus When While Where What Who Why How As For From With After Before By To Not No Yes However
    Also Because Although Though Once Now Some Many Most All Each Every One Let
    """
)
"""Words that hardly follow an abbreviation with a capital letter, unless a new sentence starts."""

_LONGEST_LOOK_AHEAD = 24


class Lengths(NamedTuple):
    """How short, in letters and digits, and how long, in characters, a sentence may be."""

    min_letters: int
    max_characters: int


def find_end(text: str, lengths: Lengths, *, is_whole: bool) -> int | None:
    """The index behind the first sentence of `text`; None while it depends on what follows.

    With `is_whole` nothing follows. A `text` that is too long is cut behind a comma, else at a space, else anywhere.
    """
    for found in _END.finditer(text):
        end = found.start() if found["line"] else found.end()
        if end > lengths.max_characters:
            break
        verdict = _is_end(text, found, is_whole=is_whole)
        if verdict is None:
            return None
        if verdict and count_letters(text[:end]) >= lengths.min_letters:
            return end
    if len(text) > lengths.max_characters:
        return _find_clause_end(text, lengths)
    return len(text) if is_whole else None


def count_letters(text: str) -> int:
    """How many letters and digits there are."""
    return sum(map(str.isalnum, text))


def _find_clause_end(text: str, lengths: Lengths) -> int:
    window = text[: lengths.max_characters + 1]
    ends = [found.end() for found in _CLAUSE_END.finditer(window)]
    if ends and count_letters(window[: ends[-1]]) >= max(1, lengths.min_letters):
        return ends[-1]
    gap = max(window.rfind(" "), window.rfind("\n"))
    return gap if gap > 0 else lengths.max_characters


def _is_end(text: str, found: re.Match[str], *, is_whole: bool) -> bool | None:
    if found.end() == len(text):
        return True if is_whole else None
    if found["wide"]:
        return True
    following = text[found.end() :].lstrip()[:1]
    if found["line"]:
        is_after_dot = text[: found.start()].endswith((".", "…"))  # then the dot has decided already
        return found["line"] == "\n\n" or not (following.islower() or is_after_dot)
    if text.startswith("\n\n", found.end()):
        return True
    marks = found["marks"]
    is_quoted = marks[-1] not in ".!?…"
    if is_quoted and following.islower():
        return False  # "Really?" he said
    if "!" in marks or "?" in marks:
        return True
    if "…" in marks or ".." in marks:
        return not following.islower()
    return _is_end_at_dot(text, found, following, is_whole=is_whole)


def _is_end_at_dot(text: str, found: re.Match[str], following: str, *, is_whole: bool) -> bool | None:
    before = text[: found.start()]
    last = _LAST_WORD.search(before)
    word = last[0] if last else ""
    is_first = before[: len(before) - len(word)].rstrip(" ").endswith("\n") or word == before
    if is_first and _LIST_MARKER.fullmatch(word):
        return False
    lower = word.lower()
    if lower in _NEVER_LAST:
        return False
    if lower in _BEFORE_NUMBERS:
        return not following.isdigit()
    is_initial = len(word) == 1 and word.isalpha()
    if is_initial or lower in _SOMETIMES_LAST or _DOTTED.fullmatch(lower):
        return _starts_sentence(text, found.end(), is_whole=is_whole)
    return True


def _starts_sentence(text: str, start: int, *, is_whole: bool) -> bool | None:
    following = _NEXT_WORD.match(text, start)
    assert following is not None, "it matches the empty text"
    if following.end() - start >= _LONGEST_LOOK_AHEAD:
        return False
    if following.end() == len(text) and not is_whole:
        return None
    return following[1] in _STARTERS
