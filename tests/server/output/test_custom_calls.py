"""Chat completions: free-form tools, called with plain text, among functions."""

import json
import re
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
ASK = {"role": "user", "content": "Run it."}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": EMPTY}}
CODE = {"type": "custom", "custom": {"name": "code", "description": "Runs Python."}}
NAMED = {"type": "custom", "custom": {"name": "code"}}
PROGRAM = 'print("ä")\n\\'


def with_grammar(syntax: str, definition: str) -> dict[str, Any]:
    grammar = {"syntax": syntax, "definition": definition}
    form = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": {"name": "code", "format": form}}


def answering(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a field that makes the answer these calls."""
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {"guided_choice": [json.dumps({"tool_calls": listed})]}


def asked(*calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "model": "foreword-family",
        "messages": [ASK],
        "tools": [CODE, TIME],
        "extra_body": answering(*calls),
        **more,
    }


BOTH = (("code", {"input": PROGRAM}), ("get_time", {}), ("code", {"input": "2"}))


def test_call_holds_the_text(client):
    got = client.chat.completions.create(**asked(*BOTH))
    first, second, third = got.choices[0].message.tool_calls
    assert got.choices[0].finish_reason == "tool_calls"
    assert type(first).__name__ == "ChatCompletionMessageCustomToolCall"
    assert (first.custom.name, first.custom.input) == ("code", PROGRAM)
    assert (second.function.name, second.function.arguments) == ("get_time", "{}")
    assert third.custom.input == "2"


def test_stream_has_the_same_calls(client):
    chunks = list(client.chat.completions.create(**asked(*BOTH, n=2, stream=True)))
    for number in range(2):
        built: dict[int, dict[str, Any]] = {}
        choices = [one for chunk in chunks for one in chunk.choices]
        deltas = [one.delta for one in choices if one.index == number]
        for delta in (one for each in deltas for one in each.tool_calls or ()):
            part = delta.to_dict()
            call = built.setdefault(part.pop("index"), {})
            for key, value in part.items():
                if isinstance(value, str):
                    assert key not in call
                    call[key] = value
                    continue
                inner = call.setdefault(key, {})
                for name, text in value.items():
                    inner[name] = inner.get(name, "") + text
        assert all(call.pop("id").startswith("call_") for call in built.values())
        assert [built[index] for index in sorted(built)] == [
            {"type": "custom", "custom": {"name": "code", "input": PROGRAM}},
            {"type": "function", "function": {"name": "get_time", "arguments": "{}"}},
            {"type": "custom", "custom": {"name": "code", "input": "2"}},
        ]


def test_free_form_tool_is_forced_and_allowed(server):
    allowed = {"mode": "required", "tools": [NAMED]}
    tools = [with_grammar("regex", "[a-z]{3}-[0-9]{2}"), TIME]
    for choice in (NAMED, {"type": "allowed_tools", "allowed_tools": allowed}):
        got = server.post(
            CHAT,
            messages=[ASK],
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=80,
            seed=2,
        )
        (call,) = got["choices"][0]["message"]["tool_calls"]
        assert call["type"] == "custom"
        # the expression is followed, not only told
        assert re.fullmatch("[a-z]{3}-[0-9]{2}", call["custom"]["input"])


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [
        ("lark", 'start: "a"'),
        ("regex", '"a"'),
        ("regex", r"a\nb"),
        ("regex", "(?i)a"),
        ("regex", "(?=a)."),
    ],
)
def test_grammar_that_cannot_be_followed_in_json_is_told(server, syntax, definition):
    """Agents send grammars of patches, as in responses."""
    tool = with_grammar(syntax, definition)
    told = with_grammar("lark", definition)
    sizes = [
        server.post(CHAT, messages=[ASK], tools=[one], max_tokens=1)["usage"][
            "prompt_tokens"
        ]
        for one in (tool, told, CODE)
    ]
    assert sizes[0] == sizes[1] != sizes[2]


def test_history_with_such_calls_is_read(server, llm):
    custom = {"name": "code", "input": PROGRAM}
    function = {"name": "code", "arguments": json.dumps({"input": PROGRAM})}

    def turns(call: dict[str, Any]) -> list[dict[str, Any]]:
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": "ä"}
        return [ASK, called, result]

    ours = turns({"id": "c", "type": "custom", "custom": custom})
    plain = turns({"id": "c", "type": "function", "function": function})
    assert llm.render(ours) == llm.render(plain)
    got = server.post(CHAT, messages=ours, tools=[CODE], max_tokens=1)
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    about = {**CODE["custom"], "parameters": parameters}
    tools = [{"type": "function", "function": about}]
    assert got["usage"]["prompt_tokens"] == len(llm.render(plain, tools))


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "custom"}, "cannot read tool 1: a tool is"),
        ({"type": "custom", "custom": "code"}, "cannot read tool 1: a tool is"),
        ({"type": "custom", "custom": {"name": 5}}, "cannot read tool 1: name is"),
    ],
)
def test_tool_without_a_name_is_refused(server, tool, words):
    response = server.http.post(CHAT, json={"messages": [ASK], "tools": [tool]})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_unknown_tool_is_refused_by_name(server):
    other = {"type": "custom", "custom": {"name": "other"}}
    allowed = {"mode": "auto", "tools": [other]}
    for choice, words in (
        (other, "cannot force a tool call"),
        ({"type": "allowed_tools", "allowed_tools": allowed}, "the tool 'other'"),
    ):
        body = {"messages": [ASK], "tools": [CODE], "tool_choice": choice}
        response = server.http.post(CHAT, json=body)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
