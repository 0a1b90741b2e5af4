"""Fields and forms that clients send: served, or ignored where a host needs them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

import owned
from asking import called, closed, system, tool, tool_result, user
from foreword import LLM, SamplingParams

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
(TALE,) = owned.CHAT
AGAIN = user("Shorter.")
CITY = closed(city={"enum": ["Paris", "Rome"]})
FUNCTIONS = [
    {"name": name, "description": "Tell.", "parameters": CITY}
    for name in ("get_weather", "get_time")
]
TOOLS = [{"type": "function", "function": one} for one in FUNCTIONS]
FLAT = [{"type": "function", **one} for one in FUNCTIONS]
HOSTED: dict[str, Any] = {
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"ttl": "1h"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": True,
    "user": "ann",
    "moderation": {"model": "omni-moderation-latest"},
    "stream_options": {"include_obfuscation": False},
    "temperature": None,
    "top_p": None,
    "tools": None,
    "tool_choice": None,
    "parallel_tool_calls": True,
}
"""Fields of OpenAI's client that change no text here."""
OF_CHAT: dict[str, Any] = {
    **dict.fromkeys(("audio", "functions", "logit_bias", "stop", "top_logprobs")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), 0),
    "function_call": "auto",
    "logprobs": False,
    "modalities": ["text"],
    "n": 1,
    "reasoning_effort": "low",
    "response_format": {"type": "text"},
    "verbosity": "low",
    "web_search_options": {},
    "prediction": None,
}
OF_RESPONSES: dict[str, Any] = {
    "background": False,
    "context_management": [],
    "conversation": None,
    "include": ["reasoning.encrypted_content"],
    "instructions": None,
    "max_tool_calls": 3,
    "previous_response_id": None,
    "prompt": None,
    "top_logprobs": 0,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "truncation": "auto",
}


@pytest.fixture(scope="module")
def expected(llm: LLM) -> str:
    return llm.chat([TALE], SamplingParams(seed=4, max_tokens=12)).text


@pytest.mark.parametrize(("name", "value"), (HOSTED | OF_CHAT).items())
def test_a_field_of_chat_changes_no_text(server, expected, name, value):
    ask = dict(messages=[TALE], seed=4, max_completion_tokens=12)
    got = server.post(CHAT, **ask, **{name: value})
    assert got["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(("name", "value"), (HOSTED | OF_RESPONSES).items())
def test_a_field_of_responses_changes_no_text(server, expected, name, value):
    ask = dict(input=[TALE], seed=4, max_output_tokens=12)
    got = server.post(RESPONSES, **ask, **{name: value})
    assert got["output"][0]["content"][0]["text"] == expected


@pytest.mark.parametrize(
    "message", [{"content": None}, {}, {"content": None, "tool_calls": []}]
)
@pytest.mark.parametrize(("path", "name"), [(CHAT, "messages"), (RESPONSES, "input")])
def test_an_assistant_may_have_said_nothing(server, message, path, name):
    def usage(turn: Mapping[str, Any]) -> Any:
        turns = [TALE, {"role": "assistant", **turn}, AGAIN]
        counted = server.post(path, seed=1, **{name: turns})["usage"]
        return [value for key, value in counted.items() if key.endswith("tokens")]

    assert usage(message) == usage({"content": ""})


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_an_assistant_may_only_have_called(server, content):
    calls = [called("call_1", "get_time", city="Rome")]
    turn = {"role": "assistant", **content, "tool_calls": calls}
    turns = [TALE, turn, tool_result("call_1", "noon")]
    ask = dict(messages=turns, tools=TOOLS, tool_choice="none", max_tokens=2)
    got = server.post(CHAT, **ask)
    assert got["choices"][0]["message"]["content"]


def allowed(mode: str, name: str) -> dict[str, Any]:
    tools = {"mode": mode, "tools": [tool(name)]}
    return {"type": "allowed_tools", "allowed_tools": tools}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_one_of_the_allowed_tools_is_called(server, name):
    """All tools stay in the prompt, to keep its cache; the model calls these alone."""
    ask = dict(messages=[TALE], tools=TOOLS)
    more = dict(seed=3, parallel_tool_calls=False)
    choice = dict(tool_choice=allowed("required", name), max_tokens=200)
    got = server.post(CHAT, **ask, **choice, **more)
    (call,) = got["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == name
    usage = server.post(CHAT, **ask)["usage"]
    assert got["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    flat = dict(type="allowed_tools", mode="required")
    flat["tools"] = [{"type": "function", "name": name}, {"type": "mcp"}]
    ask = dict(input=[TALE], tools=FLAT, tool_choice=flat, max_output_tokens=200)
    response = server.post(RESPONSES, **ask, **more)
    (item,) = response["output"]
    assert (item["name"], item["arguments"]) == (name, call["function"]["arguments"])
    assert response["tool_choice"] == flat


def test_a_call_that_is_not_allowed_is_text(server):
    """The model would write it: only the parser knows better here."""
    call = '{"tool_calls": [{"name": "get_time", "arguments": {}}]}'
    ask = dict(messages=[TALE], tools=TOOLS, guided_choice=[call])
    for choice, text in ((allowed("auto", "get_weather"), call), ("auto", None)):
        got = server.post(CHAT, **ask, tool_choice=choice)
        assert got["choices"][0]["message"]["content"] == text


def test_a_body_of_responses_is_served_as_chat(server, llm):
    """Cursor sends one, and reads the answer as chat."""
    items = [user([{"type": "input_text", "text": TALE["content"]}])]
    body = dict(input=items, instructions="Be brief.", max_output_tokens=12, seed=4)
    ignored = dict(reasoning={"effort": "low"}, text={"verbosity": "low"}, include=[])
    params = SamplingParams(seed=4, max_tokens=12)
    expected = llm.chat([system("Be brief."), TALE], params)
    got = server.post(CHAT, **body, **ignored, store=False, stream=False)
    assert got["object"] == "chat.completion"
    assert got["choices"][0]["message"]["content"] == expected.text
    assert got["usage"]["completion_tokens"] == len(expected.tokens)
    schema = {"type": "json_schema", "name": "city", "schema": CITY}
    form = dict(text={"format": schema}, max_output_tokens=99)
    got = server.post(CHAT, input="Where?", **form)
    answer = json.loads(got["choices"][0]["message"]["content"])
    assert answer["city"] in ("Paris", "Rome")
    choice = {"type": "function", "name": "get_time"}
    got = server.post(CHAT, input="Where?", tools=FLAT, tool_choice=choice, seed=1)
    (call,) = got["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_time"


BARE = {"tool_choice": {"type": "allowed_tools"}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "messages"),
        ({"input": 5}, "input must be a text or a list of items"),
        ({"input": [user(None)]}, "input item 1: its content"),
        ({"messages": [user(None)]}, "content must be a string"),
        ({"messages": [TALE], "functions": FUNCTIONS}, "Use 'tools'"),
        ({"messages": [TALE], "tools": TOOLS, **BARE}, "allowed_tools needs a mode"),
    ],
)
def test_a_form_that_cannot_be_read_is_refused_by_name(server, fields, named):
    response = server.http.post(CHAT, json=fields)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]
