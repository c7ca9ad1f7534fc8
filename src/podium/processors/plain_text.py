"""Markdown as a person would read it out: without marks for emphasis, headings, lists, links and code.

It works on one sentence at a time; what the marks mean is not kept.
"""

from __future__ import annotations

import re

_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\s]*\)")
_LINE_MARK = re.compile(r"^[ \t]*(?:#{1,6}|[-*+•]|>)[ \t]+", re.MULTILINE)
_DOUBLE_MARK = re.compile(r"\*\*|__|~~|`+")
_SINGLE_MARK = re.compile(r"(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")


def make_plain(text: str) -> str:
    """`text` without Markdown, stripped, with single spaces; empty when there is no letter or digit to be spoken."""
    text = _LINK.sub(r"\1", text)
    text = _LINE_MARK.sub("", text)
    text = _DOUBLE_MARK.sub("", text)
    text = " ".join(_SINGLE_MARK.sub("", text).split())
    return text if any(map(str.isalnum, text)) else ""
