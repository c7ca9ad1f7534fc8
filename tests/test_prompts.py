"""What a prompt may be."""

from __future__ import annotations

import pytest

from podium.errors import Category, InvalidRequestError
from podium.payloads import Text
from podium.prompts import Continuation, TokenPrompt, check_prompt, last_user_text

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "answer"},
    {"role": "user", "content": [{"type": "text", "text": "sec"}, {"type": "image"}, {"type": "text", "text": "ond"}]},
]


@pytest.mark.parametrize(
    ("prompt", "text"), [("hello", "hello"), (Text("hello"), "hello"), ("", ""), (CHAT, "second"), (CHAT[:3], "first")]
)
def test_prompts_are_read(prompt: object, text: str) -> None:
    check_prompt(prompt)
    assert last_user_text(prompt) == text


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "prompt: is of type NoneType; give a text, or a list of messages"),
        (b"hello", "prompt: is of type bytes;"),
        (5, "prompt: is of type int;"),
        ([], "prompt: the list of messages is empty;"),
        (["hello"], "prompt[0]: is not a message with role and content;"),
        ([{"role": "user"}], "prompt[0]: is not a message with role and content;"),
        ([{"role": 1, "content": "a"}], "prompt[0]: is not a message with role and content;"),
        ([CHAT[0], {"role": "user", "content": None}], "prompt[1].content: is of type NoneType;"),
        ([{"role": "user", "content": b"a"}], "prompt[0].content: is of type bytes;"),
        ([{"role": "user", "content": ["a"]}], "prompt[0].content[0]: is not a part with a type;"),
        ([{"role": "user", "content": [{"type": "text"}]}], "prompt[0].content[0].text: is not a text;"),
    ],
)
def test_anything_else_is_the_clients_fault(prompt: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt(prompt)
    assert caught.value.record.message.startswith(message)
    assert caught.value.record.category is Category.CLIENT
    with pytest.raises(InvalidRequestError):
        last_user_text(prompt)


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        ("\udcff", "prompt"),
        (Text("\udcff"), "prompt"),
        ([CHAT[0], {"role": "user", "content": "\udcff"}], "prompt[1].content"),
    ],
)
def test_half_a_surrogate_pair_is_the_clients_fault(prompt: object, where: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt(prompt)
    assert caught.value.record.message == (
        f"{where}: has a lone surrogate at character 0, which is not valid Unicode; "
        "decode it as what it is, usually UTF-8"
    )


def test_a_chat_without_a_user() -> None:
    with pytest.raises(InvalidRequestError, match="no message has the role 'user'; add one"):
        last_user_text(CHAT[:1])


@pytest.mark.rule("ORCH-INV-239")
def test_a_prompt_may_be_token_ids_or_have_the_beginning_of_its_answer() -> None:
    for prompt in (TokenPrompt((1, 2)), Continuation(CHAT, (3,)), Continuation(TokenPrompt((1,)), ())):
        check_prompt(prompt)
    assert last_user_text(Continuation(CHAT, (3,))) == "second"
    with pytest.raises(InvalidRequestError, match="prompt: is token ids, and its text is needed here"):
        last_user_text(TokenPrompt((1,)))


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (TokenPrompt((1, -1)), "prompt.token_ids[1]: -1 is no token id;"),
        (TokenPrompt((True,)), "prompt.token_ids[0]: True is no token id;"),
        (TokenPrompt("12"), "prompt.token_ids: is of type str;"),  # type: ignore[arg-type]
        (Continuation("hello", ("a",)), "prompt.token_ids[0]: 'a' is no token id;"),  # type: ignore[arg-type]
        (Continuation(None, (1,)), "prompt: is of type NoneType;"),
        (Continuation(Continuation("a", (1,)), (2,)), "prompt: continues a Continuation;"),
    ],
)
def test_token_ids_are_whole_numbers(prompt: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt(prompt)
    assert message in str(caught.value)
