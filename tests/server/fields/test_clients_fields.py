"""Fields and forms that clients of today send: served, or ignored where only a host has
a use for them.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest

import owned
from foreword import LLM, SamplingParams

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
(TALE,) = owned.CHAT
AGAIN = {"role": "user", "content": "Shorter."}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Closed, so that the small model cannot go on for ever."""
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
    "audio": None,
    "function_call": "auto",
    "functions": None,
    "logit_bias": None,
    "logprobs": False,
    "modalities": ["text"],
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "stop": None,
    "reasoning_effort": "low",
    "response_format": {"type": "text"},
    "top_logprobs": None,
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
    return llm.generate([llm.render([TALE])], SamplingParams(seed=4, max_tokens=12))[
        0
    ].text


@pytest.mark.parametrize(("name", "value"), (HOSTED | OF_CHAT).items())
def test_a_field_of_chat_changes_no_text(server, expected, name, value):
    got = server.post(
        CHAT, messages=[TALE], seed=4, max_completion_tokens=12, **{name: value}
    )
    assert got["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(("name", "value"), (HOSTED | OF_RESPONSES).items())
def test_a_field_of_responses_changes_no_text(server, expected, name, value):
    got = server.post(
        RESPONSES, input=[TALE], seed=4, max_output_tokens=12, **{name: value}
    )
    assert got["output"][0]["content"][0]["text"] == expected


@pytest.mark.parametrize(
    "message", [{"content": None}, {}, {"content": None, "tool_calls": []}]
)
@pytest.mark.parametrize(("path", "name"), [(CHAT, "messages"), (RESPONSES, "input")])
def test_an_assistant_may_have_said_nothing(server, message, path, name):
    def usage(turn: Mapping[str, Any]) -> Any:
        counted = server.post(
            path, seed=1, **{name: [TALE, {"role": "assistant", **turn}, AGAIN]}
        )["usage"]
        return [value for key, value in counted.items() if key.endswith("tokens")]

    assert usage(message) == usage({"content": ""})


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_an_assistant_may_only_have_called(server, content):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_time", "arguments": '{"city": "Rome"}'},
    }
    called = {"role": "assistant", **content, "tool_calls": [call]}
    messages = [
        TALE,
        called,
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    got = server.post(
        CHAT, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=2
    )
    assert got["choices"][0]["message"]["content"]


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_one_of_the_allowed_tools_is_called(server, name):
    """The model is told of all tools, so that the prompt stays in the cache, and calls
    only these.
    """
    chosen = {"type": "function", "function": {"name": name}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [chosen]},
    }
    ask = dict(seed=3, parallel_tool_calls=False)
    got = server.post(
        CHAT, messages=[TALE], tools=TOOLS, tool_choice=choice, max_tokens=200, **ask
    )
    (call,) = got["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == name
    assert (
        got["usage"]["prompt_tokens"]
        == server.post(CHAT, messages=[TALE], tools=TOOLS)["usage"]["prompt_tokens"]
    )
    flat = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": name}, {"type": "mcp"}],
    }
    response = server.post(
        RESPONSES,
        input=[TALE],
        tools=FLAT,
        tool_choice=flat,
        max_output_tokens=200,
        **ask,
    )
    assert [(one["name"], one["arguments"]) for one in response["output"]] == [
        (name, call["function"]["arguments"])
    ]
    assert response["tool_choice"] == flat


def test_a_call_that_is_not_allowed_is_text(server):
    """The model would write it: nothing but the parser knows better where the answer
    has another grammar.
    """
    call = '{"tool_calls": [{"name": "get_time", "arguments": {}}]}'
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [chosen]},
    }
    for tool_choice, text in ((choice, call), ("auto", None)):
        got = server.post(
            CHAT,
            messages=[TALE],
            tools=TOOLS,
            tool_choice=tool_choice,
            guided_choice=[call],
        )
        assert got["choices"][0]["message"]["content"] == text


def test_a_body_of_responses_is_served_as_chat(server, llm):
    """Cursor sends one, and reads the answer as chat."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": TALE["content"]}]}
    ]
    body = dict(
        input=items,
        instructions="Be brief.",
        max_output_tokens=12,
        seed=4,
        reasoning={"effort": "low"},
    )
    prompt = llm.render([{"role": "system", "content": "Be brief."}, TALE])
    expected = llm.generate([prompt], SamplingParams(seed=4, max_tokens=12))[0]
    got = server.post(
        CHAT, **body, store=False, include=[], text={"verbosity": "low"}, stream=False
    )
    assert got["object"] == "chat.completion"
    assert got["choices"][0]["message"]["content"] == expected.text
    assert got["usage"]["completion_tokens"] == len(expected.tokens)
    schema = {"type": "json_schema", "name": "city", "schema": CITY}
    got = server.post(
        CHAT, input="Where?", text={"format": schema}, max_output_tokens=99
    )
    assert json.loads(got["choices"][0]["message"]["content"])["city"] in (
        "Paris",
        "Rome",
    )
    got = server.post(
        CHAT,
        input="Where?",
        tools=FLAT,
        tool_choice={"type": "function", "name": "get_time"},
        seed=1,
    )
    assert (
        got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_time"
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "messages"),
        ({"input": 5}, "input must be a text or a list of items"),
        ({"input": [{"role": "user", "content": None}]}, "input item 1: its content"),
        ({"messages": [{"role": "user", "content": None}]}, "content must be a string"),
        ({"messages": [TALE], "functions": FUNCTIONS}, "Use 'tools'"),
        (
            {
                "messages": [TALE],
                "tools": TOOLS,
                "tool_choice": {"type": "allowed_tools"},
            },
            "allowed_tools needs a mode",
        ),
    ],
)
def test_a_form_that_cannot_be_read_is_refused_by_name(server, fields, named):
    response = server.http.post(CHAT, json=fields)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]
