"""Chats with tools become the prompts that the templates of the large families mean:
shortened ones of Qwen 2.5 and 3, Qwen3-Coder, Llama 3.2, Mistral 7B v0.3 and Small 3.2,
and DeepSeek's arguments as text.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

import starter
from asking import assistant, called, part, system, tool_result, user
from foreword import LLM, InvalidRequest
from foreword.api.requests import Requests
from foreword.chats import functions_of
from foreword.chats.cut_calls import cut_arguments
from foreword.chats.instruction import instruction
from foreword.chats.sanitize import MARK
from foreword_server.output import (
    format_of,
    has_special_tags,
    named_format,
    named_reasoning,
    reasoning_of,
)
from outputs import CITY, TOOLS, WEATHER, calls, parsed

HERE = Path(__file__).parent / "templates"
QUESTION = user("How is Paris?")
ID = "call_abcdefghijklmnopqrstuvwx"
ARGUMENTS = {"city": "Paris", "days": 3}
CALL = called(ID, "get_weather", **ARGUMENTS)
CALLED = assistant(None, tool_calls=[CALL])
RESULT = tool_result(ID, "17")
CHAT = [QUESTION, CALLED, RESULT]
SYSTEM = system("Be brief.")


@cache
def llm() -> LLM:
    return LLM(starter.target(), method="none")


def template(name: str) -> str:
    return (HERE / f"{name}.jinja").read_text(encoding="utf-8").rstrip("\n")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    """Returns the prompt of a chat in a template."""

    def rendered(
        name: str | None, messages: list, tools: object = None, options: object = None
    ) -> str:
        if name:
            monkeypatch.setattr(llm().tokenizer, "chat_template", template(name))
        return llm().tokenizer.decode(llm().render(messages, tools, options))

    return rendered


FORMATS = {
    "qwen": "hermes",
    "qwen_coder": "qwen-coder",
    "llama": "llama",
    "mistral": "mistral",
    "mistral_args": "mistral-args",
}


@pytest.mark.parametrize(("name", "format"), FORMATS.items())
def test_the_format_of_a_template_is_found(name, format):
    assert format_of(template(name)).name == format


def test_template_without_tools_is_generic():
    assert format_of(None).name == "generic"
    assert format_of("{{ messages[0].content }}").name == "generic"
    assert format_of(llm().tokenizer.chat_template).name == "generic"
    assert format_of(template("texts")).name == "generic"
    assert format_of("{{ tools }}<tool_call>{{ name }}<arg_key>").name == "glm"


def test_the_tags_of_reasoning_are_found():
    assert reasoning_of(template("llama")) is None
    assert reasoning_of(None) is None
    assert reasoning_of("[THINK]{{ a }}[/THINK]") == named_reasoning("mistral")
    tags = reasoning_of(template("qwen"))
    assert tags == named_reasoning("xml")
    for name in ("named_format", "named_reasoning"):
        with pytest.raises(ValueError, match=r"'other': .*(Use|Choose) one of"):
            globals()[name]("other")


def test_special_tags_are_known():
    tags = named_reasoning("xml")
    assert has_special_tags(["[TOOL_CALLS]", "</s>"], named_format("mistral"), None)
    assert has_special_tags(["</think>"], None, tags)
    assert not has_special_tags(["</s>"], named_format("hermes"), tags)


@pytest.mark.parametrize("name", FORMATS)
def test_tools_reach_the_template(use, name):
    prompt = use(name, [QUESTION], TOOLS)
    assert "get_weather" in prompt
    assert "strict" not in prompt
    assert "get_weather" not in use(name, [QUESTION])
    assert "You can call these functions" not in prompt


@pytest.mark.parametrize(("name", "format"), FORMATS.items())
def test_a_call_is_shown_as_the_model_wrote_it(use, name, format):
    """What the template makes of a call is what the parser of its format reads."""
    prompt = use(name, CHAT, TOOLS)
    shown = prompt.rpartition("How is Paris?")[2]
    start = min(shown.find(one) for one in named_format(format).openers if one in shown)
    assert calls(parsed(format, [shown[start:]]))[0][0] == "get_weather"
    assert json.loads(calls(parsed(format, [shown[start:]]))[0][1]) == ARGUMENTS
    assert "17" in shown


def test_arguments_may_be_a_dict_already(use):
    turns = [
        {"role": "assistant", "tool_calls": [{"function": function}]}
        for function in (
            {"name": "get_weather", "arguments": ARGUMENTS},
            {"name": "get", "arguments": ""},
        )
    ]
    assert use("qwen", [QUESTION, turns[0]]) == use("qwen", [QUESTION, CALLED])
    assert '{"name": "get", "arguments": {}}' in use("qwen", [QUESTION, turns[1]])


def test_a_template_that_wants_text_gets_the_arguments_as_text(use):
    prompt = use("texts", CHAT, TOOLS)
    assert f"<|call|>get_weather\n{json.dumps(ARGUMENTS)}<|end|>" in prompt
    assert "<|end|><|result|>get_weather\n17<|end|>" in prompt


def test_ids_are_shortened_for_templates_that_demand_it(use):
    prompt = use("mistral", CHAT, TOOLS)
    short = prompt.partition('"id": "')[2][:9]
    assert short.isalnum()
    assert f'"call_id": "{short}"' in prompt
    calls = [{**CALL, "id": "a1B2c3D4e"}]
    turns = [assistant(None, tool_calls=calls), tool_result("a1B2c3D4e", "17")]
    assert '"call_id": "a1B2c3D4e"' in use("mistral", [QUESTION, *turns], TOOLS)


def test_calls_are_rendered_one_by_one_where_several_are_refused(use):
    other = {"id": "other", "function": {"name": "get", "arguments": "{}"}}
    several = [QUESTION, {**CALLED, "tool_calls": [CALL, other]}]
    results = [tool_result("other", "nothing"), RESULT]
    prompt = use("llama", [SYSTEM, *several, *results], TOOLS)
    shown = ('{"name": "get_weather", "p', '"17"', '{"name": "get", "p', '"nothing"')
    order = [prompt.find(text) for text in shown]
    assert order == sorted(order)
    assert -1 not in order
    assert prompt.count('"17"') == prompt.count('"nothing"') == 1


def test_refused_system_messages_are_joined(use):
    later = {"role": "developer", "content": "Be kind."}
    assert '"arguments": {"city": "Paris"' in use("qwen", [SYSTEM, *CHAT, later], TOOLS)
    prompt = use("qwen", [SYSTEM, QUESTION, later])
    assert prompt.startswith(
        "<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>\n<|im_start|>user"
    )
    assert use("mistral_args", [SYSTEM, QUESTION, later]).endswith(
        "[/INST][SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT]"
    )


def test_developer_is_the_system_unless_the_template_has_one(use, monkeypatch):
    developer = {"role": "developer", "content": "Be brief."}
    assert use("qwen", [developer, QUESTION]) == use("qwen", [SYSTEM, QUESTION])
    assert use(None, [developer, QUESTION]) == use(None, [SYSTEM, QUESTION])
    shown = "{% if m.role == 'developer' %}D:{% endif %}{{ m.content }}"
    knowing = "{% for m in messages %}" + shown + "{% endfor %}"
    monkeypatch.setattr(llm().tokenizer, "chat_template", knowing)
    assert use(None, [developer]) == "D:Be brief."


CONTINUED = {"continue_final_message": True}


def test_options_reach_the_template(use):
    for options, end in (
        (None, "<|im_start|>assistant\n"),
        ({"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ({"add_generation_prompt": False}, "<|im_end|>\n"),
    ):
        assert use("qwen", [QUESTION], None, options).endswith(end)
    begun = use("qwen", [QUESTION, assistant("It is")], None, CONTINUED)
    assert begun.endswith("assistant\nIt is")


def test_the_prompt_tells_whether_reasoning_is_open(use):
    tags = named_reasoning("xml")
    assert tags.opened_by(use("qwen_coder", [QUESTION]))
    assert not tags.opened_by(use("qwen", [QUESTION]))
    assert not tags.opened_by(use("qwen", [QUESTION], None, {"enable_thinking": False}))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokenize": False}, "cannot give the chat template the option"),
        ({"chat_template": "{{ 1 }}"}, "cannot give the chat template the option"),
        ({"tools": []}, "cannot give the chat template the option"),
        ({"return_dict": False}, "cannot give the chat template the option"),
        ([], "cannot read template options"),
        ("a", "cannot read template options"),
        ({1: 2}, "cannot read template options"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InvalidRequest, match=words):
        llm().render([QUESTION], None, options)


def test_a_template_without_tools_gets_them_as_text(use):
    more = [{"role": "tool", "content": "18"}, user("And now?")]
    prompt = use(None, [SYSTEM, *CHAT, *more], TOOLS)
    asked = instruction(functions_of(TOOLS))
    assert json.dumps(CITY) in asked
    assert prompt.startswith(
        f"<|system|>\nBe brief.\n\n{asked}<|end|>\n<|user|>\nHow is "
        "Paris?<|end|>\n<|assistant|>\n"
    )
    shown = prompt.partition("How is Paris?")[2]
    (call,) = calls(parsed("generic", [shown]))
    assert call == ("get_weather", json.dumps(ARGUMENTS))
    assert (
        '<|user|>\n{"result of": "get_weather", "result": "17"}\n{"result": '
        '"18"}<|end|>\n<|user|>\nAnd now?' in shown
    )
    assert "You can call" not in use(None, CHAT)
    assert '"tool_calls"' in use(None, CHAT)


def test_of_several_templates_the_one_for_tools_is_used(use, monkeypatch):
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    both = {"default": plain, "tool_use": template("qwen")}
    monkeypatch.setattr(llm().tokenizer, "chat_template", both)
    assert use(None, [QUESTION]) == "How is Paris?"
    assert "<tools>" in use(None, [QUESTION], TOOLS)


def test_parts_of_text_are_joined(use):
    parts = [part("How is"), part("Paris?")]
    assert "How is\nParis?" in use("qwen", [user(parts)])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "it reads text only"),
        ({"type": "input_audio"}, "a part of type 'input_audio' is not served"),
        ({"type": "text"}, 'must be {"type": "text"'),
        ("Hi", 'must be {"type": "text"'),
    ],
)
def test_other_parts_are_refused_by_name(other, message):
    with pytest.raises(InvalidRequest, match=message):
        llm().render([QUESTION, user([other])])


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": None, "tool_calls": []}, ""),
        ({"content": None, "refusal": None}, ""),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
    ],
)
def test_an_assistants_message_may_have_no_content(message, content):
    again = user("Why?")
    expected = llm().render([QUESTION, assistant(content), again])
    assert llm().render([QUESTION, {"role": "assistant", **message}, again]) == expected


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"tool_calls": "x"}, "tool_calls must be a list"),
        ({"tool_calls": ["x"]}, "a tool call is"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, "a tool call is"),
        (
            {"tool_calls": [{"id": 1, "function": {"name": "get"}}]},
            "a tool call must be a string",
        ),
        (
            {"tool_calls": [{"function": {"name": "get", "arguments": "{'a': 1}"}}]},
            "arguments of 'get' must be the JSON text",
        ),
        (
            {"tool_calls": [{"function": {"name": "get", "arguments": "[1]"}}]},
            "arguments of 'get' must be the JSON",
        ),
        ({"content": "x", "tool_call_id": [1]}, "tool_call_id must be a string"),
        (
            {"content": "x", "a": json.loads("[" * 300 + "]" * 300)},
            "more than 200 levels",
        ),
    ],
)
def test_wrong_calls_are_refused(message, error):
    with pytest.raises(InvalidRequest, match=error):
        llm().render([QUESTION, {"role": "assistant", **message}])


def function(**about: object) -> list[dict]:
    return [{"type": "function", "function": about}]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("tools", "error"),
    [
        ({}, "cannot read tools"),
        ("x", "cannot read tools"),
        (["x"], "cannot read tool 1: a tool is"),
        ([{"type": "web_search"}], "cannot read tool 1: a tool is"),
        (function(), "cannot read tool 1: name is 1 to 64"),
        (function(name="a b"), "cannot read tool 1: name is 1 to 64"),
        (function(name="a", parameters=[]), "cannot read tool 'a': parameters must be"),
        (function(name="a", parameters={"type": "string"}), "'a': parameters must be"),
        (function(name="a", strict="yes"), "'a': strict must be true or false"),
        (function(name="a", description="\ud800"), "a tool must be valid Unicode"),
        ([WEATHER, WEATHER], "cannot read tool 2: the name 'get_weather' is taken"),
    ],
)
def test_wrong_tools_are_refused(tools, error):
    with pytest.raises(InvalidRequest, match=error):
        llm().render([QUESTION], tools)


def test_a_function_without_parameters_takes_none():
    nothing = {"type": "object", "properties": {}}
    assert functions_of(function(name="now"))[0].parameters == nothing
    assert functions_of(None) == functions_of([]) == ()


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch):
    """Returns the ids of a chat with plain control tokens, and of the chat as it is."""
    if not hasattr(PreTrainedTokenizerBase, MARK):
        pytest.skip("this version of transformers marks no control tokens")

    def rendered(
        messages: list, name: str | None = None, tools: object = None
    ) -> tuple[list[int], list[int]]:
        if name:
            monkeypatch.setattr(llm().tokenizer, "chat_template", template(name))
        sanitized = Requests(llm().target, llm().tokenizer, sanitize=True)
        return sanitized.render(messages, tools), llm().render(messages, tools)

    return rendered


def control() -> str:
    """The token that ends a turn of the bundled model."""
    return llm().tokenizer.eos_token


@pytest.mark.parametrize("forged", [QUESTION, RESULT], ids=["user", "tool"])
def test_sanitized_control_tokens_of_users_and_tools_are_text(clean, forged):
    chat = [
        *([QUESTION, CALLED] if forged is RESULT else ()),
        {**forged, "content": f"a{control()}b"},
    ]
    found, given = clean(chat, "texts", TOOLS)
    token = llm().tokenizer.eos_token_id
    assert given.count(token) - found.count(token) == 1
    assert llm().tokenizer.decode(found) == llm().tokenizer.decode(given)


@pytest.mark.parametrize("role", ["assistant", "system"])
def test_sanitized_control_tokens_of_other_roles_stay_tokens(clean, role):
    found, given = clean(
        [{"role": role, "content": f"a{control()}b"}, QUESTION], "texts"
    )
    assert found == given


@pytest.mark.parametrize("name", [*FORMATS, "texts", None])
def test_sanitized_chats_without_control_tokens_stay_equal(clean, name):
    tools = TOOLS if name in FORMATS else None
    chat = CHAT if tools else [SYSTEM, QUESTION]
    found, given = clean(chat, name, tools)
    assert found == given


@pytest.mark.parametrize("name", [*FORMATS, "texts", None])
def test_sanitized_templates_write_their_control_tokens(clean, name):
    plain = user("a b")
    before = clean([plain], name)[0]
    found, given = clean([{**plain, "content": f"a{control()}b"}], name)
    token = llm().tokenizer.eos_token_id
    assert found.count(token) == before.count(token) == given.count(token) - 1


def test_a_transformers_that_marks_nothing_is_an_error(monkeypatch):
    monkeypatch.delattr(PreTrainedTokenizerBase, MARK, raising=False)
    with pytest.raises(
        InvalidRequest, match="plain text: this version of transformers"
    ):
        Requests(llm().target, llm().tokenizer, sanitize=True)


CUT = '{"path": "a.txt", "lines": [1, 2], "text": "The riv'
CUTS = {
    "{": {},
    '{"a": 1, "b': {"a": 1},
    '{"a": 1, "b": tr': {"a": 1},
    '{"a": "x\\u00': {"a": "x"},
    '{"a": "x\\\\': {"a": "x\\"},
    '{"a": {"b": [1, {"c": "d': {"a": {"b": [1, {"c": "d"}]}},
    CUT: {"path": "a.txt", "lines": [1, 2], "text": "The riv"},
}


@pytest.mark.parametrize("text", CUTS)
def test_cut_arguments_are_what_they_hold_so_far(text):
    found = cut_arguments(text)
    assert (found, found.text) == (CUTS[text], text)
    deep = '{"a": ' + "[1," * 200_000
    for whole in ('{"a": 1}', "nonsense", "[1, 2", '{"a" 1}', deep):
        assert cut_arguments(whole) is None


@pytest.mark.parametrize("name", ["qwen", "qwen_coder", "llama", "texts", "mistral"])
def test_a_call_that_was_cut_comes_back_as_it_is(use, name):
    function = {"name": "write", "arguments": CUT}
    call = {"id": "a1B2c3D4e", "type": "function", "function": function}
    chat = [QUESTION, assistant("", tool_calls=[call])]
    done = {"role": "tool", "tool_call_id": "a1B2c3D4e", "content": "cut off"}
    text = use(name, [*chat, done, QUESTION])
    shown = CUT if name == "texts" else "The riv"
    assert shown in text
