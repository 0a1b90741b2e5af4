"""Tool calls and constrained answers over HTTP, with the clients that use them."""

import json
from typing import Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from asking import (
    MODEL,
    assistant,
    called,
    chat,
    closed,
    respond,
    speculation,
    tool,
    tool_result,
    user,
)
from requested import CITY, TOOLS

QUESTION = [user("How is the weather in Paris?")]
NAMED = tool("get_time")
ASK = dict(messages=QUESTION, tools=TOOLS, max_tokens=200, seed=1)


SCHEMA = closed(answer={"enum": ["yes", "no"]})


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


class Weather(BaseModel):
    """What the weather is."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


def test_a_forced_call_is_a_call(client):
    more = {"extra_body": {"speculative": {"nodes": 6}}}
    whole = chat(client, **ASK, tool_choice=NAMED, **more)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_time"
    assert set(json.loads(call.function.arguments)) == {"city", "days"}
    assert speculation(whole)["num_accepted_draft_tokens"] > 0
    plain = chat(client, **ASK, model=f"{MODEL}:none", tool_choice=NAMED)
    assert plain.choices[0].message.tool_calls[0].function == call.function


def test_call_that_is_cut_ends_by_length(client):
    whole = chat(client, **ASK, tool_choice=NAMED)
    length = whole.usage.completion_tokens - 4
    cut = chat(client, **ASK | {"max_tokens": length}, tool_choice=NAMED)
    assert cut.choices[0].message.tool_calls[0].function.name == "get_time"
    assert cut.choices[0].finish_reason == "length"


def test_a_streamed_call_names_itself_once(client):
    whole = chat(client, **ASK, tool_choice=NAMED)
    stream = chat(client, **ASK, tool_choice=NAMED, stream=True)
    chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.id] == ["get_time"]
    assert all(call.index == 0 for call in calls)
    assert not any(call.id or call.function.name for call in calls[1:])
    joined = "".join(call.function.arguments for call in calls)
    assert joined == whole.choices[0].message.tool_calls[0].function.arguments
    assert chunks[-1].finish_reason == "tool_calls"


def test_one_forced_call_unless_more_are_wished(client):
    ask = ASK | dict(tool_choice="required", seed=13)
    counts = []
    for more in ({}, {"parallel_tool_calls": False}, {"parallel_tool_calls": True}):
        choice = chat(client, **ask, **more).choices[0]
        counts.append(len(choice.message.tool_calls))
        assert choice.finish_reason == "tool_calls"
    assert counts == [1, 1, 3]


@pytest.mark.parametrize(("parallel", "count"), [(True, 2), (False, 1)])
def test_generation_ends_with_the_only_call_that_is_allowed(server, parallel, count):
    """The model would write two calls: the parser ends the answer after one."""
    call = '{\\"name\\": \\"get_time\\", \\"arguments\\": {}}'
    grammar = f'root ::= "{{\\"tool_calls\\": [{call}, {call}]}}"'
    ask = ASK | dict(parallel_tool_calls=parallel, guided_grammar=grammar)
    answer = server.post("/v1/chat/completions", **ask)
    assert len(answer["choices"][0]["message"]["tool_calls"]) == count
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    both = server.post("/v1/chat/completions", **ask | {"parallel_tool_calls": True})
    lengths = [one["usage"]["completion_tokens"] for one in (answer, both)]
    assert (lengths[0] < lengths[1]) == (not parallel)
    with server.http.stream(
        "POST", "/v1/chat/completions", json=ask | {"stream": True}
    ) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert sum('"name":"get_time"' in line for line in lines) == count
    assert lines[-1] == "data: [DONE]"
    assert '"finish_reason":"tool_calls"' in lines[-2]


def test_results_of_tools_go_back_to_the_model(client):
    calls = [called("call_1", "get_weather", city="Paris")]
    turns = [assistant(None, tool_calls=calls), tool_result("call_1", "sunny")]
    ask = dict(messages=[*QUESTION, *turns], tools=TOOLS, max_tokens=12)
    got = chat(client, **ask, tool_choice="none")
    assert got.choices[0].message.tool_calls is None


def test_parse_gives_an_object_of_the_schema(client):
    got = client.chat.completions.parse(
        model="foreword-family",
        messages=QUESTION,
        response_format=Weather,
        max_tokens=200,
        temperature=0,
        extra_body={"speculative": {"nodes": 6}},
    )
    assert got.choices[0].finish_reason == "stop"
    assert isinstance(got.choices[0].message.parsed, Weather)
    assert speculation(got)["num_accepted_draft_tokens"] > 0
    parsed = client.responses.parse(
        model="foreword-family",
        input="How is the weather?",
        text_format=Weather,
        max_output_tokens=200,
        temperature=0,
    )
    assert isinstance(parsed.output_parsed, Weather)


@pytest.mark.parametrize(
    "extra",
    [
        {"guided_choice": ["yes", "no"]},
        {"guided_regex": "yes|no"},
        {"guided_grammar": 'root ::= "yes" | "no"'},
        {"structured_outputs": {"choice": ["yes", "no"]}},
    ],
)
def test_the_constraints_of_vllm_are_kept(client, extra):
    got = chat(client, QUESTION, max_tokens=9, extra_body=extra)
    assert got.choices[0].message.content in ("yes", "no")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"extra_body": {"guided_regex": "("}}, "regex"),
        ({"response_format": form({"type": 5})}, "schema"),
        ({"response_format": {"type": "xml"}}, "xml"),
        ({"tools": TOOLS, "tool_choice": tool("nothing")}, "tool"),
        ({"tools": [{"type": "function"}]}, "tool 1"),
    ],
)
def test_a_bad_constraint_is_refused(client, fields, named):
    with pytest.raises(openai.BadRequestError, match=named):
        chat(client, QUESTION, max_tokens=4, **fields)


def test_calls_in_anthropics_dialect(server):
    tools = [
        {"name": "get_time", "description": "Time", "input_schema": CITY},
        {"type": "web_search_1", "name": "web"},
    ]
    more = dict(model=MODEL, max_tokens=200, tools=tools, extra_body={"seed": 1})
    choice = {"type": "tool", "name": "get_time"}
    ask = dict(messages=QUESTION, tool_choice=choice, **more)
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0
    ) as client:
        whole = client.messages.create(**ask)
        with client.messages.stream(**ask) as stream:
            streamed = stream.get_final_message()
        block = whole.content[-1]
        assert whole.stop_reason == streamed.stop_reason == "tool_use"
        assert (block.type, block.name) == ("tool_use", "get_time")
        assert set(block.input) == {"city", "days"}
        assert streamed.content[-1].input == block.input
        use = {"type": "tool_use", "id": block.id, "name": "get_time", "input": {}}
        noon = {"type": "tool_result", "tool_use_id": block.id, "content": "noon"}
        turns = [*QUESTION, assistant([use]), user([noon])]
        ask = dict(messages=turns, tool_choice={"type": "none"}, **more)
        answer = client.messages.create(**ask)
        assert answer.stop_reason in ("end_turn", "max_tokens")


def test_calls_in_the_dialect_of_responses(client):
    tools = [{"type": "function", "name": "get_time", "parameters": CITY}]
    more = dict(tools=tools, max_output_tokens=200, extra_body={"seed": 1})
    asked = "What time is it?"
    ask = more | dict(tool_choice="required", parallel_tool_calls=False)
    whole = respond(client, asked, **ask)
    call = whole.output[-1]
    assert (call.type, call.name) == ("function_call", "get_time")
    assert set(json.loads(call.arguments)) == {"city", "days"}
    events = list(respond(client, asked, **ask, stream=True))
    kind = "response.function_call_arguments.delta"
    deltas = [event.delta for event in events if event.type == kind]
    assert "".join(deltas) == call.arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    items = [user(asked), call.model_dump(), output]
    answer = respond(client, items, **ask | {"tool_choice": "none"})
    assert answer.output[0].type == "message"


@pytest.mark.parametrize("most", [1, 4, 7, 10, 14])
def test_a_forced_call_that_is_cut_is_never_content(server, most):
    ask = ASK | dict(tool_choice="required", max_tokens=most)
    choice = server.post("/v1/chat/completions", **ask)["choices"][0]
    assert not choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    tools = [{"name": "get_weather", "input_schema": CITY}]
    forced = {"tools": tools, "tool_choice": {"type": "any"}}
    told = server.post("/v1/messages", **(ask | forced))
    assert not [block for block in told["content"] if block.get("text")]
    stream = server.http.post("/v1/chat/completions", json=ask | {"stream": True})
    assert '"content":"{' not in stream.text.replace(" ", "")


FORMS = {"schema": form(SCHEMA), "object": {"type": "json_object"}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_comes_before_the_form_of_the_answer(server, form, choice):
    ask = ASK | dict(tool_choice=choice, response_format=FORMS[form])
    answer = server.post("/v1/chat/completions", **ask)
    message = answer["choices"][0]["message"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert arguments.keys() == {"city", "days"}
    assert not message["content"]


def test_an_answer_is_a_call_or_follows_the_schema(server):
    """Whatever the model begins with: temperature and bias make both come up."""
    texts, calls = [], []
    for seed in range(16):
        ask = ASK | dict(temperature=3, seed=seed, parallel_tool_calls=False)
        ask |= dict(response_format=FORMS["schema"])
        answer = server.post("/v1/chat/completions", **ask)
        message = answer["choices"][0]["message"]
        if called := message.get("tool_calls"):
            calls += [json.loads(one["function"]["arguments"]) for one in called]
        else:
            texts.append(json.loads(message["content"])["answer"])
    assert {*texts} <= {"yes", "no"}
    assert all({*call} == {"city", "days"} for call in calls)
    assert texts
    assert calls


@pytest.mark.parametrize("mode", ["auto", "any"])
def test_messages_and_responses_have_calls_beside_a_schema(server, mode):
    forced = "required" if mode == "any" else mode
    function = TOOLS[0]["function"]
    answered = server.post(
        "/v1/responses",
        input="How is the weather in Paris?",
        tools=[{"type": "function", **function}],
        tool_choice=forced,
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
        max_output_tokens=100,
        seed=2,
    )
    kinds = {item["type"] for item in answered["output"]}
    told = server.post(
        "/v1/messages",
        messages=QUESTION,
        tools=[{"name": "get_weather", "input_schema": CITY}],
        tool_choice={"type": mode},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        max_tokens=100,
        seed=2,
    )
    blocks = {block["type"] for block in told["content"]}
    if mode == "any":
        assert kinds == {"function_call"}
        assert blocks == {"tool_use"}
        return
    parts = [item["content"][0] for item in answered["output"] if "content" in item]
    parts += [block for block in told["content"] if "text" in block]
    assert {json.loads(part["text"])["answer"] for part in parts} <= {"yes", "no"}
