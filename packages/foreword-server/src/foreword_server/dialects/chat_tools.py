"""Free-form (custom) tools of chat completions: functions, text for the client."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from foreword_server.answer import Called, Choice, Shown
from foreword_server.dialects.client_tools import member
from foreword_server.dialects.response_tools import Declared, input_of
from foreword_server.output import Reasoning, Text, ToolArguments, ToolCall

Json = dict[str, Any]


def free_form(tools: Sequence[Json] | None) -> frozenset[str]:
    """Return the names of the free-form tools."""
    names: set[str] = set()
    for tool in tools or ():
        name = _custom(tool).get("name")
        if isinstance(name, str):
            names.add(name)
    return frozenset(names)


def as_functions(tools: Sequence[Json] | None) -> list[Json] | None:
    """Return the tools with functions in place of free-form ones."""
    if tools is None:
        return None
    return [_function(tool) for tool in tools]


def function_choice(choice: Any) -> Any:
    """Return a tool choice with functions in place of free-form tools."""
    allowed = member(choice, "allowed_tools")
    tools = member(allowed, "tools")
    if not isinstance(tools, list):
        return _chosen(choice)
    named = [_chosen(tool) for tool in tools]
    return {**choice, "allowed_tools": {**allowed, "tools": named}}


def _chosen(choice: Any) -> Any:
    """Return the choice of a function in place of that of a free-form tool."""
    if custom := _custom(choice):
        function = {"name": custom.get("name")}
        return {"type": "function", "function": function}
    return choice


def _custom(tool: object) -> Mapping[str, Any]:
    """Return what a tool, or a choice of one, says of a free-form tool."""
    if member(tool, "type") != "custom":
        return {}
    custom = member(tool, "custom")
    if not isinstance(custom, Mapping):
        return {}
    return custom


def _function(tool: Json) -> Json:
    """Return a tool as a function; a free-form one's format is a level deeper here."""
    custom = _custom(tool)
    if not custom:
        return tool
    flat = {
        **custom,
        "type": "custom",
        "format": member(custom.get("format"), "grammar"),
    }
    return Declared(flat).function


def written(call: Called, free: Collection[str]) -> Json:
    """Return a whole call."""
    head = {"id": call.id}
    if call.name in free:
        custom = {"name": call.name, "input": input_of(call.arguments)}
        return {**head, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {**head, "type": "function", "function": function}


class Deltas:
    """Writer of the events of an answer as deltas.

    The input of a free-form call is inside of JSON: it is one delta, when that ends.
    """

    def __init__(self, free: Collection[str]) -> None:
        """`free`: the names of the free-form tools."""
        self._free = free
        self._open: dict[int, int] = {}
        """Number of a choice -> number of its free-form call that has not ended."""

    def of(self, choice: Choice, events: Sequence[Shown]) -> list[Json]:
        """Return the deltas of events that `choice` holds already."""
        deltas: list[Json] = []
        for event in events:
            if self._is_input(choice, event):
                continue
            deltas += self._ended(choice)
            deltas.append(self._delta(choice, event))
        if choice.ended:
            deltas += self._ended(choice)
        return deltas

    def _is_input(self, choice: Choice, event: Shown) -> bool:
        """Return whether an event is a part of a free-form tool's input."""
        if not isinstance(event, ToolArguments):
            return False
        return event.index == self._open.get(choice.index)

    def _ended(self, choice: Choice) -> list[Json]:
        """Return the delta of a free-form call that has ended, if one has."""
        index = self._open.pop(choice.index, None)
        if index is None:
            return []
        text = input_of(choice.calls[index].arguments)
        return [_of_call(index, custom={"input": text})]

    def _delta(self, choice: Choice, event: Shown) -> Json:
        match event:
            case Text(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case ToolArguments(index, json):
                function = {"arguments": json}
                return _of_call(index, function=function)
            case ToolCall(index, id, name):
                if name in self._free:
                    self._open[choice.index] = index
                begun = written(Called(id, name), self._free)
                return _of_call(index, **begun)


def _of_call(index: int, **changed: Any) -> Json:
    call = {"index": index, **changed}
    return {"tool_calls": [call]}
