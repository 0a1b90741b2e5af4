"""Responses as the Open Responses specification has them: cases of its compliance tests
(github.com/openresponses/openresponses) that need no image, WebSocket or host's tool.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from asking import MODEL
from serving import Running

NULL = type(None)
TEXTS = "id object status model truncation service_tier"
TEXTS_OR_NULL = (
    "previous_response_id instructions user safety_identifier prompt_cache_key"
)
NUMBERS = "top_p presence_penalty frequency_penalty temperature"
FIELDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(TEXTS.split(), (str,)),
    **dict.fromkeys(TEXTS_OR_NULL.split(), (str, NULL)),
    **dict.fromkeys(NUMBERS.split(), (float, int)),
    **dict.fromkeys(("output", "tools"), (list,)),
    **dict.fromkeys(("text", "metadata"), (dict,)),
    **dict.fromkeys(("incomplete_details", "error", "reasoning"), (dict, NULL)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), (bool,)),
    **dict.fromkeys(("created_at", "top_logprobs"), (int,)),
    **dict.fromkeys(("completed_at", "max_output_tokens"), (int, NULL)),
    "max_tool_calls": (int, NULL),
    "tool_choice": (str, dict),
    "usage": (dict, NULL),
}
"""Required field of a response -> its types."""
ITEMS: Mapping[str, Mapping[str, type]] = {
    "message": {"id": str, "status": str, "role": str, "content": list},
    "function_call": dict.fromkeys("id status call_id name arguments".split(), str),
}
PART = {"text": str, "annotations": list, "logprobs": list}
TOOL: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "description": (str, NULL),
    "parameters": (dict, NULL),
    "strict": (bool, NULL),
}
COUNTS = ("input_tokens", "output_tokens", "total_tokens")
MESSAGE = (
    r"content_part\.added (output_text\.delta )*output_text\.done content_part\.done "
)
CALL = r"(function_call_arguments\.delta )+function_call_arguments\.done "
ORDER = re.compile(
    rf"created in_progress (output_item\.added ({MESSAGE}|{CALL})output_item\.done "
    r")+(completed|incomplete)"
)
"""Kinds of events of a response of messages and calls, without "response."."""
LOCATION = {"location": {"type": "string", "maxLength": 20}}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": dict(type="object", properties=LOCATION, required=["location"]),
}


def said(role: str, text: str, **more: str) -> dict[str, str]:
    return {"type": "message", "role": role, "content": text, **more}


CASES: Mapping[str, dict[str, Any]] = {
    "basic": {"input": [said("user", "Say hello in exactly 3 words.")]},
    "counting": {"input": [said("user", "Count from 1 to 5.")]},
    "system prompt": {
        "input": [
            said("system", "You are a pirate. Always respond in pirate speak."),
            said("user", "Say hello."),
        ]
    },
    "multi-turn": {
        "input": [
            said("user", "My name is Alice."),
            said("assistant", "Hello Alice! How can I help you today?"),
            said("user", "What is my name?"),
        ]
    },
    "assistant phase": {
        "input": [
            said("assistant", "I should give the saved number.", phase="commentary"),
            said("assistant", "The number is four.", phase="final_answer"),
            said("user", "Repeat only the number."),
        ]
    },
    "tool calling": {
        "input": [said("user", "What's the weather like in San Francisco?")],
        "tools": [WEATHER],
        "tool_choice": "required",  # the small model would not call by itself
        "parallel_tool_calls": False,
    },
    "cut off": dict(input="Count to 500.", max_output_tokens=4, ignore_eos=True),
    "cut off in a call": {
        "input": "Weather?",
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "max_output_tokens": 22,
        "temperature": 0,
    },
    "settings": {
        "input": "Say hello.",
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "user": "ann",
        "temperature": 0,
        "top_p": 0.5,
        "store": True,
        "tools": [{"type": "function", "name": "get_time"}, {"type": "web_search"}],
        "tool_choice": "none",
    },
}


def check(response: dict[str, Any]) -> None:
    """Check every required field of an ended response."""
    kinds = {name: type(response.get(name, ...)) for name in FIELDS}
    assert [name for name, kind in kinds.items() if kind not in FIELDS[name]] == []
    assert response["object"] == "response"
    assert response["output"]
    cut = response["status"] == "incomplete"
    details = {"reason": "max_output_tokens"} if cut else None
    assert response["incomplete_details"] == details
    assert (response["completed_at"] is None) == cut
    for item in response["output"]:
        fields = ITEMS[item["type"]]
        assert {name: type(item[name]) for name in fields} == fields
        assert item.get("phase") in (None, "commentary", "final_answer")
        for part in item.get("content", ()):
            assert part["type"] == "output_text"
            assert {name: type(part[name]) for name in PART} == PART
    statuses = [item["status"] for item in response["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + [response["status"]]
    for tool in response["tools"]:
        assert tool["type"] != "function" or all(
            type(tool[name]) in types for name, types in TOOL.items()
        )
    assert isinstance(response["text"]["format"]["type"], str)
    assert {"effort", "summary"} <= response["reasoning"].keys()
    usage = response["usage"]
    assert all(type(usage[name]) is int for name in COUNTS)
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    assert type(usage["input_tokens_details"]["cached_tokens"]) is int
    assert type(usage["output_tokens_details"]["reasoning_tokens"]) is int
    Response.model_validate(response)


def events(server: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream, checked one by one."""
    response = server.http.post("/v1/responses", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    event, found = TypeAdapter(ResponseStreamEvent), []
    for number, block in enumerate(response.text.strip().split("\n\n")):
        name, data = re.fullmatch(r"event: (\S+)\ndata: (.+)", block).groups()
        found.append(json.loads(data))
        assert found[-1]["type"] == name
        assert found[-1]["sequence_number"] == number
        event.validate_python(found[-1])
    return found


def same(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the output without ids, which are drawn."""
    return [{**item, "id": "", "call_id": ""} for item in response["output"]]


@pytest.mark.parametrize("case", CASES)
def test_a_response_has_every_field_whole_and_streamed(server, case):
    body = {"model": MODEL, "seed": 3, "max_output_tokens": 200, **CASES[case]}
    whole = server.post("/v1/responses", **body)
    check(whole)
    cut = whole["usage"]["output_tokens"] == body["max_output_tokens"]
    assert cut or not case.startswith("cut off")
    assert whole["status"] == ("incomplete" if cut else "completed")
    assert ("call" in case) == (whole["output"][-1]["type"] == "function_call")
    found = events(server, body)
    kinds = " ".join(event["type"].removeprefix("response.") for event in found)
    assert ORDER.fullmatch(kinds), kinds
    final = found[-1]["response"]
    check(final)
    assert same(final) == same(whole)
    kind = "response.output_item.done"
    items = [event["item"] for event in found if event["type"] == kind]
    assert items == final["output"]
    opened = dict(status="in_progress", output=[], usage=None, completed_at=None)
    for event in found[:2]:
        assert event["response"] | opened == event["response"]
        assert event["response"]["id"] == final["id"]
    check_places(found, final["output"])


def check_places(found: list[dict[str, Any]], output: list[dict[str, Any]]) -> None:
    """Check that events point at their item, and that their parts add up to it."""
    texts = [""] * len(output)
    for event in found[2:-1]:
        item = output[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]
        assert event.get("content_index", 0) == 0
        assert event.get("item", item)["id"] == item["id"]
        if event["type"] == "response.output_item.added":
            assert event["item"]["status"] == "in_progress"
        texts[event["output_index"]] += event.get("delta", "")
        text = texts[event["output_index"]]
        assert event.get("text", event.get("arguments", text)) == text
    assert texts == [
        item["arguments"] if "arguments" in item else item["content"][0]["text"]
        for item in output
    ]


def test_settings_are_repeated(server):
    got = server.post("/v1/responses", **CASES["settings"], max_output_tokens=2)
    repeated = ("instructions", "metadata", "user", "temperature", "top_p")
    assert {name: got[name] for name in (*repeated, "tool_choice")} == {
        name: CASES["settings"][name] for name in (*repeated, "tool_choice")
    }
    assert got["max_output_tokens"] == 2
    assert got["reasoning"] == {"effort": "low", "summary": None}
    assert got["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    tool = dict.fromkeys(("description", "parameters", "strict"))
    assert got["tools"][0] == {"type": "function", "name": "get_time", **tool}
    assert got["store"] is False  # nothing is stored, whatever was asked for


def test_an_empty_answer_is_a_message(server, llm):
    bias = {str(llm.tokenizer.eos_token_id): 100}
    body = {"input": "Say hello.", "logit_bias": bias, "temperature": 0}
    found = events(server, body)
    assert same(found[-1]["response"]) == same(server.post("/v1/responses", **body))
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_round_trip_of_a_call(server):
    """The second request holds all items: nothing is stored."""
    asked = said("user", "Use the tool to get the temperature in San Francisco.")
    tools = {"tools": [WEATHER], "seed": 3}
    forced = dict(tool_choice={"type": "function", "name": "get_weather"})
    forced |= dict(input=[asked], max_output_tokens=200)
    (call,) = server.post("/v1/responses", **forced, **tools)["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"]}
    items = [asked, call, output | {"output": "64 degrees and clear"}]
    got = server.post("/v1/responses", input=items, tool_choice="none", **tools)
    check(got)
    assert got["output"][0]["type"] == "message"


def test_the_helper_of_openais_client_follows_a_stream(client):
    body = dict(input="What's the weather?", tools=[WEATHER], tool_choice="required")
    body |= dict(model=MODEL, max_output_tokens=200, extra_body={"seed": 3})
    kind = "response.function_call_arguments.delta"
    with client.responses.stream(**body) as stream:
        snapshots = [event.snapshot for event in stream if event.type == kind]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output[-1].arguments


@pytest.mark.parametrize(
    ("path", "fields", "status", "code"),
    [
        ("", {"previous_response_id": "resp_1"}, 400, "previous_response_not_found"),
        ("/compact", {}, 404, None),
    ],
)
def test_what_needs_stored_responses_is_refused(server, path, fields, status, code):
    response = server.http.post(f"/v1/responses{path}", json={"input": "x", **fields})
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
