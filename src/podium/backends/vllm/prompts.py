"""From what a stage's input processor made to the token ids that vLLM starts from.

Plain text, chat messages and token ids are taken, and each of them with the beginning of its answer. What cannot be a
prompt is the client's fault, and says what could.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from podium.backends.vllm.options import VllmOptions
from podium.errors import InvalidRequestError
from podium.payloads import Text
from podium.prompts import Continuation, TokenPrompt

Message = Mapping[str, object]


class Tokenizer(Protocol):
    """What is needed of a Hugging Face tokenizer."""

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`."""
        ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, object]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
    ) -> list[int]:
        """The token ids of a conversation."""
        ...


class PromptRenderer:
    """Makes token ids of the inputs of one stage, and holds them to the model's limits."""

    def __init__(self, options: VllmOptions, tokenizer: Tokenizer, *, max_model_len: int, vocabulary_size: int) -> None:
        """`max_model_len` is in tokens, prompt and answer together; ids are below `vocabulary_size`."""
        self._options = options
        self._tokenizer = tokenizer
        self._max_prompt_tokens = max_model_len - 1
        self._vocabulary_size = vocabulary_size

    def render(self, inputs: Sequence[object]) -> list[int]:
        """The token ids of a prompt; raises InvalidRequestError when it is none, or too long."""
        ids = self._tokenize(inputs)
        if not ids:
            raise InvalidRequestError.because("the prompt is empty; give some text")
        if len(ids) > self._max_prompt_tokens:
            raise InvalidRequestError.because(
                f"the prompt has {len(ids)} tokens; this model takes at most {self._max_prompt_tokens}"
                f" (its length is {self._max_prompt_tokens + 1}, and an answer needs at least one): shorten it",
            )
        return ids

    def _tokenize(self, inputs: Sequence[object]) -> list[int]:
        if len(inputs) == 1 and isinstance(inputs[0], Continuation):
            beginning = self._check_ids(list(inputs[0].token_ids))
            return self._tokenize([inputs[0].prompt]) + beginning
        texts = [_text_of(item) for item in inputs]
        if all(text is not None for text in texts):
            return self._tokenize_text("".join(text for text in texts if text is not None))
        if len(inputs) > 1:
            kinds = ", ".join(sorted({type(item).__name__ for item in inputs}))
            raise InvalidRequestError.because(
                f"the prompt has parts that are of several kinds ({kinds}); give one of them"
            )
        value = inputs[0].token_ids if isinstance(inputs[0], TokenPrompt) else inputs[0]
        if isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
            return self._tokenize_chat([dict(message) for message in value])
        if isinstance(value, Sequence) and value and all(_is_token_id(item) for item in value):
            return self._check_ids(list(value))
        raise InvalidRequestError.because(
            f"the prompt is a {type(value).__name__}; give a text, chat messages (role and content), or token ids",
        )

    def _tokenize_text(self, text: str) -> list[int]:
        if not text.strip():
            raise InvalidRequestError.because("the prompt is empty; give some text")
        self._check_characters(text)
        if self._options.chat:
            return self._tokenize_chat([{"role": "user", "content": text}])
        return self._tokenizer.encode(text)

    def _check_characters(self, text: str) -> None:
        """Refuse in no time what would take the tokenizer minutes to count."""
        limit = self._max_prompt_tokens * _MAX_CHARACTERS_PER_TOKEN
        if len(text) > limit:
            raise InvalidRequestError.because(
                f"the prompt has {len(text)} characters; this model takes at most {self._max_prompt_tokens} tokens,"
                " which is far less: shorten it",
            )

    def _tokenize_chat(self, messages: list[dict[str, object]]) -> list[int]:
        system_prompt = self._options.system_prompt
        if system_prompt is not None and all(message.get("role") != "system" for message in messages):
            messages = [{"role": "system", "content": system_prompt}, *messages]
        messages = [{**message, "content": _text_content(message.get("content"))} for message in messages]
        self._check_characters("".join(str(message["content"]) for message in messages))
        try:
            return list(
                self._tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=False
                ),
            )
        except Exception as error:  # templates are programs of the model's makers, and refuse messages as they like
            reason = str(error) or type(error).__name__
            raise InvalidRequestError.because(
                f"the model's chat template does not take these messages: {reason}; correct their roles or contents",
            ) from error

    def _check_ids(self, ids: list[int]) -> list[int]:
        wrong = [token for token in ids if not 0 <= token < self._vocabulary_size]
        if wrong:
            raise InvalidRequestError.because(
                f"token id {wrong[0]} is not in the model's vocabulary; give ids from 0 to {self._vocabulary_size - 1}",
            )
        return ids


_MAX_CHARACTERS_PER_TOKEN = 128


def _text_of(item: object) -> str | None:
    if isinstance(item, Text):
        return item.text
    return item if isinstance(item, str) else None


def _text_content(content: object) -> str:
    """The text of a message's content: a text, or a list of parts of type `text`."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, Sequence) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise InvalidRequestError.because(f"a message has a part of type {kind!r}; this stage reads text only")
        texts.append(str(part.get("text", "")))
    return "".join(texts)


def _is_token_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
