"""Structured output through the text API: refusals, compilation, asyncio."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

import pair
import tiny_models
from foreword import LLM, AsyncLLM, SamplingParams
from foreword.errors import InvalidRequest
from foreword.structured import matcher

SCHEMA = dict(type="object", properties={"ok": {"type": "boolean"}}, required=["ok"])
CONTENT = dict(type="json_schema", json_schema=SCHEMA, max_whitespace_cnt=1)
CALL = dict(type="tag", begin="<call>", content=CONTENT, end="</call>")
TAG = {"type": "structural_tag", "format": CALL}


def test_wrong_request_is_refused_before_any_starts(llm):
    wrong = [SamplingParams(max_tokens=4), SamplingParams(regex="(", max_tokens=4)]
    with pytest.raises(InvalidRequest, match="cannot follow this regex: "):
        llm.generate(["one", "two"], wrong)
    assert llm.engine.idle
    with pytest.raises(InvalidRequest, match="cannot follow this grammar: "):
        llm.stream("one", SamplingParams(grammar="root ::= x"))


def test_structural_tag_is_followed(llm):
    params = SamplingParams(structural_tag=TAG, seed=1, max_tokens=40)
    (answer,) = llm.generate("Call:", params)
    form = r"<call>\{\s*\"ok\"\s*:\s*(true|false)\s*\}</call>"
    assert re.fullmatch(form, answer.text)
    assert answer.stats.accepted > 0


def test_grammar_is_compiled_while_another_thread_runs_a_round(llm):
    with llm.session._lock, ThreadPoolExecutor(1) as other:  # as a round holds it
        params = SamplingParams(json_schema=SCHEMA)
        compiling = other.submit(llm.session.compiling, params).result(60)
        assert compiling.result(60) is not None


def test_asyncio_gives_the_same_answers_and_refusals(llm):
    params = SamplingParams(json_schema=SCHEMA, seed=2, max_tokens=24)

    async def several() -> list[str]:
        async with AsyncLLM(llm) as shared:
            with pytest.raises(InvalidRequest, match="cannot follow this regex: "):
                await shared.generate("x", SamplingParams(regex="("))
            with pytest.raises(InvalidRequest, match="cannot follow this regex: "):
                async for _ in shared.stream("x", SamplingParams(regex="("), id="a"):
                    pass
            stream = shared.stream("Well?", params, id="a")
            streamed = "".join([delta.text async for delta in stream])
            return [streamed, (await shared.generate("Well?", params))[0].text]

    want = llm.generate("Well?", params)[0].text
    assert asyncio.run(several()) == [want, want]
    assert set(json.loads(want)) == {"ok"}


def test_special_tokens_in_text_do_not_end_it(llm):
    params = SamplingParams(regex=r"<\|end\|>[ab]", seed=1, max_tokens=24)
    (answer,) = llm.generate("x", params)
    assert answer.text in ("<|end|>a", "<|end|>b")


# ---- an error of one answer


def of_bytes() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the bytes, and an end of the text."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"]
    made = tiny_models.of_bytes(
        {letter: number for number, letter in enumerate(letters)}
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


async def beside(
    llm: LLM, params: SamplingParams, free: SamplingParams
) -> list[str | BaseException]:
    """Return the texts or errors of a constrained request and of a free one."""
    async with AsyncLLM(llm) as shared:

        async def text(own: SamplingParams) -> str:
            stream = shared.stream("One day", own)
            return "".join([delta.text async for delta in stream])

        return await asyncio.gather(text(params), text(free), return_exceptions=True)


def test_vocabulary_that_does_not_fill_the_mask():
    """Bits beyond it were taken for tokens: IndexError, and answers without end."""
    llm = LLM(pair.llama(), tokenizer=of_bytes(), nodes=4, method="ngram")
    free = SamplingParams(temperature=0.8, seed=1, max_tokens=24, ignore_eos=True)
    alone = llm.generate("One day", free)[0].text
    for regex in ("(ab|[^a]){40}", "[^a]{3}"):
        params = SamplingParams(regex=regex, seed=2, max_tokens=24)
        followed, other = asyncio.run(beside(llm, params, free))
        assert other == alone, regex
        assert isinstance(followed, str), regex
        assert re.fullmatch(regex.replace("{40}", "*"), followed), regex


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_grammar_that_takes_too_long_ends_its_request_alone(llm, monkeypatch, rule):
    ambiguous = "root ::= [a-z] | root root | root root root"
    shared = dict(seed=1, ignore_eos=True, rule=rule)
    params = SamplingParams(grammar=ambiguous, max_tokens=64, **shared)
    free = SamplingParams(temperature=0.8, max_tokens=24, **shared)
    assert llm.session.compiling(params).result(60)
    monkeypatch.setattr(matcher, "RESERVE", 0.02)
    monkeypatch.setattr(matcher, "EARNED", 0.0)
    failed, other = asyncio.run(beside(llm, params, free))
    assert isinstance(failed, InvalidRequest)
    assert "takes too long to compute" in str(failed)
    assert other == llm.generate("One day", free)[0].text
    assert llm.engine.idle
    assert llm.engine.failed is None
