"""What an output consists of: content, reasoning, tool calls, and their markup."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Text:
    """Content of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning before the answer, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class Markup:
    """Tags and punctuation that frame reasoning and calls, not to be shown; kept so
    that no character is lost.
    """

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The begin of a call. `index` counts calls from 0, `name` is one of the tools."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A fragment of the JSON text of a call's arguments; `text` is the output that it
    was read from, mostly equal.
    """

    index: int
    json: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The end of a call's arguments; not `complete`: cut off, or no JSON."""

    index: int
    complete: bool


Event = Text | Reasoning | Markup | ToolCall | ToolArguments | ToolCallEnd


def merged(events: Iterable[Event]) -> list[Event]:
    """Return the events with adjacent fragments of one kind joined."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if (
            isinstance(event, ToolArguments)
            and isinstance(last, ToolArguments)
            and event.index == last.index
        ):
            joined[-1] = replace(
                last, json=last.json + event.json, text=last.text + event.text
            )
        elif (
            isinstance(event, Text | Reasoning | Markup)
            and isinstance(last, Text | Reasoning | Markup)
            and type(event) is type(last)
        ):
            joined[-1] = replace(event, text=last.text + event.text)
        else:
            joined.append(event)
    return joined
