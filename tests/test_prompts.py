"""Prompts are texts, lists, arrays, tensors or encodings; others are refused."""

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

import starter
from asking import part, user
from foreword import LLM, InvalidRequest
from foreword.chats import conversation
from foreword.chats.prompts import listed, token_ids
from running import tokenizer

pytestmark = pytest.mark.usefixtures("unchecked")
MAKERS = [
    np.array,
    torch.tensor,
    lambda ids: np.array(ids, np.int32),
    lambda ids: torch.tensor(ids, dtype=torch.int32),
]


def ids(prompts: object) -> list[object]:
    return [
        prompt if isinstance(prompt, str) else token_ids(prompt)
        for prompt in listed(prompts)
    ]


@pytest.mark.parametrize("make", MAKERS)
def test_arrays_and_tensors_are_prompts(make):
    assert ids(make([5, 6, 7])) == [[5, 6, 7]]
    assert ids(make([[5, 6], [7, 8]])) == [[5, 6], [7, 8]]
    assert ids([make([5, 6]), "a text", [7]]) == [[5, 6], "a text", [7]]
    assert {type(token) for token in ids(make([5, 6]))[0]} == {int}


@pytest.mark.parametrize("kind", ["pt", "np", None])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_an_encoding_is_removed(kind, side):
    texts, known = ["The capital of France is", "Once"], tokenizer()
    known.padding_side, known.pad_token = side, known.pad_token or known.eos_token
    alone = [known(text)["input_ids"] for text in texts]
    assert len(alone[0]) > len(alone[1])
    assert ids(known(texts, padding=True, return_tensors=kind)) == alone
    assert ids(known(texts[0], return_tensors=kind)) == [alone[0]]
    assert ids(dict(known(texts, padding=True, return_tensors=kind))) == alone


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([1.0, 2.0]),
        torch.tensor([1.5]),
        np.array([True, False]),
        torch.tensor([True]),
        np.array(5),
        torch.tensor(5),
        np.zeros((1, 1, 1), int),
        {},
        {"input_ids": None},
        BatchEncoding({"attention_mask": [1]}),
        [[True]],
        [[1.0]],
        {"input_ids": [1, 2], "attention_mask": [1]},
        {"input_ids": [[1, 2]], "attention_mask": [[1, "a"]]},
    ],
)
def test_what_is_no_prompt_is_refused(wrong):
    with pytest.raises(InvalidRequest, match="a prompt is"):
        ids(wrong)


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb"])
def test_lone_surrogates_are_refused(text):
    for prompts in (text, [text], ["fine", text]):
        with pytest.raises(InvalidRequest, match="must be valid Unicode"):
            listed(prompts)
    parts = [part(text)]
    for messages in ([user(text)], [{"role": text, "content": "a"}], [user(parts)]):
        with pytest.raises(InvalidRequest, match="must be valid Unicode"):
            conversation(messages)


@pytest.mark.parametrize("content", [5, b"Hi", 1.5, True])
def test_content_of_a_message_must_be_text(content):
    with pytest.raises(InvalidRequest, match="content must be a string"):
        conversation([user(content)])


def test_llm_refuses_unreadable_prompts_and_names():
    llm = LLM(starter.target(), method="ngram", nodes=3)
    for ask in (llm.stream, llm.generate, lambda text: llm.session.prepare(text, None)):
        with pytest.raises(InvalidRequest, match="a prompt must be valid Unicode"):
            ask("a\ud800")
    for target in (None, starter.target()):
        with pytest.raises(InvalidRequest, match="it is not a name"):
            LLM(target, method="")
