"""Python clients of models: litellm (as aider uses it) and LangChain."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from foreword import SamplingParams
from requested import CITY
from requested import TOOLS as BOTH

pytestmark = pytest.mark.clients

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."
TOOLS = BOTH[:1]
LITELLM = f"""
import json, os
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
TALE, TOOLS = {TALE!r}, {TOOLS!r}
ask = dict(
    model="openai/foreword-family", api_base=URL, api_key="none", messages=[{{"role": "user", "content": TALE}}], seed=4
)
"""
LANGCHAIN = f"""
import json
from langchain_openai import ChatOpenAI
TALE, TOOLS = {TALE!r}, {TOOLS!r}
model = ChatOpenAI(model="foreword-family", base_url=URL, api_key="none", seed=4, max_tokens=200)
"""
Drafting = Callable[[], AbstractContextManager[None]]


def test_litellm_gets_the_text_of_the_library(program, llm, drafting):
    params = SamplingParams(seed=4, max_tokens=40, logprobs=2)
    expected = llm.generate([llm.render([{"role": "user", "content": TALE}])], params)[
        0
    ]
    with drafting():
        got = program(f"""{LITELLM}
whole = litellm.completion(**ask, max_tokens=40, logprobs=True, top_logprobs=2)
stream = list(litellm.completion(**ask, max_tokens=40, stream=True, stream_options={{"include_usage": True}}))
pieces = [part.choices[0].delta.content or "" for part in stream if part.choices]
print(json.dumps([whole.model_dump(), pieces, stream[-1].usage.model_dump()]))""")
    whole, pieces, usage = got
    assert whole["choices"][0]["message"]["content"] == expected.text
    assert whole["choices"][0]["finish_reason"] == expected.finish_reason
    assert "".join(pieces) == expected.text
    assert len(pieces) > 4
    for counted in (whole["usage"], usage):
        assert counted["completion_tokens"] == len(expected.tokens)
        assert counted["prompt_tokens"] == len(expected.prompt_tokens)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == [
        one.logprob for one in expected.logprobs
    ]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(entries)


def test_litellm_gets_tool_calls_whole_and_in_a_stream(program, drafting):
    with drafting():
        whole, streamed, reason = program(f"""{LITELLM}
ask |= dict(tools=TOOLS, tool_choice={{"type": "function", "function": {{"name": "get_weather"}}}}, max_tokens=200)
whole = litellm.completion(**ask).choices[0].message.tool_calls[0].function
chunks = list(litellm.completion(**ask, stream=True))
choice = litellm.stream_chunk_builder(chunks).choices[0]
print(json.dumps([dict(whole), dict(choice.message.tool_calls[0].function), choice.finish_reason]))""")
    assert whole["name"] == "get_weather"
    assert streamed == whole
    assert reason == "tool_calls"


def test_langchain_gets_the_text_of_the_library(program, llm, drafting):
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=40)
    expected = llm.generate([llm.render([{"role": "user", "content": TALE}])], params)[
        0
    ]
    with drafting():
        text, pieces, usage = program(f"""{LANGCHAIN}
model = model.bind(temperature=0.8, max_tokens=40)
whole = model.invoke(TALE)
pieces = [chunk.content for chunk in model.stream(TALE)]
print(json.dumps([whole.content, pieces, whole.usage_metadata]))""")
    assert text == expected.text
    assert "".join(pieces) == expected.text
    assert usage["output_tokens"] == len(expected.tokens)
    assert usage["input_tokens"] == len(expected.prompt_tokens)


def test_langchain_gets_calls_and_objects(program, drafting):
    with drafting():
        call, found = program(f"""{LANGCHAIN}
call = model.bind_tools(TOOLS, tool_choice="get_weather").invoke(TALE).tool_calls[0]
schema = {{"title": "Weather", "description": "Weather", **TOOLS[0]["function"]["parameters"]}}
print(json.dumps([call, model.with_structured_output(schema, method="json_schema").invoke(TALE)]))""")
    assert call["name"] == "get_weather"
    for value in (call["args"], found):
        assert value["city"] in CITY["properties"]["city"]["enum"]
        assert value["days"] in CITY["properties"]["days"]["enum"]
