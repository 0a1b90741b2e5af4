"""Calls as models write them are read in every family; everything else stays text."""

import json

import pytest

from foreword_server.output.formats import TOOL_FORMATS
from outputs import calls, completed, content, parsed, raw, reasoning

PARIS = {"city": "Paris", "days": 3}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
OTHER = '{"name": "get", "arguments": {"x": [1, null]}}'
PYTHON = "get_weather(city='Paris', days=3)"
TEXT = json.dumps(json.dumps(PARIS))
ONE_CALL = (
    CALL,
    f"```json\n{CALL}\n```",
    f"```\n{CALL}\n```",
    f"```tool_call\n{CALL}\n```",
    f"```json\n[{CALL}]\n```",
    f"[{CALL}]",
    f"<tool_call>\n{CALL}\n</tool_call>",
    f"<tool_call>[{CALL}]</tool_call>",
    f"<tools>\n{CALL}\n</tools>",
    f"<function_call>{CALL}</function_call>",
    f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    f"<|tool_call|>[{CALL}]<|/tool_call|>",
    f"<|python_tag|>{CALL}",
    f"[TOOL_CALLS][{CALL}]",
    f"[TOOL_CALLS] {CALL}",
    f"[TOOL_CALLS]get_weather{json.dumps(PARIS)}",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}',
    f'{{"tool_calls": [{CALL}]}}',
    f'{{"type": "function", "function": {CALL}}}',
    (
        f'{{"id": "a", "type": "function", "function": {{"name": "get_weather", '
        f'"arguments": {TEXT}}}}}'
    ),
    f'{{"tool_calls": [{{"type": "function", "function": {CALL}}}]}}',
    f'{{"name": "get_weather", "arguments": {TEXT}}}',
    f'{{"arguments": {TEXT}, "name": "get_weather"}}',
    '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
    '{"function": "get_weather", "args": {"city": "Paris", "days": 3}}',
    (
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Paris", "days": 3}}]<|END_ACTION|>'
    ),
    PYTHON,
    f"[{PYTHON}]",
    f"<tool_call>{PYTHON}</tool_call>",
    f"<|tool_call_start|>[{PYTHON}]<|tool_call_end|>",
    f"```tool_code\n{PYTHON}\n```",
    f"```tool_code\nprint(default_api.{PYTHON})\n```",
    (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
    (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ),
    (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    ),
)
"""One call in every form."""
TWO_CALLS = (
    f"{CALL}\n{OTHER}",
    f"{CALL}, {OTHER}",
    f"{CALL}; {OTHER}",
    f"[{CALL}, {OTHER}]",
    f"```json\n{CALL}\n{OTHER}\n```",
    f"```json\n{CALL}\n```\n```json\n{OTHER}\n```",
    f"<tools>{CALL}\n{OTHER}</tools>",
    f"<tool_call>{CALL}</tool_call>\n<tool_call>{OTHER}</tool_call>",
    f"{PYTHON}\nget(x=[1, None])",
    f"[{PYTHON}, get(x=[1, null])]",
)
NO_CALLS = (
    "",
    "I know that.",
    "{}",
    "[]",
    "[link](https://example.org) and [1, 2] and {a}",
    '{"name": "Ann", "age": 3}',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "arguments": 3}',
    '{"name": "get_weather", "arguments": "Paris"}',
    '{"name": "get_weather", "arguments": "[1]"}',
    '{"name": "get_weather", "description": "The weather", "arguments": {}}',
    '```json\n{"name": "other", "arguments": {}}\n```',
    "```python\nget_weather(city='Paris')\n```",
    "```\nget_weather(city='Paris')\n```",
    "Call get_weather(city='Paris') for it.",
    "get_weather(city='Paris') is what you call.",
    "get_weather is a tool.",
    "get_weather(city)",
    "get_weather(city='Paris'",
    "get_weather('Paris')",
    "get_weather(city='Paris', city='Rome')",
    "get_weather(city='Par\nis')",
    "get_weather(city=open('x'))",
    "other(city='Paris')",
    "[other(city='Paris')]",
    "<tools></tools>",
    '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "get"}</tool_call>',
    '<tool_call>{"name": "get", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "get", "name": "get", "arguments": {}}</tool_call>',
    "<<tool_call>\n{<tool_",
    "<tool_call>\n<function=other>\n<parameter=x>\n1\n</parameter>\n</function>",
    '{"name": "get_w", "parameters": {}} {"a": 1}',
    '[TOOL_CALLS][{"name": "other", "arguments": {}}]',
    "[TOOL_CALLS]get_[ARGS]{}",
    '{"tool_calls": []}',
    "<tool_call>get_weather",
    "<tool_call>get <b>",
    "<｜tool▁call▁begin｜>other<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
)
VALUES = (
    ("'a'", "a"),
    ('"it\'s"', "it's"),
    ("''", ""),
    ('"""a\n"b" \'\\n\'"""', "a\n\"b\" '\n'"),
    (r"'a\'b\\c\d\x'", "a'b\\c\\d\\x"),
    ("-1.5e3", -1500.0),
    ("True", True),
    ("None", None),
    ("[1, 'b', [], ()]", [1, "b", [], []]),
    ("{'a': {'b': false}, \"c\": [3,]}", {"a": {"b": False}, "c": [3]}),
)
"""Python's literals -> JSON's values."""


def read(format: str, text: str) -> list[tuple[str, object]]:
    """Return the calls of a text, which are the same cut anywhere, and lose nothing."""
    events = parsed(format, [text])
    assert parsed(format, list(text)) == events
    assert raw(events) == text
    assert all(completed(events))
    return [(name, json.loads(given)) for name, given in calls(events)]


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_every_family_reads_every_form(format: str):
    for text in ONE_CALL:
        assert read(format, text) == [("get_weather", PARIS)], text
        assert content(parsed(format, [text])).strip() == "", text
    for text in TWO_CALLS:
        found = [("get_weather", PARIS), ("get", {"x": [1, None]})]
        assert read(format, text) == found, text
        assert content(parsed(format, [text])).strip() == "", text


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_text_before_and_after_stays_text(format: str):
    opened = "[THINK]" if format == "mistral-args" else "<think>"
    closed = opened[0] + "/" + opened[1:]
    for text in ONE_CALL:
        reasoned = f"{opened}Is it {text}?{closed}\n{text}\nThat is it."
        events = parsed(format, [reasoned])
        assert [name for name, _ in calls(events)] == ["get_weather"], text
        assert content(events).strip() == "That is it.", text
        assert reasoning(events) == f"Is it {text}?", text
        if text == PYTHON:
            continue
        events = parsed(format, [f"I look.\n\n{text}\nThat is it."])
        assert [name for name, _ in calls(events)] == ["get_weather"], text
        assert content(events) == "I look.That is it.", text


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_what_is_no_call_stays_text(format: str):
    for text in NO_CALLS:
        assert read(format, text) == [], text
        assert content(parsed(format, [text])) == text


def test_forms_that_break_off_lose_nothing():
    for text in (*ONE_CALL, *TWO_CALLS):
        for end in range(len(text)):
            events = parsed("hermes", [text[:end]])
            assert raw(events) == text[:end]
            assert len(calls(events)) <= 2
            for (_, given), whole in zip(calls(events), completed(events), strict=True):
                assert not whole or isinstance(json.loads(given), dict)


def test_literals_of_python_become_json():
    for literal, value in VALUES:
        assert read("hermes", f"get(x={literal})") == [("get", {"x": value})], literal
    assert read("hermes", "get()") == [("get", {})]


def test_nested_values_are_bounded():
    for opened in ('{"function": ', '{"type": 1, "function": ', '{"tool_calls": ['):
        assert read("hermes", opened * 1500) == []
    for bracket in "[({":
        deep = "get(x=" + (bracket if bracket != "{" else "{'a':") * 1500
        assert read("hermes", deep) == []
