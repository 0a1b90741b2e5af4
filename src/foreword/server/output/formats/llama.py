"""{"name": …, "parameters": {…}}, optionally after <|python_tag|>, several joined by
";": Llama 3.1 to 3.3.

Source: the chat templates of Llama 3. Calls of its built-in tools, which are Python,
stay content.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from foreword.chats import Function
from foreword.server.output.calls import Calls
from foreword.server.output.formats import grammar
from foreword.server.output.formats.base import Tag
from foreword.server.output.reader import Reading


class Llama:
    """A bare JSON object for each call."""

    name = "llama"
    openers = ("<|python_tag|>", "{")
    markers = ("<|python_tag|>",)

    def used_by(self, template: str) -> bool:
        """Return whether the template has the tag, or Llama's words for a
        bare object.
        """
        return (
            "<|python_tag|>" in template
            or "dictionary of argument name and its value" in template
        )

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read the calls."""
        reader = calls.reader
        if opener != "{":
            yield from reader.space()
            yield from reader.literal("{")
        while True:
            yield from calls.opened()
            yield from reader.space()
            if not (yield from reader.any_of(";")):
                return
            yield from reader.space()
            yield from reader.literal("{")

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of objects joined by "; "."""
        return grammar.separated(_tag(functions), "; ", parallel=parallel)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with such objects."""
        return grammar.triggered(_BEGIN, _tag(functions), (), parallel=parallel)


_BEGIN = '{"name": '


def _tag(functions: Sequence[Function]) -> Tag:
    def call(function: Function) -> Tag:
        begin = grammar.const(f'{json.dumps(function.name)}, "parameters": ')
        return grammar.sequence(begin, grammar.arguments(function))

    return grammar.tag(_BEGIN, grammar.one_of(functions, call), "}")


FORMAT = Llama()
