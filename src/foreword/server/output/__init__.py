"""Provides parsers of generated text: plain text, reasoning and tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The beginning of a tool call."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    fragment: str


OutputEvent = Text | Reasoning | ToolCall | ToolArguments


@runtime_checkable
class OutputParser(Protocol):
    """Reader of committed text."""

    def push(self, text: str) -> list[OutputEvent]:
        """Read text; return what became certain."""
        ...

    def finish(self) -> list[OutputEvent]:
        """Return what is left."""
        ...


class PlainParser:
    """All text is text."""

    def push(self, text: str) -> list[OutputEvent]:
        """Read text; return it."""
        return [Text(text)] if text else []

    def finish(self) -> list[OutputEvent]:
        """Return nothing."""
        return []
