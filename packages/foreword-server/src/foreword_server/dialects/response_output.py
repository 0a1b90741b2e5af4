"""Output items of OpenAI's responses, with their events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foreword_server.answer import Choice, Shown
from foreword_server.dialects.client_tools import ITEMS, members_of
from foreword_server.dialects.ids import Ids
from foreword_server.dialects.response_tools import Declared, input_of
from foreword_server.output import Reasoning, Text, ToolArguments, ToolCall

Events = list[tuple[str, dict[str, Any]]]
"""(event name, fields)."""
CALLS = ("function_call", "custom_tool_call", *ITEMS)
"""Kinds of items that are calls."""


@dataclass(slots=True)
class Item:
    """One output item: a message, a reasoning or a function call."""

    kind: str
    id: str
    name: str = ""
    call_id: str = ""
    content: str = ""
    """Text of the item, or arguments of the call."""
    index: int = -1
    """Number of the tool call."""
    namespace: str | None = None
    """Namespace of the called tool, if it has one."""
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
    def is_local(self) -> bool:
        """Whether it is a call with an item of its own kind, which the client runs."""
        return self.kind in ITEMS

    @property
    def _call_status(self) -> str:
        """Return the status of a call; a patch that was cut off stays in progress."""
        is_cut = self.kind == "apply_patch_call" and self.status == "incomplete"
        return "in_progress" if is_cut else self.status

    @property
    def written(self) -> dict[str, Any]:
        """Return the item as JSON."""
        if self.kind in CALLS:
            head = {"type": self.kind, "id": self.id, "status": self._call_status}
            return {**head, "call_id": self.call_id, **self._called()}
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
        """Return which tool is called, with what."""
        if self.is_local:
            return members_of(self.kind, self.content)
        if self.kind == "custom_tool_call":
            return {"name": self.name, "input": input_of(self.content)}
        return {
            "name": self.name,
            "arguments": self.content,
            **({"namespace": self.namespace} if self.namespace else {}),
        }

    def opened(self) -> Events:
        """Return the events that open the item; a client's tool opens when complete."""
        if self.is_local:
            return []
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
        if self.kind == "custom_tool_call" or self.is_local:
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
        if self.is_local:
            added = ("response.output_item.added", {"item": self.written})
            self.status = status
            return [added, ("response.output_item.done", {"item": self.written})]
        self.status = status
        done = ("response.output_item.done", {"item": self.written})
        if self.kind == "function_call":
            fields = {"item_id": self.id, "name": self.name, "arguments": self.content}
            return [("response.function_call_arguments.done", fields), done]
        if self.kind == "custom_tool_call":
            text, ids = input_of(self.content), {"item_id": self.id}
            delta = ("response.custom_tool_call_input.delta", {**ids, "delta": text})
            return [
                delta,
                ("response.custom_tool_call_input.done", {**ids, "input": text}),
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


def next_item(event: Shown, tools: Mapping[str, Declared], ids: Ids) -> Item:
    """Return a new item for an event."""
    match event:
        case Text():
            return Item("message", ids.new("msg_"))
        case Reasoning():
            return Item("reasoning", ids.new("rs_"))
        case ToolCall():
            return _call(event.name, event.id, event.index, tools, ids)
        case ToolArguments():
            return Item("function_call", ids.new("fc_"), index=event.index)


def _call(
    name: str, call_id: str, index: int, tools: Mapping[str, Declared], ids: Ids
) -> Item:
    """Return the item of a call, under the name that the tool has for the client."""
    tool = tools.get(name)
    if tool is None:
        return Item("function_call", ids.new("fc_"), name, call_id, index=index)
    kind, prefix = tool.called
    return Item(
        kind,
        ids.new(prefix),
        tool.own_name,
        call_id,
        index=index,
        namespace=None if tool.name == tool.own_name else tool.namespace,
    )


def items_of(
    choice: Choice, tools: Mapping[str, Declared], status: str, ids: Ids
) -> list[Item]:
    """Return an ended choice's items; `status` is that of the last one."""
    items: list[Item] = []
    if choice.reasoning:
        items.append(Item("reasoning", ids.new("rs_"), content=choice.reasoning))
    if choice.text or not (choice.calls or choice.reasoning):
        items.append(Item("message", ids.new("msg_"), content=choice.text))
    for index, call in enumerate(choice.calls):
        items.append(_call(call.name, call.id, index, tools, ids))
        items[-1].content = call.arguments
    for item in items:
        item.status = "completed"
    items[-1].status = status
    return items
