"""Input items of OpenAI's responses as chat messages."""

import json
from collections.abc import Mapping
from typing import Any

from foreword.chats import is_image
from foreword.chats.foreign import as_text
from foreword.errors import InvalidRequest
from foreword_server.dialects.client_tools import ITEMS, LOCAL, arguments_of, member
from foreword_server.dialects.response_tools import declared, qualified

CALLABLE = ("function", "custom", *LOCAL)
"""Kinds of tools that a choice may name, without kinds that only a hosted model has."""
CALL_FIELDS = ("type", "id", "call_id", "status")
"""Members of a call that are not its arguments."""
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
"""Kinds of content parts that hold text."""
APART = ("reasoning", "additional_tools", "web_search_call")
"""Kinds of input items that are no messages: reasoning and searches of earlier turns
are not part of later prompts.
"""


def messages_of(items: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return input items as chat messages. InvalidRequest for an unreadable one."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items, 1):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(item, number))
        elif kind.endswith("_call") and "call_id" in item:
            last = messages[-1]["role"] if messages else None
            if last != "assistant":
                messages.append({"role": "assistant", "content": ""})
            calls = messages[-1].setdefault("tool_calls", [])
            calls.append(_call(kind, item))
        elif kind.endswith("_call_output") and (called := _called(kind, item)):
            result = {
                "role": "tool",
                "tool_call_id": called,
                "content": _output_of(item, number),
            }
            messages.append(result)
        elif kind not in APART:
            messages.append({"role": "assistant", "content": as_text(item)})
    return messages


def _message(item: Mapping[str, Any], number: int) -> dict[str, Any]:
    role = item.get("role")
    content = item.get("content")
    if content is None and role == "assistant":
        content = ""
    return {"role": role, "content": _content_of(content, number)}


def _call(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": item.get("call_id"),
        "type": "function",
        "function": _function(kind, item),
    }


def _function(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that a call names, with its arguments as JSON.

    A call of a tool that the client runs is one of the function that the tool is here,
    also where the request does not offer it.
    """
    if kind in ITEMS:
        tool, *_ = ITEMS[kind]
        arguments = arguments_of(kind, item)
        return {"name": tool, "arguments": json.dumps(arguments)}
    name = qualified(item.get("name"), item.get("namespace"))
    if kind == "function_call":
        return {"name": name, "arguments": item.get("arguments")}
    if kind == "custom_tool_call":
        value = {"input": item.get("input")}
        return {"name": name, "arguments": json.dumps(value)}
    about = dict(item)
    for field in CALL_FIELDS:
        about.pop(field, None)
    name = kind.removesuffix("_call")
    return {"name": name, "arguments": json.dumps(about)}


def _called(kind: str, item: Mapping[str, Any]) -> Any:
    """Return the id of the call that an item is the result of, if it tells."""
    called = item.get("call_id")
    if called is None and kind == "local_shell_call_output":
        # the reference has the call's id in this place
        return item.get("id")
    return called


def _output_of(item: Mapping[str, Any], number: int) -> Any:
    """Return the content of a tool's result: text, or parts if there are images."""
    output = item.get("output")
    is_patch = item["type"] == "apply_patch_call_output"
    if is_patch and isinstance(output, str | None):
        return _patched(item.get("status"), output)
    if isinstance(output, str):
        return output
    parts = [output] if isinstance(output, dict) else output
    if not isinstance(parts, list):
        return text_of(output, number)
    return [_result_part(part) for part in parts]


def _patched(status: object, output: str | None) -> str:
    """Return the result of a patch; only one that was applied may say nothing."""
    if output and status != "failed":
        return output
    outcome = str(status or "completed")
    return f"{outcome}\n{output}" if output else outcome


def _result_part(part: Any) -> dict[str, Any]:
    if is_image(part):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    shown = as_text(part) if kind is not None else json.dumps(part)
    return {"type": "text", "text": shown}


def _content_of(content: Any, number: int) -> str | list[dict[str, Any]]:
    """Return the content of a message: its text, or a list of parts with images."""
    if not isinstance(content, list) or not any(map(is_image, content)):
        return text_of(content, number)

    def as_part(part: Any) -> dict[str, Any]:
        if is_image(part):
            return part
        text = text_of([part], number)
        return {"type": "text", "text": text}

    return [as_part(part) for part in content]


def text_of(content: Any, number: int) -> str:
    """Return the text of a content, a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"cannot read input item {number}: its content must be a string or a list "
            "of parts"
        )
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            parts.append(str(part.get("refusal", "")))
        elif kind in TEXTS and isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            raise InvalidRequest(
                f"cannot read input item {number}: a part of type {kind!r} is not "
                "served. Send text or images"
            )
    return "".join(parts)


def choice_of(value: str | dict[str, Any] | None) -> object:
    """Return a tool choice in the shape of chat completions."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind in CALLABLE:
        name = kind if kind in LOCAL else value.get("name")
        return {"type": "function", "function": {"name": name}}
    if (
        isinstance(value, dict)
        and kind == "allowed_tools"
        and isinstance(value.get("tools"), list)
    ):
        tools = [
            choice_of(tool)
            for tool in value["tools"]
            if isinstance(tool, dict) and tool.get("type") in CALLABLE
        ]
        return {
            "type": kind,
            "allowed_tools": {"mode": value.get("mode"), "tools": tools},
        }
    return value or "auto"


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body of responses in the fields of chat completions, to whose path
    Cursor sends it.

    Free-form tools become functions; chat completions have no calls of the others that
    a client runs. Raises ValueError for an input that cannot be
    read.
    """
    items = body["input"]
    if not isinstance(items, str) and not (
        isinstance(items, list) and all(isinstance(one, dict) for one in items)
    ):
        raise ValueError("input must be a text or a list of items")
    fields = {
        "tools": [
            tool.function
            for tool in declared(body.get("tools"), items).values()
            if not tool.is_local
        ],
        "tool_choice": choice_of(body.get("tool_choice")),
        "max_completion_tokens": body.get("max_output_tokens"),
        "reasoning_effort": member(body.get("reasoning"), "effort"),
        "response_format": member(body.get("text"), "format"),
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    return {
        **body,
        "tools": None,
        **fields,
        "messages": conversation_of(items, body.get("instructions")),
    }


def conversation_of(
    items: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """Return instructions and input items as chat messages."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    return [*system, *messages_of(items)]
