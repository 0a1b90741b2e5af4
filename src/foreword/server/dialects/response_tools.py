"""Provides the tools of OpenAI's responses as functions of a chat: functions,
namespaces of them, free-form tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foreword.errors import InvalidRequest

IMPLICIT = "functions"
"""Namespace of tools that are called by their bare name."""
INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Parameters of a free-form (custom) tool as a function: models here call with JSON."""


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
    def name(self) -> str:
        """The name by which the model calls it."""
        return qualified(self.about.get("name"), self.namespace)

    @property
    def function(self) -> dict[str, Any]:
        """The tool in the shape of chat completions.

        The grammar of a free-form tool is told, not enforced.
        """
        if not self.is_custom:
            kept = {
                name: value
                for name, value in self.about.items()
                if name not in ("type", "defer_loading")
            }
            return {"type": "function", "function": {**kept, "name": self.name}}
        form = self.about.get("format")
        grammar = form.get("definition") if isinstance(form, Mapping) else None
        told = "\n".join(
            text
            for text in (self.about.get("description"), grammar)
            if isinstance(text, str)
        )
        return {
            "type": "function",
            "function": {"name": self.name, "description": told, "parameters": INPUT},
        }


def echoed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as a response repeats it: a function has all of its fields."""
    fields = (
        ("description", "parameters", "strict")
        if tool.get("type") == "function"
        else ()
    )
    return {**dict.fromkeys(fields), **tool}


def qualified(name: Any, namespace: Any) -> Any:
    """Return the name of a tool with that of its namespace, which may end in
    underscores of its own.
    """
    if (
        not isinstance(name, str)
        or not isinstance(namespace, str)
        or namespace == IMPLICIT
    ):
        return name
    return f"{namespace.rstrip('_')}__{name}"


def declared(
    tools: list[dict[str, Any]] | None, given: str | list[dict[str, Any]]
) -> dict[str, Declared]:
    """Return the tools of a request by the names that the model uses, without
    tools that only a hosted model has.

    `given`: the input, whose items may add tools. Raises InvalidRequest for a tool
    without a name.
    """
    items = [] if isinstance(given, str) else given
    more = [
        item.get("tools") for item in items if item.get("type") == "additional_tools"
    ]
    found: dict[str, Declared] = {}
    for several in (tools, *more):
        for tool in _flat(several, None):
            if not isinstance(name := tool.about.get("name"), str):
                raise InvalidRequest(
                    "cannot read tools: the name of a tool must be a string, not "
                    f"{name!r}. Name it"
                )
            found.setdefault(tool.name, tool)
    return found


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
