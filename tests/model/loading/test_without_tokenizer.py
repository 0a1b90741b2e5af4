"""An LLM without a tokenizer: ids in and out, and an error where text is needed."""

from functools import cache
from pathlib import Path

import pytest

import tiny_models
from foreword import LLM, InvalidRequest, SamplingParams
from foreword.errors import VocabularyMismatch
from foreword.model import Model

PROMPT = [5, 9, 200, 31]


@cache
def llm() -> LLM:
    return LLM(
        Model(tiny_models.build("llama"), "llama"),
        tokenizer=False,
        draft=tiny_models.build("llama"),
        nodes=4,
    )


def asked(**more) -> SamplingParams:
    return SamplingParams(max_tokens=24, seed=3, **more)


def test_token_ids_go_in_and_come_out_without_text():
    plain, drafted = (
        llm().generate(PROMPT, asked(method=method))[0] for method in ("none", "lm")
    )
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 0
    assert (len(plain.tokens), plain.text, plain.finish_reason) == (24, "", "length")
    assert plain.prompt_tokens == PROMPT
    deltas = list(llm().stream(PROMPT, asked()))
    assert [token for delta in deltas for token in delta.tokens] == plain.tokens
    assert {piece for delta in deltas for piece in delta.pieces} == {""}


def test_tokens_may_be_named_by_their_ids():
    free = llm().generate(PROMPT, asked())[0].tokens
    stopped = llm().generate(PROMPT, asked(stop_token_ids=(free[7],)))[0]
    assert stopped.tokens == free[: free.index(free[7]) + 1]
    assert stopped.finish_reason == "stop"
    (answer,) = llm().generate(PROMPT, asked(bad_word_ids=((free[0],),)))
    assert answer.tokens[0] != free[0]
    predicted = llm().generate(PROMPT, asked(method="ngram", prediction=tuple(free)))[0]
    assert predicted.tokens == free
    traced = llm().generate(PROMPT, asked(trace=True, logprobs=2))[0]
    assert traced.tokens == free
    assert [one.token for one in traced.logprobs] == free
    assert len(llm().score(PROMPT)) == len(PROMPT)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(stop=("end",)),
        dict(bad_words=("no",)),
        dict(prediction="likely"),
        dict(regex="a+"),
        dict(json_object=True),
    ],
)
def test_parameters_that_need_text_are_refused(wrong):
    with pytest.raises(
        InvalidRequest, match=r"text: .* without a tokenizer.*token ids"
    ):
        llm().generate(PROMPT, asked(**wrong))
    assert len(llm().generate(PROMPT, asked())[0].tokens) == 24


def test_texts_and_chats_are_refused():
    for call in (
        lambda: llm().generate("a text", asked()),
        lambda: llm().stream("a text"),
        lambda: llm().score("a text"),
        lambda: llm().chat([{"role": "user", "content": "Hello"}]),
        lambda: llm().tokenizer,
    ):
        with pytest.raises(InvalidRequest, match="this model runs without a tokenizer"):
            call()


def test_folders_without_tokenizers_are_models_and_drafts(tmp_path: Path):
    tiny_models.build("llama").save_pretrained(tmp_path / "model")
    with LLM(
        tmp_path / "model", tokenizer=False, draft=tmp_path / "model", nodes=4
    ) as one:
        answer = one.generate(PROMPT, asked())[0]
    assert answer.tokens == llm().generate(PROMPT, asked())[0].tokens
    assert answer.stats.accepted > 0


@pytest.mark.parametrize("method", ["slem", "tli"])
def test_methods_that_translate_text_are_refused(method, tmp_path: Path):
    tiny_models.build("llama").save_pretrained(tmp_path / "draft")
    model, draft = tiny_models.build("llama"), tmp_path / "draft"
    with pytest.raises(VocabularyMismatch, match="the target has no tokenizer"):
        LLM(model, tokenizer=False, method=method, draft=draft)
