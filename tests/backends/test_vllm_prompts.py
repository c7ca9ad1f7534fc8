"""From processed inputs to token ids, with a tokenizer that spells."""

from __future__ import annotations

import pytest

from podium.backends.vllm.options import VllmOptions
from podium.backends.vllm.prompts import PromptRenderer
from podium.errors import InvalidRequestError
from podium.payloads import Text
from podium.prompts import Continuation, TokenPrompt


class SpellingTokenizer:
    """One token per character; a chat is `role:content;` for each message, and `>` for the answer to come."""

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def apply_chat_template(
        self,
        conversation: list[dict[str, object]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
    ) -> list[int]:
        assert (add_generation_prompt, tokenize, return_dict) == (True, True, False)
        if any(message["role"] == "jester" for message in conversation):
            raise RuntimeError("jesters are not allowed")
        return self.encode("".join(f"{message['role']}:{message['content']};" for message in conversation) + ">")


def render(*inputs: object, max_model_len: int = 100, **options: object) -> str:
    made = VllmOptions(model="m", **options)  # type: ignore[arg-type]
    renderer = PromptRenderer(made, SpellingTokenizer(), max_model_len=max_model_len, vocabulary_size=128)
    return "".join(map(chr, renderer.render(inputs)))


def test_texts_are_joined_and_go_as_they_are() -> None:
    assert render("Hello") == "Hello"
    assert render(Text("Hel"), "lo ", Text("you")) == "Hello you"


def test_with_chat_a_text_is_a_message_of_the_user() -> None:
    assert render("Hello", chat=True) == "user:Hello;>"
    assert render(Text("Hello"), chat=True, system_prompt="Be brief.") == "system:Be brief.;user:Hello;>"


def test_messages_are_a_chat_in_any_case() -> None:
    user = {"role": "user", "content": "Hello"}
    assert render([user]) == "user:Hello;>"
    assert render((user,), chat=True, system_prompt="S") == "system:S;user:Hello;>"
    own = {"role": "system", "content": "Mine"}
    assert render((own, user), chat=True, system_prompt="S") == "system:Mine;user:Hello;>"
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert render(({"role": "user", "content": parts},)) == "user:Hello;>"


def test_token_ids_go_as_they_are() -> None:
    assert render((72, 105)) == "Hi"
    assert render(TokenPrompt((72, 105)), chat=True) == "Hi"


@pytest.mark.rule("ORCH-INV-239")
def test_the_beginning_of_an_answer_stands_behind_the_whole_prompt() -> None:
    """Behind the template's own words, so that the model goes on as if it had never stopped."""
    beginning = tuple(map(ord, "Good"))
    assert render(Continuation("Hello", beginning), chat=True, system_prompt="S") == "system:S;user:Hello;>Good"
    assert render(Continuation(({"role": "user", "content": "Hi"},), beginning)) == "user:Hi;>Good"
    assert render(Continuation(TokenPrompt((72, 105)), beginning)) == "HiGood"
    assert render(Continuation("Hello", ())) == "Hello"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (("",), "the prompt is empty; give some text"),
        ((Text(" \n"),), "the prompt is empty"),
        ((), "the prompt is empty"),
        (("x" * 10,), "the prompt has 10 tokens; this model takes at most 9 (its length is 10,"),
        (("x" * 2000,), "the prompt has 2000 characters; this model takes at most 9 tokens"),
        (([{"role": "user", "content": "x" * 2000}],), "2000 characters"),
        (((1, 128),), "token id 128 is not in the model's vocabulary; give ids from 0 to 127"),
        ((3.5,), "the prompt is a float; give a text, chat messages (role and content), or token ids"),
        ((True,), "the prompt is a bool"),
        (([],), "the prompt is a list"),
        ((TokenPrompt(()),), "the prompt is a tuple"),
        ((Continuation("abcdef", (1, 2, 3, 4)),), "the prompt has 10 tokens; this model takes at most 9"),
        ((Continuation("a", (1, 128)),), "token id 128 is not in the model's vocabulary"),
        (("a", Continuation("a", (1,))), "of several kinds (Continuation, str)"),
        (("a", (1,)), "of several kinds (str, tuple)"),
        (([{"role": "jester", "content": "x"}],), "does not take these messages: jesters are not allowed;"),
        (
            ([{"role": "user", "content": [{"type": "image_url"}]}],),
            "a part of type 'image_url'; this stage reads text",
        ),
        (([{"role": "user", "content": ["x"]}],), "a part of type None"),
    ],
)
@pytest.mark.rule("ORCH-INV-004")
def test_what_cannot_be_a_prompt_is_the_clients_fault(inputs: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(*inputs, max_model_len=10)
    assert message in str(caught.value)
    assert caught.value.status == 400
