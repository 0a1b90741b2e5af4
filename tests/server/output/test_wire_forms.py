"""Calls in forms of no template arrive over HTTP, in each dialect, with `auto`."""

import json
from typing import Any

import anthropic
import pytest

from outputs import CITY, GET, WEATHER

CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
FORMS = {
    "bare": CALL,
    "fenced": f"```json\n{CALL}\n```",
    "tagged": f"<tools>{CALL}</tools>",
    "Python": "get_weather(city='Paris')",
}
PROSE = "I look.\n"
NONSENSE = '```json\n{"name": "other", "arguments": {}}\n```'
MODEL = "foreword-family"
ASK = "How is the weather in Paris?"


def forced(text: str, **more: Any) -> dict[str, Any]:
    """Return a request whose answer is a text."""
    return {"model": MODEL, "extra_body": {"guided_choice": [text]}, **more}


def of_chat(client: Any, text: str, *, stream: bool) -> tuple[str, list[tuple]]:
    messages = [{"role": "user", "content": ASK}]
    ask = forced(text, messages=messages, tools=[WEATHER, GET])
    if not stream:
        message = client.chat.completions.create(**ask).choices[0].message
        found = [call.function for call in message.tool_calls or ()]
        return message.content or "", [(one.name, one.arguments) for one in found]
    content, calls = "", {}
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                name, text = calls.get(call.index, ("", ""))
                name += call.function.name or ""
                calls[call.index] = name, text + (call.function.arguments or "")
    return content, list(calls.values())


def of_responses(client: Any, text: str, *, stream: bool) -> tuple[str, list[tuple]]:
    tools = [{"type": "function", **tool["function"]} for tool in (WEATHER, GET)]
    ask = forced(text, input=ASK, tools=tools)
    answer = client.responses.create(**ask, stream=stream)
    if stream:
        answer = [*answer][-1].response
    found = [item for item in answer.output if item.type == "function_call"]
    return answer.output_text, [(one.name, one.arguments) for one in found]


def of_messages(client: Any, text: str, *, stream: bool) -> tuple[str, list[tuple]]:
    tools = [
        {"name": "get_weather", "input_schema": CITY},
        {"name": "get", "input_schema": {"type": "object"}},
    ]
    messages = [{"role": "user", "content": ASK}]
    ask = forced(text, messages=messages, tools=tools, max_tokens=200)
    url = str(client.base_url).removesuffix("/v1/")
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as other:
        if stream:
            with other.messages.stream(**ask) as events:
                answer = events.get_final_message()
        else:
            answer = other.messages.create(**ask)
    content = "".join(one.text for one in answer.content if one.type == "text")
    found = [one for one in answer.content if one.type == "tool_use"]
    return content, [(one.name, json.dumps(one.input)) for one in found]


DIALECTS = {"chat": of_chat, "responses": of_responses, "messages": of_messages}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_form_arrives_as_a_call(client, dialect: str, stream: bool):
    answer = DIALECTS[dialect]
    for text in FORMS.values():
        content, ((name, arguments),) = answer(client, text, stream=stream)
        assert (content, name) == ("", "get_weather"), text
        assert json.loads(arguments) == {"city": "Paris"}, text
    content, ((name, _),) = answer(client, PROSE + FORMS["fenced"], stream=stream)
    assert (content, name) == (PROSE.strip(), "get_weather")
    assert answer(client, NONSENSE, stream=stream) == (NONSENSE, [])
