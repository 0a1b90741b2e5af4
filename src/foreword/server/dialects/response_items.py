"""Provides the items of OpenAI's responses: input items as messages, and output items
with their events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foreword.chats import is_image
from foreword.chats.foreign import as_text
from foreword.errors import InvalidRequest
from foreword.server.answer import Choice, Shown
from foreword.server.dialects.common import new_id
from foreword.server.dialects.response_tools import (
    Declared,
    declared,
    input_of,
    qualified,
)
from foreword.server.output import Reasoning, Text, ToolArguments, ToolCall

Events = list[tuple[str, dict[str, Any]]]
"""(event name, fields)."""
CALL_FIELDS = ("type", "id", "call_id", "status")
"""Members of a call that are not its arguments."""
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
"""Kinds of content parts that hold text."""
APART = ("reasoning", "additional_tools", "web_search_call")
"""Kinds of input items that are no messages: reasoning and searches of earlier turns
are not part of later prompts.
"""


def messages_of(items: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return input items as chat messages.

    Raises InvalidRequest for an item that cannot be read.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items, 1):
        kind = item.get("type", "message")
        if kind == "message":
            role, content = item.get("role"), item.get("content")
            is_empty = content is None and role == "assistant"
            messages.append(
                {
                    "role": role,
                    "content": "" if is_empty else _content_of(content, number),
                }
            )
        elif kind.endswith("_call") and "call_id" in item:
            call = {
                "id": item.get("call_id"),
                "type": "function",
                "function": _function(kind, item),
            }
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind.endswith("_call_output") and "call_id" in item:
            output = _output_of(item, number)
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            )
        elif kind not in APART:
            messages.append({"role": "assistant", "content": as_text(item)})
    return messages


def _function(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that a call names, with its arguments as JSON.

    A call of a tool that the client runs (local_shell_call, apply_patch_call) is one of
    the function of that name.
    """
    if kind == "function_call":
        name = qualified(item.get("name"), item.get("namespace"))
        return {"name": name, "arguments": item.get("arguments")}
    if kind == "custom_tool_call":
        name = qualified(item.get("name"), item.get("namespace"))
        return {"name": name, "arguments": json.dumps({"input": item.get("input")})}
    about = {name: value for name, value in item.items() if name not in CALL_FIELDS}
    return {"name": kind.removesuffix("_call"), "arguments": json.dumps(about)}


def _output_of(item: Mapping[str, Any], number: int) -> Any:
    """Return the content of a tool's result: text, or parts if there are images."""
    output = item.get("output")
    if isinstance(output, str):
        return output
    parts = [output] if isinstance(output, dict) else output
    if not isinstance(parts, list):
        return text_of(output, number)
    return [_result_part(part) for part in parts]


def _result_part(part: Any) -> dict[str, Any]:
    if is_image(part):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    shown = as_text(part) if kind is not None else json.dumps(part)
    return {"type": "text", "text": shown}


def _content_of(content: Any, number: int) -> str | list[dict[str, Any]]:
    """Return the content of a message: its text, or a list of parts if there are
    images.
    """
    if not isinstance(content, list) or not any(map(is_image, content)):
        return text_of(content, number)
    return [
        part if is_image(part) else {"type": "text", "text": text_of([part], number)}
        for part in content
    ]


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


def choice_of(given: str | dict[str, Any] | None) -> object:
    """Return a tool choice in the shape of chat completions."""
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(given, dict) and kind in CALLABLE:
        return {"type": "function", "function": {"name": given.get("name")}}
    if (
        isinstance(given, dict)
        and kind == "allowed_tools"
        and isinstance(given.get("tools"), list)
    ):
        tools = [
            choice_of(tool)
            for tool in given["tools"]
            if isinstance(tool, dict) and tool.get("type") in CALLABLE
        ]
        return {
            "type": kind,
            "allowed_tools": {"mode": given.get("mode"), "tools": tools},
        }
    return given or "auto"


def as_chat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body of responses in the fields of chat completions, to whose path
    Cursor sends it.

    Free-form tools become functions. Raises ValueError for an input that cannot be
    read.
    """
    items = given["input"]
    if not isinstance(items, str) and not (
        isinstance(items, list) and all(isinstance(one, dict) for one in items)
    ):
        raise ValueError("input must be a text or a list of items")
    fields = {
        "tools": [
            tool.function for tool in declared(given.get("tools"), items).values()
        ],
        "tool_choice": choice_of(given.get("tool_choice")),
        "max_completion_tokens": given.get("max_output_tokens"),
        "reasoning_effort": _member(given.get("reasoning"), "effort"),
        "response_format": _member(given.get("text"), "format"),
    }
    kept = {name: value for name, value in fields.items() if value is not None}
    return {
        **given,
        "tools": None,
        **kept,
        "messages": conversation_of(items, given.get("instructions")),
    }


def conversation_of(
    items: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """Return instructions and input items as chat messages."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    return [*system, *messages_of(items)]


def _member(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else None


CALLS = ("function_call", "custom_tool_call")
CALLABLE = ("function", "custom")
"""Kinds of tools that a choice may name, without kinds that only a hosted model has."""


@dataclass(slots=True)
class Item:
    """One output item: a message, a reasoning or a function call."""

    kind: str
    id: str
    name: str = ""
    call_id: str = ""
    content: str = ""
    """Its text, or its arguments."""
    index: int = -1
    """Number of the tool call."""
    namespace: str | None = None
    """Of the tool that is called, if it has one."""
    status: str = field(default="in_progress")

    def takes(self, event: Shown) -> bool:
        """Whether an event belongs to this item."""
        match event:
            case Text():
                return self.kind == "message"
            case Reasoning():
                return self.kind == "reasoning"
            case ToolArguments():
                return self.kind in CALLS and self.index == event.index
            case ToolCall():
                return False

    @property
    def written(self) -> dict[str, Any]:
        """Return the item as JSON."""
        if self.kind in CALLS:
            call = {"call_id": self.call_id, "name": self.name, **self._called()}
            return {"type": self.kind, "id": self.id, "status": self.status, **call}
        if self.kind == "reasoning":
            content = [{"type": "reasoning_text", "text": self.content}]
            return {
                "type": self.kind,
                "id": self.id,
                "summary": [],
                "content": content,
                "status": self.status,
            }
        content = [] if self.status == "in_progress" else [_part(self.content)]
        return {
            "type": self.kind,
            "id": self.id,
            "status": self.status,
            "role": "assistant",
            "content": content,
        }

    def _called(self) -> dict[str, Any]:
        """Return what the tool is called with."""
        if self.kind == "custom_tool_call":
            return {"input": input_of(self.content)}
        return {
            "arguments": self.content,
            **({"namespace": self.namespace} if self.namespace else {}),
        }

    def opened(self) -> Events:
        """Return the events that open the item."""
        events: Events = [("response.output_item.added", {"item": self.written})]
        if self.kind == "message":
            events.append(
                ("response.content_part.added", {**self._place, "part": _part("")})
            )
        return events

    def push(self, event: Shown) -> Events:
        """Add an event that the item takes; return its own events."""
        match event:
            case Text(text) | Reasoning(text):
                added = text
            case ToolArguments():
                added = event.json
            case ToolCall():
                return []
        self.content += added
        if self.kind == "custom_tool_call":
            return []  # its text is inside of JSON, and is sent when that ends
        if self.kind == "function_call":
            return [
                (
                    "response.function_call_arguments.delta",
                    {"item_id": self.id, "delta": added},
                )
            ]
        name = "output_text" if self.kind == "message" else "reasoning_text"
        more = {"logprobs": []} if self.kind == "message" else {}
        return [(f"response.{name}.delta", {**self._place, "delta": added, **more})]

    def closed(self, status: str = "completed") -> Events:
        """Return the events that close the item; it is "incomplete" if the answer was
        cut off inside of it.
        """
        self.status = status
        done = ("response.output_item.done", {"item": self.written})
        if self.kind == "function_call":
            fields = {"item_id": self.id, "name": self.name, "arguments": self.content}
            return [("response.function_call_arguments.done", fields), done]
        if self.kind == "custom_tool_call":
            text, place = input_of(self.content), {"item_id": self.id}
            delta = ("response.custom_tool_call_input.delta", {**place, "delta": text})
            return [
                delta,
                ("response.custom_tool_call_input.done", {**place, "input": text}),
                done,
            ]
        if self.kind == "reasoning":
            return [
                ("response.reasoning_text.done", {**self._place, "text": self.content}),
                done,
            ]
        text = {**self._place, "text": self.content, "logprobs": []}
        part = {**self._place, "part": _part(self.content)}
        return [
            ("response.output_text.done", text),
            ("response.content_part.done", part),
            done,
        ]

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": 0}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def next_item(event: Shown, tools: Mapping[str, Declared]) -> Item:
    """Return a new item for an event."""
    match event:
        case Text():
            return Item("message", new_id("msg_"))
        case Reasoning():
            return Item("reasoning", new_id("rs_"))
        case ToolCall():
            return _call(event.name, event.id, event.index, tools)
        case ToolArguments():
            return Item("function_call", new_id("fc_"), index=event.index)


def _call(name: str, call_id: str, index: int, tools: Mapping[str, Declared]) -> Item:
    """Return the item of a call, under the name that the tool has for the client."""
    tool = tools.get(name)
    if tool is None:
        return Item("function_call", new_id("fc_"), name, call_id, index=index)
    kind, prefix = (
        ("custom_tool_call", "ctc_") if tool.is_custom else ("function_call", "fc_")
    )
    namespace = None if tool.name == tool.about["name"] else tool.namespace
    return Item(
        kind,
        new_id(prefix),
        tool.about["name"],
        call_id,
        index=index,
        namespace=namespace,
    )


def items_of(choice: Choice, tools: Mapping[str, Declared], status: str) -> list[Item]:
    """Return the items of an ended choice: its reasoning, its text and its calls.

    `status` is that of the last one.
    """
    items: list[Item] = []
    if choice.reasoning:
        items.append(Item("reasoning", new_id("rs_"), content=choice.reasoning))
    if choice.text or not (choice.calls or choice.reasoning):
        items.append(Item("message", new_id("msg_"), content=choice.text))
    for index, call in enumerate(choice.calls):
        items.append(_call(call.name, call.id, index, tools))
        items[-1].content = call.arguments
    for item in items:
        item.status = "completed"
    items[-1].status = status
    return items
