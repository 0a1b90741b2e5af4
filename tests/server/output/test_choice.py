"""Grammars of tool calls accept good calls only, and the parser reads those."""

import json
import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword import InvalidRequest
from foreword.chats import functions_of
from foreword_server.output import REASONING, structural_tag
from foreword_server.output.formats import TOOL_FORMATS
from outputs import FUNCTIONS, calls, completed, content, parsed, raw

BRACKETS = ("[BRACKETS]", "[/BRACKETS]", "<tool_call>", "</tool_call>")
SPECIAL = ("[TOOL_CALLS]", "[ARGS]", *BRACKETS)
END = "</s>"
ENDINGS = ("</parameter>", "</arg_value>")
VOCABULARY = [END, *SPECIAL, *map(chr, range(32, 127)), *"\né｜▁", *ENDINGS]
CLOSING = {*'}]"/>,', *ENDINGS}
"""Tokens that end something, so that a random walk has an end."""
NAMED = {"type": "function", "function": {"name": "get_weather"}}
LOOSE = {"mode": "auto", "tools": ["get"]}
PARIS, EMPTY = '{"city": "Paris", "days": 3}', '{"a": [1]}'
NAMED_CALL = '{{"name": "{}", "arguments": {}}}'
PARTS = {
    "hermes": ("", f"<tool_call>\n{NAMED_CALL}\n</tool_call>", "\n", ""),
    "qwen-coder": (
        "",
        "<tool_call>\n<function={}>\n{}\n</function>\n</tool_call>",
        "\n",
        "",
    ),
    "glm": ("", "<tool_call>{}\n{}\n</tool_call>", "\n", ""),
    "llama": ("", '{{"name": "{}", "parameters": {}}}', "; ", ""),
    "mistral": ("[TOOL_CALLS][", NAMED_CALL, ", ", "]"),
    "mistral-args": ("", "[TOOL_CALLS]{}[ARGS]{}", "", ""),
    "generic": ('{{"tool_calls": [', NAMED_CALL, ", ", "]}}"),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "",
        "<｜tool▁calls▁end｜>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "phi": ("<|tool_call|>[", NAMED_CALL, ", ", "]<|/tool_call|>"),
    "granite": ("<|tool_call|>[", NAMED_CALL, ", ", "]"),
    "command": (
        "<|START_ACTION|>[",
        '{{"tool_call_id": "0", "tool_name": "{}", "parameters": {}}}',
        ", ",
        "]<|END_ACTION|>",
    ),
    "nemotron": ("<TOOLCALL>[", NAMED_CALL, ", ", "]</TOOLCALL>"),
}
"""What begins calls, a call, what is between two, and what ends them."""
ONE = {name: begin + call + end for name, (begin, call, _, end) in PARTS.items()}
TWO = {
    name: begin + call + between + call + end
    for name, (begin, call, between, end) in PARTS.items()
}
"""A call, and two, as models write them."""


@cache
def compiler() -> xgrammar.GrammarCompiler:
    tokens = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[0])
    return xgrammar.GrammarCompiler(tokens)


def matched(tag: object) -> xgrammar.GrammarMatcher:
    grammar = compiler().compile_structural_tag(json.dumps(tag))
    return xgrammar.GrammarMatcher(grammar)


def arguments(format: str, text: str) -> str:
    """JSON of arguments as the format writes it."""
    tags = {
        "qwen-coder": "<parameter={}>{}</parameter>",
        "glm": "<arg_key>{}</arg_key><arg_value>{}</arg_value>",
    }
    if format not in tags:
        return text
    given = json.loads(text).items()
    return "".join(
        tags[format].format(key, one if isinstance(one, str) else json.dumps(one))
        for key, one in given
    )


def filled(format: str, template: dict[str, str], *pairs: tuple[str, str]) -> str:
    return template[format].format(
        *(part for name, text in pairs for part in (name, arguments(format, text)))
    )


def accepts(
    format: str, text: str, choice: object = "required", **options: object
) -> bool:
    """Whether the grammar takes the text token by token, and then its end."""
    tag = structural_tag(TOOL_FORMATS[format], FUNCTIONS, choice, **options)
    matcher, special = matched(tag), options.get("special", ())
    while text:
        whole = next((one for one in special if text.startswith(one)), text[0])
        if not matcher.accept_token(VOCABULARY.index(whole)):
            return False
        text = text[len(whole) :]
    return matcher.accept_token(0)


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_good_calls_are_accepted_and_read_back(format: str):
    text = filled(format, ONE, ("get_weather", PARIS))
    for choice, special in product(("required", "auto", NAMED), ((), SPECIAL)):
        assert accepts(format, text, choice, special=special), (choice, special)
    events = parsed(format, [text])
    ((name, got),) = calls(events)
    assert (name, json.loads(got)) == ("get_weather", json.loads(PARIS))
    assert completed(events) == [True]
    assert content(events) == ""


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_a_second_call_is_accepted_where_it_may_follow(format: str, choice: str):
    text = filled(format, TWO, ("get_weather", PARIS), ("get", EMPTY))
    assert accepts(format, text, choice)
    assert not accepts(format, text, choice, parallel=False)
    twice = filled(format, TWO, *[("get_weather", PARIS)] * 2)
    assert not accepts(format, twice, NAMED)
    events = parsed(format, [text])
    found = [(name, json.loads(got)) for name, got in calls(events)]
    want = [("get_weather", json.loads(PARIS)), ("get", json.loads(EMPTY))]
    assert found == want
    assert completed(events) == [True, True]


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_calls_that_break_the_schema_are_refused(format: str):
    for name, text in (
        ("get_weather", '{"town": "Paris"}'),
        ("get_weather", '{"city": "Paris", "days": "x"}'),
        ("get_weather", '{"days": 3}'),
        ("get_wea", PARIS),
        ("other", PARIS),
    ):
        assert not accepts(format, filled(format, ONE, (name, text)))
        assert not accepts(format, filled(format, ONE, (name, text)), "auto")
    assert not accepts(format, filled(format, ONE, ("get", EMPTY)), NAMED)
    assert accepts(format, filled(format, ONE, ("get", EMPTY)), "required")


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_content_is_accepted_only_where_no_call_is_required(format: str):
    call = filled(format, ONE, ("get_weather", PARIS))
    assert accepts(format, "I know that.", "auto")
    assert accepts(format, "I look. " + call, "auto")
    assert content(parsed(format, ["I look. " + call])) == "I look."
    for text in ("I know that.", "I look. " + call, ""):
        assert not accepts(format, text)


ROWS = (
    ("required", "xml", ()),
    ("required", "mistral", SPECIAL),
    ("auto", "xml", SPECIAL),
    ("auto", "mistral", ()),
    (NAMED, "xml", ()),
    (NAMED, "mistral", SPECIAL),
)
"""Each pair of a choice, tags and special tokens once; `make test-all` has them all."""
GRID = tuple(product(("required", "auto", NAMED), REASONING, ((), SPECIAL)))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(ROWS, id="pairs"),
        pytest.param(GRID, id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_reasoning_may_come_first(format: str, rows: tuple):
    for row in rows:
        choice, tags, special = row
        call, found = filled(format, ONE, ("get_weather", PARIS)), REASONING[tags]
        options = {"reasoning": found, "special": special}
        body = f"Paris is meant. {{\n{found.close}\n\n{call}"
        assert accepts(format, body, choice, in_reasoning=True, **options), row
        assert accepts(format, found.open + body, choice, **options), row
        assert accepts(format, call, choice, **options), row
        other = f"Paris is meant.{found.close}other"
        assert not accepts(format, other, NAMED, in_reasoning=True, **options), row
        events = parsed(format, [body], reasoning=found, in_reasoning=True)
        assert [name for name, _ in calls(events)] == ["get_weather"], row
        assert raw(events) == body, row


def test_arguments_follow_the_schema_unless_strict_is_false():
    properties = {
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    for strict, other in ((True, False), (None, False), (False, True)):
        about = {"name": "get", "parameters": properties, "strict": strict}
        functions = functions_of([{"type": "function", "function": about}])
        tag = structural_tag(TOOL_FORMATS["llama"], functions, "required")
        for text, taken in (
            ('{"city": "Paris"}', True),
            ("[1]", False),
            ('{"a": 1}', other),
        ):
            call = ONE["llama"].format("get", text)
            assert matched(tag).accept_string(call) == taken


def test_no_value_may_hold_the_tag_that_ends_it():
    value = '<parameter=a>{{"b": "{}"}}</parameter>'
    for text, taken in (("</p>", True), ("</parameter>", False)):
        call = ONE["qwen-coder"].format("get", value.format(text))
        assert accepts("qwen-coder", call) == taken


def test_nothing_is_forced_where_nothing_must_be():
    loose = tuple(one for one in FUNCTIONS if not one.strict)
    assert structural_tag(TOOL_FORMATS["hermes"], loose, "auto") is None
    assert structural_tag(TOOL_FORMATS["hermes"], FUNCTIONS, "none") is None
    assert structural_tag(TOOL_FORMATS["hermes"], loose, "required") is not None


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_calls_that_are_begun_are_held_to_the_names(format: str):
    functions = tuple(replace(one, strict=None) for one in FUNCTIONS)
    tag = structural_tag(TOOL_FORMATS[format], functions, "auto", lazy=True)
    town = filled(format, ONE, ("get_weather", '{"town": "Paris"}'))
    assert matched(tag).accept_string("I know that.")
    assert matched(tag).accept_string(town)
    assert not matched(tag).accept_string(filled(format, ONE, ("other", PARIS)))


def named(name: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


def of(mode: object, *names: str) -> dict[str, object]:
    """The choice that allows some tools."""
    tools = {"mode": mode, "tools": [named(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": tools}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("any", "cannot read tool_choice"),
        (None, "cannot read tool_choice"),
        (1, "cannot read tool_choice"),
        ({"type": "function"}, "cannot read tool_choice"),
        (named(1), "cannot read tool_choice"),
        (named("other"), "no such tool among get_weather, get"),
        (of("any", "get"), "cannot read tool_choice: allowed_tools needs a mode"),
        (of("auto"), "and a list of tools"),
        ({"type": "allowed_tools"}, "cannot read tool_choice: allowed_tools needs"),
        (of("auto") | {"allowed_tools": LOOSE}, "cannot read tool_choice"),
        (of("required", "get", "other"), "'other': 'tools' has get_weather, get"),
    ],
)
def test_a_choice_that_cannot_be_read_is_refused(choice: object, words: str):
    with pytest.raises(InvalidRequest, match=words):
        structural_tag(TOOL_FORMATS["hermes"], FUNCTIONS, choice)


def test_no_call_is_forced_without_tools():
    with pytest.raises(InvalidRequest, match="cannot force a tool call"):
        structural_tag(TOOL_FORMATS["hermes"], (), "required")


@pytest.mark.parametrize("mode", ["required", "auto"])
@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_only_the_allowed_tools_are_called(format: str, mode: str):
    weather = filled(format, ONE, ("get_weather", PARIS))
    get = filled(format, ONE, ("get", EMPTY))
    assert accepts(format, weather, of(mode, "get_weather"))
    assert not accepts(format, get, of(mode, "get_weather"))
    assert accepts(format, get, of(mode, "get", "get_weather"))
    assert accepts(format, "Hi.", of(mode, "get")) == (mode == "auto")


@pytest.mark.sample(5)
@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("format", TOOL_FORMATS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_grammar_output_is_read_as_calls(format: str, choice: str, seed: int):
    """A random walk through the allowed tokens, from a call where none is required."""
    draw = random.Random(seed)
    tag = structural_tag(TOOL_FORMATS[format], FUNCTIONS, choice)
    matcher = matched(tag)
    mask = xgrammar.allocate_token_bitmask(1, len(VOCABULARY))
    text = "" if choice == "required" else "Hi. " + begun(format)
    assert matcher.accept_string(text)
    for _ in range(240):
        matcher.fill_next_token_bitmask(mask)
        bits = [int(mask[0, i // 32]) >> (i % 32) & 1 for i in range(len(VOCABULARY))]
        allowed = [i for i, bit in enumerate(bits) if bit]
        common = [i for i in allowed if VOCABULARY[i] in CLOSING] or allowed
        ends = 0 in allowed and draw.random() < 0.3
        token = 0 if ends else draw.choice(draw.choice((allowed, common)))
        matcher.accept_token(token)
        if token == 0:
            events = parsed(format, [text])
            assert raw(events) == text
            assert calls(events)
            assert all(completed(events))
            if choice == "required":
                assert content(events).strip() == ""
            return
        text += VOCABULARY[token]


def begun(format: str) -> str:
    return ONE[format].replace("{}", "get", 1).split("{}")[0].replace("{{", "{")
