"""What a request's prompt may be: a text, chat messages, token ids, or one of these with the beginning of its answer.

A message is a mapping with `role` and `content`; `content` is a text, or a list of parts of which those of type `text`
count here. Nothing is rendered: chat templates belong to the engine that has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from podium.errors import InvalidRequestError
from podium.payloads import Text


class TokenPrompt(msgspec.Struct, frozen=True):
    """A prompt as token ids of the model that reads it: nothing is added to them."""

    token_ids: tuple[int, ...]


class Continuation(msgspec.Struct, frozen=True):
    """A prompt and the beginning of its answer, as the token ids that were generated: the answer goes on from there.

    What is generated is the rest; `max_tokens` counts the rest only. With greedy sampling it is what the answer would
    have been without the interruption, unless penalties count what was generated before: the prefix is prompt to them.
    """

    prompt: object
    token_ids: tuple[int, ...]


_REMEDY = "give a text, or a list of messages such as {'role': 'user', 'content': 'Hello'}"


def check_prompt(prompt: object) -> None:
    """Raise InvalidRequestError unless `prompt` is a text (str or Text), chat messages, TokenPrompt or Continuation."""
    if isinstance(prompt, TokenPrompt):
        _check_token_ids(prompt.token_ids)
        return
    if isinstance(prompt, Continuation):
        if isinstance(prompt.prompt, Continuation):
            raise InvalidRequestError.because("prompt: continues a Continuation; join their token ids in one")
        check_prompt(prompt.prompt)
        _check_token_ids(prompt.token_ids)
        return
    if isinstance(prompt, str | Text):
        check_unicode(prompt if isinstance(prompt, str) else prompt.text, "prompt")
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InvalidRequestError.because(f"prompt: is of type {type(prompt).__name__}; {_REMEDY}")
    if not prompt:
        raise InvalidRequestError.because(f"prompt: the list of messages is empty; {_REMEDY}")
    for index, message in enumerate(prompt):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InvalidRequestError.because(f"prompt[{index}]: is not a message with role and content; {_REMEDY}")
        check_unicode(_content_text(message["content"], index), f"prompt[{index}].content")


def _check_token_ids(ids: object) -> None:
    if not isinstance(ids, list | tuple):
        raise InvalidRequestError.because(f"prompt.token_ids: is of type {type(ids).__name__}; give a tuple of numbers")
    for index, one in enumerate(ids):
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise InvalidRequestError.because(f"prompt.token_ids[{index}]: {one!r} is no token id; give whole numbers")


def check_unicode(text: str, where: str) -> None:
    """Raise InvalidRequestError for half a surrogate pair: bytes that were no UTF-8, which nobody can write again."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"has a lone surrogate at character {error.start}, which is not valid Unicode"
        raise InvalidRequestError.because(f"{where}: {found}; decode it as what it is, usually UTF-8") from error


def last_user_text(prompt: object) -> str:
    """The text of a plain prompt, or of the last message of the user. Raises InvalidRequestError when there is none."""
    if isinstance(prompt, Continuation):
        return last_user_text(prompt.prompt)
    if isinstance(prompt, TokenPrompt):
        raise InvalidRequestError.because(f"prompt: is token ids, and its text is needed here; {_REMEDY}")
    if isinstance(prompt, Text):
        return prompt.text
    if isinstance(prompt, str):
        return prompt
    check_prompt(prompt)
    assert isinstance(prompt, Sequence)
    for index, message in reversed(list(enumerate(prompt))):
        if message["role"] == "user":
            return _content_text(message["content"], index)
    raise InvalidRequestError.because("prompt: no message has the role 'user'; add one")


def _content_text(content: object, index: int) -> str:
    if isinstance(content, str):
        return content
    where = f"prompt[{index}].content"
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        found = type(content).__name__
        raise InvalidRequestError.because(f"{where}: is of type {found}; give a text or a list of parts")
    texts: list[str] = []
    for number, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            remedy = "give {'type': 'text', 'text': 'Hello'}"
            raise InvalidRequestError.because(f"{where}[{number}]: is not a part with a type; {remedy}")
        if part["type"] == "text":
            if not isinstance(part.get("text"), str):
                raise InvalidRequestError.because(f"{where}[{number}].text: is not a text; give a string")
            texts.append(part["text"])
    return "".join(texts)
