"""Structured output through the text API: refusals before the start, compilation beside rounds, asyncio."""

import asyncio
import json
import re
from threading import Thread

import pytest

from foreword import LLM, AsyncLLM, SamplingParams
from foreword.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<call>",
        "content": {"type": "json_schema", "json_schema": SCHEMA, "max_whitespace_cnt": 1},
        "end": "</call>",
    },
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(nodes=4)


def test_wrong_request_is_refused_before_any_starts(llm):
    wrong = [SamplingParams(max_tokens=4), SamplingParams(regex="(", max_tokens=4)]
    with pytest.raises(InvalidRequest, match="cannot follow this regex: "):
        llm.generate(["one", "two"], wrong)
    assert llm.engine.idle
    with pytest.raises(InvalidRequest, match="cannot follow this grammar: "):
        llm.stream("one", SamplingParams(grammar="root ::= x"))


def test_structural_tag_is_followed(llm):
    (answer,) = llm.generate("Call:", SamplingParams(structural_tag=TAG, seed=1, max_tokens=40))
    assert re.fullmatch(r"<call>\{\s*\"ok\"\s*:\s*(true|false)\s*\}</call>", answer.text)
    assert answer.stats.accepted > 0


def test_grammar_is_compiled_while_another_thread_runs_a_round(llm):
    with llm._lock:  # as a round holds it
        compiling = Thread(target=llm.compile, args=(SamplingParams(json_schema=SCHEMA),))
        compiling.start()
        compiling.join(timeout=60)
        assert not compiling.is_alive()


def test_asyncio_gives_the_same_answers_and_refusals(llm):
    params = SamplingParams(json_schema=SCHEMA, seed=2, max_tokens=24)

    async def several() -> list[str]:
        async with AsyncLLM(llm) as shared:
            with pytest.raises(InvalidRequest, match="cannot follow this regex: "):
                await shared.generate("x", SamplingParams(regex="("))
            with pytest.raises(InvalidRequest, match="cannot follow this regex: "):
                async for _ in shared.stream("x", SamplingParams(regex="("), id="a"):
                    pass
            streamed = "".join([delta.text async for delta in shared.stream("Well?", params, id="a")])
            return [streamed, (await shared.generate("Well?", params))[0].text]

    want = llm.generate("Well?", params)[0].text
    assert asyncio.run(several()) == [want, want]
    assert set(json.loads(want)) == {"ok"}


def test_special_tokens_in_text_do_not_end_it(llm):
    (answer,) = llm.generate("x", SamplingParams(regex=r"<\|end\|>[ab]", seed=1, max_tokens=24))
    assert answer.text in ("<|end|>a", "<|end|>b")
