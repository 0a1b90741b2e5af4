"""Outputs become the same events wherever they are cut, with every character."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foreword_server.output import (
    REASONING,
    Event,
    OutputParser,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    ToolCallEnd,
    named_format,
)
from foreword_server.output.formats import TOOL_FORMATS
from outputs import (
    FUNCTIONS,
    OUTPUTS,
    Output,
    calls,
    completed,
    content,
    parsed,
    parser,
    raw,
    reasoning,
)

WORDS = (
    *r"""
    <tool_call> </tool_call> <function=get> <function=get_weather> </function>
    <parameter=city> <parameter=x> </parameter> <|python_tag|> [TOOL_CALLS] [ARGS]
    [CALL_ID] get get_weather {"name":"get_weather","parameters": ]} ```json
    ```tool_code ``` <tools> </tools> <arg_key>a</arg_key><arg_value> </arg_value>
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜>
    <|tool_call_begin|>functions.get:0<|tool_call_argument_begin|> <|tool_call_end|>
    get( print( x= ( ) ' <think> </think> [THINK] [/THINK] { } [ ] " , ; : < tool é
    1 -0. true nul
    """.split(),
    '{"name": "get", "arguments": ',
    '{"arguments": {"a": 1}, "name": "get"}',
    '{"tool_calls": [',
    "'''a\\n",
    '{"a": 1}',
    '{"a": "b\\',
    " ",
    "\n",
    "\\",
    "\x00",
    "\ud800",
)
"""Pieces of which outputs of all formats are made."""
texts = st.lists(
    st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=24
).map("".join)


def cut(text: str, places: list[int]) -> list[str]:
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


def check(events: list[Event]) -> None:
    """Calls are numbered, begun and ended once, with a JSON object of a known tool."""
    open_call, count = None, 0
    for event in events:
        if isinstance(event, ToolCall):
            assert (open_call, event.index) == (None, count)
            assert event.name in {function.name for function in FUNCTIONS}
            open_call = count
        elif isinstance(event, ToolArguments):
            assert event.index == open_call
        elif isinstance(event, ToolCallEnd):
            assert event.index == open_call
            open_call, count = None, count + 1
    assert open_call is None
    for (_, arguments), complete in zip(calls(events), completed(events), strict=True):
        if complete:
            assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    "output", OUTPUTS, ids=lambda one: f"{one.format}: {one.text[:40]}"
)
def test_an_output_is_read_the_same_cut_anywhere(output: Output):
    whole = parsed(output.format, [output.text])
    assert content(whole) == output.content
    assert calls(whole) == output.calls
    assert reasoning(whole) == output.reasoning
    assert raw(whole) == output.text
    check(whole)
    for place in range(len(output.text) + 1):
        assert (
            parsed(output.format, [output.text[:place], output.text[place:]]) == whole
        )
    assert parsed(output.format, list(output.text)) == whole


@given(st.sampled_from(OUTPUTS), st.lists(st.integers(0), max_size=12))
def test_an_output_is_read_the_same_in_random_pieces(output: Output, places: list[int]):
    assert parsed(output.format, cut(output.text, places)) == parsed(
        output.format, [output.text]
    )


@pytest.mark.parametrize("format", TOOL_FORMATS)
@settings(max_examples=25)
@given(text=texts, places=st.lists(st.integers(0), max_size=6), opened=st.booleans())
@example('<tool_call>{"name": "get", "arguments": {"a" 1}}</tool_call>', [5], False)
@example('[TOOL_CALLS][{"name": "get", "arguments": {}}, {"name', [], True)
@example("<tool_call><function=get><parameter=x>" + "[" * 1500, [], False)
@example('{"name": "get", "arguments": {"a": ' + "[" * 1500, [], False)
def test_any_text_is_read_and_none_is_lost(
    format: str, text: str, places: list[int], opened: bool
):
    whole = parsed(format, [text], in_reasoning=opened)
    assert raw(whole) == text
    check(whole)
    assert parsed(format, cut(text, places), in_reasoning=opened) == whole
    only = parsed(format, cut(text, places), in_reasoning=opened, parallel=False)
    assert text.startswith(raw(only))
    assert calls(only) == calls(whole)[:1]


@pytest.mark.parametrize(
    "output", OUTPUTS, ids=lambda one: f"{one.format}: {one.text[:40]}"
)
def test_an_output_that_breaks_off_loses_nothing(output: Output):
    for end in range(len(output.text)):
        events = parsed(output.format, [output.text[:end]])
        assert raw(events) == output.text[:end]
        check(events)
        assert [name for name, _ in calls(events)] == [
            name for name, _ in output.calls
        ][: len(calls(events))]
        for (_, got), (_, whole) in zip(calls(events), output.calls, strict=False):
            assert whole.startswith(got) or completed(events)[-1] is False


def test_arguments_that_break_off_are_incomplete():
    events = parsed("hermes", ['<tool_call>{"name": "get", "arguments": {"a": [1, 2'])
    assert calls(events) == (("get", '{"a": [1, 2'),)
    assert completed(events) == [False]
    assert content(events) == ""


def test_invalid_arguments_end_the_call():
    events = parsed(
        "hermes", ['<tool_call>{"name": "get", "arguments": {"a": 1] </tool_call> Hi']
    )
    assert calls(events) == (("get", '{"a": 1'),)
    assert completed(events) == [False]
    assert content(events) == "] </tool_call> Hi"


def test_rest_of_a_cut_frame_is_no_content():
    for text, rest in (
        ('<tool_call>{"name": "get", "arguments": {}}\n</tool', ""),
        ('<tool_call>{"name": "get", "arguments": {} ', ""),
        ('<tool_call>{"name": "get", "arguments": {}}\n</tool_call>\n<tool', "<tool"),
        ('<tool_call>{"name": "get", "arguments": {}}\n</too late', "\n</too late"),
    ):
        events = parsed("hermes", [text])
        assert (content(events), completed(events)) == (rest, [True])
    events = parsed(
        "mistral", ['[TOOL_CALLS][{"name": "get", "arguments": {}}, {"name']
    )
    assert content(events) == ', {"name'


def test_a_call_after_a_broken_one_is_read():
    good = '<tool_call>{"name": "get", "arguments": {}}</tool_call>'
    for broken in (
        "<tool_call>",
        '<tool_call>{"name": "get", "arguments": {"a": ',
        '<tool_call>{"name": ',
    ):
        events = parsed("hermes", [broken + good])
        assert calls(events)[-1] == ("get", "{}")
        assert completed(events)[-1]


def test_text_that_may_begin_a_tag_is_held_back():
    reading = parser("hermes")
    seen = [
        (piece, [event.text for event in reading.push(piece)])
        for piece in ("Hi", " ", "you <", "to", "ol", "box> <")
    ]
    assert seen == [
        ("Hi", ["Hi"]),
        (" ", []),
        ("you <", [" you"]),
        ("to", []),
        ("ol", []),
        ("box> <", [" <toolbox>"]),
    ]
    assert reading.finish() == [Text(" <")]
    assert parser(None).push("Hi <tool_call>") == [Text("Hi <tool_call>")]


def test_arguments_are_streamed_as_they_arrive():
    reading = parser("llama")
    assert reading.push('{"name": "get", "par') == []
    begun = reading.push('ameters": {"te')
    assert begun[1:] == [ToolCall(0, "0", "get"), ToolArguments(0, '{"te', '{"te')]
    assert reading.push('xt": "a b') == [ToolArguments(0, 'xt": "a b', 'xt": "a b')]
    assert reading.push('c"}')[-1] == ToolCallEnd(0, complete=True)
    coder = parser("qwen-coder")
    begun = coder.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nSaint-")
    assert (
        "".join(one.json for one in begun if isinstance(one, ToolArguments))
        == '{"city": "Saint-'
    )
    assert [one.json for one in coder.push("Denis")] == ["Denis"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("because\n</think>\n\nHi", ("because", "Hi")),
        ("\nnever ended <tool_call>", ("never ended <tool_call>", "")),
        ("</think>Hi", ("", "Hi")),
        ("a</think>Hi<think>b</think> you", ("ab", "Hiyou")),
    ],
)
def test_reasoning_that_the_prompt_opened(text: str, expected: tuple[str, str]):
    events = parsed("hermes", list(text), in_reasoning=True)
    assert (reasoning(events), content(events)) == expected
    assert raw(events) == text


def test_reasoning_is_content_without_its_tags():
    text = "<think>a</think>b"
    assert content(parsed(None, [text], reasoning=None)) == text
    assert content(parsed(None, [text], reasoning=None, in_reasoning=True)) == text
    assert content(parsed(None, ["a</think>b"])) == "a</think>b"
    assert content(parsed(None, ["a <think>b"])) == "a"
    assert parsed(None, ["<think>b"])[-1] == Reasoning("b")


def test_without_tools_a_call_is_content():
    text = '<tool_call>{"name": "get", "arguments": {}}</tool_call>'
    assert content(parsed("hermes", [text], functions=())) == text
    assert content(parsed(None, [text])) == text


@pytest.mark.parametrize(
    "output",
    [one for one in OUTPUTS if len(one.calls) == 2],
    ids=lambda one: one.format,
)
def test_only_one_call_is_read_if_others_may_not_follow(output: Output):
    reading = parser(output.format, parallel=False)
    events = [event for character in output.text for event in reading.push(character)]
    assert reading.stopped
    assert calls(events) == output.calls[:1]
    assert isinstance(events[-1], ToolCallEnd)
    assert reading.finish() == []


def test_ids_are_new_and_safe_in_urls():
    ids = []
    for _ in range(2):
        reading = OutputParser(
            named_format("llama"), FUNCTIONS, reasoning=REASONING["xml"]
        )
        events = reading.push(
            '{"name": "get", "parameters": {}};{"name": "get", "parameters": {}}'
        )
        ids += [event.id for event in events if isinstance(event, ToolCall)]
    assert len(set(ids)) == 4
    assert all(re.fullmatch(r"call_[A-Za-z0-9_-]{24}", one) for one in ids)
