"""<tool_call><function=…><parameter=…>value</parameter></function></tool_call>:
Qwen3-Coder and Qwen 3.5.

Source: the chat template of Qwen3-Coder. Values are not JSON here; they become it by
the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

from foreword.chats import Function
from foreword.server.output.calls import Calls
from foreword.server.output.formats import grammar
from foreword.server.output.formats.base import Tag
from foreword.server.output.reader import Mismatch, Reader, Reading

_CLOSE = "</parameter>"
_KEY = re.compile(r"[^<>\n]+")
_LINE = re.compile(r"[^<\n]+")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Python's words for JSON's."""


class QwenCoder:
    """Tags for the function and for each parameter."""

    name = "qwen-coder"
    openers = ("<tool_call>", "<function=")
    markers = ("<tool_call>", "</tool_call>")

    def used_by(self, template: str) -> bool:
        """Return whether the template shows such tags."""
        return "<function=" in template and "<parameter=" in template

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read the function and the closing tags."""
        reader = calls.reader
        if opener == "<tool_call>":
            yield from reader.space()
            yield from reader.literal("<function=")
        name = yield from reader.one_of(calls.schemas)
        yield from reader.literal(">")
        calls.begin(name)
        yield from _parameters(calls, calls.schemas[name])
        calls.end()
        yield from reader.space()
        yield from reader.literal("</tool_call>")

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of tagged calls, one after the other."""
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
        begin = grammar.const(f"\n<function={function.name}>\n")
        end = grammar.const("\n</function>\n")
        # no string may hold the closing tag
        values = grammar.arguments(function, style="qwen_xml", excludes=[_CLOSE])
        return grammar.sequence(begin, values, end)

    return grammar.tag(
        "<tool_call>", grammar.one_of(functions, call), "</tool_call>", special
    )


def _parameters(calls: Calls, schema: Mapping[str, object]) -> Reading[None]:
    """Read all parameters and the closing tag of the function, and write them as one
    JSON object.
    """
    reader, separator = calls.reader, "{"
    properties = schema.get("properties")
    while True:
        yield from reader.space()
        if (yield from reader.one_of(("<parameter=", "</function>"))) == "</function>":
            _write(calls, "}" if separator == ", " else "{}")
            return
        start = len(reader.held)
        yield from reader.run(_KEY)
        key = reader.held[start:]
        yield from reader.literal(">")
        yield from reader.any_of("\n")
        _write(calls, f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        kind = properties.get(key) if isinstance(properties, Mapping) else None
        if isinstance(kind, Mapping) and kind.get("type") == "string":
            yield from _string(calls)
        else:
            yield from _value(calls)


def _string(calls: Calls) -> Reading[None]:
    """Read the value of a string, and write it as it arrives."""
    reader = calls.reader
    calls.write('"', "")
    while not (yield from _closed(reader)):
        reader.take_run(_LINE)
        _write(calls, _escaped(reader.held))
    _write(calls, '"')


def _value(calls: Calls) -> Reading[None]:
    """Read any other value, and write it when it is whole."""
    reader = calls.reader
    while True:
        before = len(reader.held)
        if (yield from _closed(reader)):
            break
        reader.take_run(_LINE)
    _write(calls, _as_json(reader.held[:before]))


def _closed(reader: Reader) -> Reading[bool]:
    """Read the closing tag and the line break before it, if they are next; else at
    least one character.
    """
    before = len(reader.held)
    try:
        yield from reader.any_of("\n")
        yield from reader.literal(_CLOSE)
    except Mismatch:
        if before == len(reader.held):
            yield from reader.peek()
            reader.take()
        return False
    return True


def _write(calls: Calls, fragment: str) -> None:
    """Write JSON that was made from what is held."""
    calls.write(fragment, calls.reader.held)
    calls.reader.held = ""


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(text: str) -> str:
    """Return the text if it is JSON, else a JSON string of it."""
    plain = _PYTHON.get(text.strip(), text.strip())
    try:
        json.loads(plain, parse_constant=_refused)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return plain


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


FORMAT = QwenCoder()
