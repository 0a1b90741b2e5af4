"""{"tool_calls": [{"name": …, "arguments": {…}}]}, or one such object: for models whose
template knows no tools.

The text that asks a model for it is `foreword.chats.instruction`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from foreword.chats import Function
from foreword.server.output.calls import KEYS, Calls
from foreword.server.output.formats import grammar
from foreword.server.output.formats.base import Tag
from foreword.server.output.reader import Reading

_LIST = '"tool_calls"'
_FENCES = ("```json", "```")


class Generic:
    """A JSON object with a list of calls, or with one; a Markdown fence around it is
    forgiven.
    """

    name = "generic"
    openers = ("{", *_FENCES)
    markers = ()

    def used_by(self, template: str) -> bool:
        """Return False: no template asks for it."""
        return False

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read the object and the fence."""
        reader = calls.reader
        if opener != "{":
            yield from reader.space()
            yield from reader.literal("{")
        yield from reader.space()
        key = yield from reader.one_of((_LIST, *KEYS))
        if key == _LIST:
            yield from _list(calls)
        else:
            yield from calls.rest(key)
        if opener != "{":
            yield from reader.space()
            yield from reader.literal(_FENCES[1])

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of one object with a list."""
        return _tag(functions, parallel)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with such objects."""
        return grammar.triggered(
            _BEGIN, _tag(functions, parallel), (), parallel=parallel
        )


_BEGIN = f"{{{_LIST}: ["


def _list(calls: Calls) -> Reading[None]:
    reader = calls.reader
    yield from reader.space()
    yield from reader.literal(":")
    yield from reader.space()
    yield from reader.literal("[")
    yield from calls.listed("]")
    yield from reader.space()
    yield from reader.literal("}")


def _tag(functions: Sequence[Function], parallel: bool) -> Tag:
    def call(function: Function) -> Tag:
        begin = grammar.const(f'"name": {json.dumps(function.name)}, "arguments": ')
        return grammar.sequence(begin, grammar.arguments(function))

    one = grammar.tag("{", grammar.one_of(functions, call), "}")
    return grammar.tag(_BEGIN, grammar.separated(one, ", ", parallel=parallel), "]}")


FORMAT = Generic()
