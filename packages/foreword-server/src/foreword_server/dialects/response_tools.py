"""Tools of OpenAI's responses as functions of a chat: functions, namespaces, free-form
tools, and tools that the client runs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foreword.errors import InvalidRequest
from foreword.structured.schema import check_schema
from foreword_server.dialects.client_tools import ITEMS, is_local, local_tool

IMPLICIT = "functions"
"""Namespace of tools that are called by their bare name."""
STRING = {"type": "string"}
INPUT = {"type": "object", "properties": {"input": STRING}, "required": ["input"]}
"""Parameters of a free-form (custom) tool as a function: models here call with JSON."""
ESCAPED = re.compile(r"[\x00-\x1f]|\\[0abfnrtuvx]|\(\?(?!:)")
"""In an expression: letters that JSON escapes, and groups that no grammar follows."""
CALLS = {
    "function": ("function_call", "fc_"),
    "custom": ("custom_tool_call", "ctc_"),
    **{tool: (item, prefix) for item, (tool, _, prefix) in ITEMS.items()},
}
"""Type of a tool -> kind of item that calls it, the beginning of its id."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One tool of a request."""

    about: Mapping[str, Any]
    """The tool as it came."""
    namespace: str | None = None

    @property
    def is_custom(self) -> bool:
        """Whether it is called with free text instead of JSON."""
        return self.about.get("type") == "custom"

    @property
    def is_local(self) -> bool:
        """Whether the client runs it under a name of the API."""
        return is_local(self.about)

    @property
    def called(self) -> tuple[str, str]:
        """The kind of item that calls it, and the beginning of its id."""
        return CALLS[self.about["type"]]

    @property
    def own_name(self) -> Any:
        """Name of the tool for the client, without a namespace."""
        return self.about["type"] if self.is_local else self.about.get("name")

    @property
    def name(self) -> Any:
        """The name by which the model calls it."""
        return qualified(self.own_name, self.namespace)

    @property
    def function(self) -> dict[str, Any]:
        """The tool in the shape of chat completions."""
        if self.is_local:
            return {"type": "function", "function": local_tool(self.about)}
        if self.is_custom:
            return {"type": "function", "function": self._free_form()}
        fields = {
            name: value
            for name, value in self.about.items()
            if name not in ("type", "defer_loading")
        }
        return {"type": "function", "function": {**fields, "name": self.name}}

    def _free_form(self) -> dict[str, Any]:
        """Return the function of a free-form tool.

        Its description holds the grammar; a regular expression is enforced where it
        can be, in JSON.
        """
        form = self.about.get("format")
        form = form if isinstance(form, Mapping) else {}
        grammar = form.get("definition")
        description = "\n".join(
            text
            for text in (self.about.get("description"), grammar)
            if isinstance(text, str)
        )
        function = {"name": self.name, "description": description, "parameters": INPUT}
        if form.get("syntax") != "regex" or not _fits(grammar):
            return function
        followed = {
            **INPUT,
            "properties": {"input": {**STRING, "pattern": grammar}},
            "additionalProperties": False,
        }
        return {**function, "parameters": followed, "strict": True}


def _fits(pattern: object) -> bool:
    """Return whether a string in JSON can follow a regular expression."""
    if not isinstance(pattern, str) or ESCAPED.search(pattern):
        return False
    try:
        check_schema({**STRING, "pattern": pattern})
    except InvalidRequest:
        return False
    return True


def echoed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as a response repeats it: a function has all of its fields."""
    fields = (
        ("description", "parameters", "strict")
        if tool.get("type") == "function"
        else ()
    )
    return {**dict.fromkeys(fields), **tool}


def qualified(name: Any, namespace: Any) -> Any:
    """Return the name of a tool with its namespace, which may end in underscores."""
    if (
        not isinstance(name, str)
        or not isinstance(namespace, str)
        or namespace == IMPLICIT
    ):
        return name
    return f"{namespace.rstrip('_')}__{name}"


def declared(
    tools: list[dict[str, Any]] | None, content: str | list[dict[str, Any]]
) -> dict[str, Declared]:
    """Return the tools of a request by the names that the model uses, without
    tools that only a hosted model has.

    `content`: the input, whose items may add tools. Raises InvalidRequest for a tool
    without a name.
    """
    items = [] if isinstance(content, str) else content
    more = [
        item.get("tools") for item in items if item.get("type") == "additional_tools"
    ]
    by_name: dict[str, Declared] = {}
    for several in (tools, *more):
        for tool in _flat(several, None):
            if not isinstance(name := tool.own_name, str):
                raise InvalidRequest(
                    "cannot read tools: the name of a tool must be a string, not "
                    f"{name!r}. Name it"
                )
            by_name.setdefault(tool.name, tool)
    return by_name


def input_of(arguments: str) -> str:
    """Return the text in the JSON arguments of a free-form tool; of a call that was cut
    off, all that there is.
    """
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def _flat(tools: Any, namespace: str | None) -> Iterator[Declared]:
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind == "namespace":
            yield from _flat(tool.get("tools"), tool.get("name"))
        elif kind in ("function", "custom"):
            yield Declared(tool, namespace)
        elif isinstance(tool, Mapping) and is_local(tool):
            yield Declared(tool)
