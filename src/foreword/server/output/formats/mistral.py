"""[TOOL_CALLS][{"name": …, "arguments": {…}}], or [TOOL_CALLS]name[ARGS]{…} for each
call: Mistral.

Source: the chat templates of Mistral 7B v0.3 and of Mistral Small 3.2. Both forms are
read, whichever was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from foreword.chats import Function
from foreword.server.output.calls import Calls
from foreword.server.output.formats import grammar
from foreword.server.output.formats.base import Tag
from foreword.server.output.reader import Reading

_OPENER = "[TOOL_CALLS]"
_ARGS = "[ARGS]"
_ID = "[CALL_ID]"
_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Mistral:
    """A marked list of JSON objects."""

    name = "mistral"
    openers = (_OPENER,)
    markers = (_OPENER, _ARGS, _ID)

    def used_by(self, template: str) -> bool:
        """Return whether the template has the marker of calls, and none of
        arguments.
        """
        return _OPENER in template and _ARGS not in template

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read a list of calls, or a name and its arguments."""
        yield from calls.reader.space()
        if (yield from calls.reader.any_of("[")):
            yield from calls.listed("]")
        else:
            yield from _named(calls)

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of one list."""
        return self._list(functions, parallel, special)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with lists."""
        return grammar.triggered(
            _OPENER,
            self._list(functions, parallel, special),
            special,
            parallel=parallel,
        )

    @staticmethod
    def _list(
        functions: Sequence[Function], parallel: bool, special: Collection[str]
    ) -> Tag:
        def call(function: Function) -> Tag:
            begin = grammar.const(f'"name": {json.dumps(function.name)}, "arguments": ')
            return grammar.sequence(begin, grammar.arguments(function))

        one = grammar.tag("{", grammar.one_of(functions, call), "}")
        calls = grammar.separated(one, ", ", parallel=parallel)
        return grammar.tag(
            _OPENER, grammar.sequence(grammar.const("["), calls), "]", special
        )


class MistralArgs(Mistral):
    """A marked name and its arguments for each call."""

    name = "mistral-args"

    def used_by(self, template: str) -> bool:
        """Return whether the template has the marker of arguments."""
        return _OPENER in template and _ARGS in template

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of calls without anything between them."""
        return grammar.separated(_marked(functions, special), "", parallel=parallel)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with calls."""
        return grammar.triggered(
            _OPENER, _marked(functions, special), special, parallel=parallel
        )


def _marked(functions: Sequence[Function], special: Collection[str]) -> Tag:
    def call(function: Function) -> Tag:
        name, marker = grammar.const(function.name), grammar.token(_ARGS, special)
        return grammar.sequence(name, marker, grammar.arguments(function))

    return grammar.tag(_OPENER, grammar.one_of(functions, call), "", special)


def _named(calls: Calls) -> Reading[None]:
    """Read name[ARGS]{…} or name{…}; an id of the model's own may follow the name."""
    reader = calls.reader
    name = yield from reader.one_of(calls.schemas)
    if (yield from reader.peek()) == "[":
        marker = yield from reader.one_of((_ID, _ARGS))
        if marker == _ID:
            while (yield from reader.any_of(_ID_CHARACTERS)):
                pass
            yield from reader.literal(_ARGS)
    yield from reader.space()
    yield from calls.arguments(name)


FORMAT = Mistral()
ARGUMENTS = MistralArgs()
"""The same with arguments marked by a token of their own."""
