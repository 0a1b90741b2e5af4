"""<tool_call>{"name": …, "arguments": {…}}</tool_call>: Hermes, Qwen 2.5 and Qwen 3.

Source: NousResearch/Hermes-Function-Calling, and the chat templates of Qwen.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from foreword.chats import Function
from foreword.server.output.calls import Calls
from foreword.server.output.formats import grammar
from foreword.server.output.formats.base import Tag
from foreword.server.output.reader import Reading


class Hermes:
    """One tagged JSON object for each call, among content."""

    name = "hermes"
    openers = ("<tool_call>",)
    markers = ("<tool_call>", "</tool_call>")

    def used_by(self, template: str) -> bool:
        """Return whether the template has the tags, without GLM's parameter tags."""
        return "<tool_call>" in template and "<arg_key>" not in template

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read the object and the closing tag."""
        yield from calls.reader.space()
        yield from calls.reader.literal("{")
        yield from calls.opened()
        yield from calls.reader.space()
        yield from calls.reader.literal("</tool_call>")

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of tagged calls, one on each line."""
        return grammar.separated(_tag(functions, special), "\n", parallel=parallel)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with tagged calls."""
        return grammar.triggered(
            "<tool_call>", _tag(functions, special), special, parallel=parallel
        )


def _tag(functions: Sequence[Function], special: Collection[str]) -> Tag:
    def call(function: Function) -> Tag:
        begin = f'\n{{"name": {json.dumps(function.name)}, "arguments": '
        return grammar.sequence(
            grammar.const(begin), grammar.arguments(function), grammar.const("}\n")
        )

    return grammar.tag(
        "<tool_call>", grammar.one_of(functions, call), "</tool_call>", special
    )


FORMAT = Hermes()
