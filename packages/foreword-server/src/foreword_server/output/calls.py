"""Calls as they are read: their events, and the grammar of the JSON object that most
formats put a call into.
"""

import json
import secrets
from collections.abc import Callable, Mapping

from foreword_server.output import json_text
from foreword_server.output.events import (
    Event,
    Markup,
    ToolArguments,
    ToolCall,
    ToolCallEnd,
)
from foreword_server.output.reader import Mismatch, Reader, Reading

NAME = '"name"'
ARGUMENTS = '"arguments"'
FUNCTION = '"function"'
LIST = '"tool_calls"'
LEVELS = 2
"""Objects around a call: of a list of calls, and of a function."""
MEMBERS = {
    NAME: NAME,
    '"tool_name"': NAME,
    ARGUMENTS: ARGUMENTS,
    '"parameters"': ARGUMENTS,
    '"args"': ARGUMENTS,
    '"input"': ARGUMENTS,
    FUNCTION: FUNCTION,
    '"type"': '"type"',
    '"id"': '"id"',
    '"tool_call_id"': '"id"',
}
"""Members of a call, as models spell them -> what they are; no call has others."""


class LastCall(Exception):
    """The end of the only call that was allowed."""


def call_id() -> str:
    """Return a new id: "call_" and 24 url-safe characters."""
    return f"call_{secrets.token_urlsafe(18)}"


class Calls:
    """Writer of the calls of one output.

    schemas: the JSON schema of each tool's arguments, by name. parallel: whether a
    second call may follow.
    """

    def __init__(
        self,
        reader: Reader,
        schemas: Mapping[str, Mapping[str, object]],
        parallel: bool,
        new_id: Callable[[], str],
    ) -> None:
        self.reader, self.schemas = reader, schemas
        self._names = {
            text: name
            for name in schemas
            for text in (json.dumps(name), json.dumps(name, ensure_ascii=False))
        }
        self._parallel, self._new_id = parallel, new_id
        self._count = 0
        self._is_open = False
        self.closing = False
        """Whether what is held now can only close a call, not begin one."""

    def fragment(self, text: str) -> Event:
        """Return the event of arguments that were given as JSON."""
        return ToolArguments(self._count, text, text)

    def begin(self, name: str) -> None:
        """Begin a call. What is held frames it."""
        self.reader.flush(Markup)
        self.reader.events.append(ToolCall(self._count, self._new_id(), name))
        self._is_open = True

    def write(self, fragment: str, text: str) -> None:
        """Add JSON to the arguments, made from `text` of the output."""
        self.reader.events.append(ToolArguments(self._count, fragment, text))

    def end(self, *, complete: bool = True) -> None:
        """End the call, if there is one. Raises LastCall if no other may follow."""
        self.reader.settle()
        self.reader.live = None
        if not self._is_open:
            return
        self.reader.events.append(ToolCallEnd(self._count, complete))
        self._count += 1
        self._is_open, self.closing = False, complete
        if not self._parallel:
            raise LastCall

    def arguments(self, name: str) -> Reading[None]:
        """Begin a call and read the JSON object of its arguments, piece by piece."""
        if (yield from self.reader.peek()) != "{":
            raise Mismatch
        self.begin(name)
        self.reader.live = self.fragment
        yield from json_text.members(self.reader)
        self.end()

    def listed(self, bracket: str) -> Reading[None]:
        """Read call objects, separated by commas, and the bracket that ends them."""
        reader = self.reader
        while True:
            yield from reader.space()
            yield from reader.literal("{")
            yield from self.opened(levels=1)
            yield from reader.space()
            if not (yield from reader.any_of(",")):
                break
        yield from reader.literal(bracket)

    def opened(self, *, levels: int = LEVELS) -> Reading[None]:
        """Read {"name": …, "arguments": {…}} after its brace, in any order, or
        {"tool_calls": […]}; a missing brace at the end of a call is forgiven.

        `levels`: of objects that may hold calls; a list needs 2, a function 1.
        """
        self.closing = False
        yield from self.reader.space()
        key = yield from self.reader.one_of((LIST, *MEMBERS))
        if key != LIST:
            yield from self._members(key, levels)
            return
        if levels < LEVELS:
            raise Mismatch
        yield from self._colon()
        yield from self.reader.literal("[")
        yield from self.listed("]")
        yield from self.reader.space()
        yield from self.reader.literal("}")

    def whole(self, name: str, arguments: str) -> None:
        """Write a call whose arguments, as JSON, were made from what is held."""
        self.begin(name)
        self.write(arguments, "")
        self.end()

    def _members(self, key: str, levels: int) -> Reading[None]:
        """Read the members of a call object, after the first key."""
        reader = self.reader
        name, text = "", ""
        seen: set[str] = set()
        while True:
            kind = MEMBERS[key]
            if kind in seen:
                raise Mismatch
            seen.add(kind)
            yield from self._colon()
            if kind == FUNCTION and levels and (yield from reader.any_of("{")):
                yield from self.opened(levels=0)
                seen |= {NAME, ARGUMENTS}
            elif kind in (NAME, FUNCTION):
                name = self._names[(yield from reader.one_of(self._names))]
                seen.add(NAME)
                if text:
                    self.whole(name, text)
            elif kind != ARGUMENTS:
                yield from json_text.value(reader)
            elif name and (yield from reader.peek()) == "{":
                yield from self.arguments(name)
            else:
                text = yield from self._text()
                if name:
                    self.whole(name, text)
            yield from reader.space()
            if not (yield from reader.any_of(",")):
                break
            yield from reader.space()
            key = yield from reader.one_of(MEMBERS)
        if not {NAME, ARGUMENTS} <= seen:
            raise Mismatch
        yield from reader.any_of("}")
        reader.flush(Markup)

    def _colon(self) -> Reading[None]:
        yield from self.reader.space()
        yield from self.reader.literal(":")
        yield from self.reader.space()

    def _text(self) -> Reading[str]:
        """Read arguments that cannot be written yet, or that are a string of JSON;
        return them as a JSON object.
        """
        reader = self.reader
        start = len(reader.held)
        if (yield from reader.peek()) != '"':
            yield from json_text.members(reader)
            return reader.held[start:]
        yield from json_text.string(reader)
        text = json.loads(reader.held[start:])
        try:
            is_object = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise Mismatch
        return text
