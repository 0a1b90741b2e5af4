"""Calls whose arguments have tags: Qwen3-Coder and Qwen 3.5, GLM 4.5.

Source: their chat templates. Values are not JSON here; they become it by the tool's
schema.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from foreword_server.output.calls import Calls
from foreword_server.output.reader import Mismatch, Reader, Reading

FUNCTION = "<function="
_KEY = re.compile(r"[^<>\n]+")
_LINE = re.compile(r"[^<\n]+")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Python's words for JSON's."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Tags around the key and the value of an argument, and after the last one."""

    key: str
    key_end: str
    value: str
    """After the key's end; "" where that begins the value."""
    value_end: str
    end: str


QWEN = Tags("<parameter=", ">", "", "</parameter>", "</function>")
GLM = Tags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")


def function(calls: Calls) -> Reading[None]:
    """Read a call after FUNCTION, up to its closing tag."""
    name = yield from calls.reader.one_of(calls.schemas)
    yield from calls.reader.literal(">")
    yield from _call(calls, name, QWEN)


def pairs(calls: Calls, name: str) -> Reading[None]:
    """Read a call after its name, up to the end of its frame."""
    yield from _call(calls, name, GLM)


def _call(calls: Calls, name: str, tags: Tags) -> Reading[None]:
    """Read all arguments and the tag after them, and write them as one JSON object."""
    reader = calls.reader
    opener = yield from _next(reader, tags)
    calls.begin(name)
    separator = "{"
    while opener == tags.key:
        key = yield from _key(reader, tags)
        _write(calls, f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        if _is_string(calls.schemas[name], key):
            yield from _string(calls, tags.value_end)
        else:
            yield from _value(calls, tags.value_end)
        opener = yield from _next(reader, tags)
    _write(calls, "}" if separator == ", " else "{}")
    calls.end()


def _next(reader: Reader, tags: Tags) -> Reading[str]:
    """Read the tag before a key, or after the last argument."""
    yield from reader.space()
    return (yield from reader.one_of((tags.key, tags.end)))


def _key(reader: Reader, tags: Tags) -> Reading[str]:
    """Read a key, and all that stands before its value."""
    start = len(reader.held)
    yield from reader.run(_KEY)
    key = reader.held[start:]
    yield from reader.literal(tags.key_end)
    if tags.value:
        yield from reader.space()
        yield from reader.literal(tags.value)
    yield from reader.any_of("\n")
    return key


def _is_string(schema: Mapping[str, object], key: str) -> bool:
    properties = schema.get("properties")
    about = properties.get(key) if isinstance(properties, Mapping) else None
    return isinstance(about, Mapping) and about.get("type") == "string"


def _string(calls: Calls, end: str) -> Reading[None]:
    """Read the value of a string, and write it as it arrives."""
    reader = calls.reader
    calls.write('"', "")
    while not (yield from _closed(reader, end)):
        reader.take_run(_LINE)
        _write(calls, _escaped(reader.held))
    _write(calls, '"')


def _value(calls: Calls, end: str) -> Reading[None]:
    """Read any other value, and write it when it is whole."""
    reader = calls.reader
    while True:
        before = len(reader.held)
        if (yield from _closed(reader, end)):
            break
        reader.take_run(_LINE)
    _write(calls, _as_json(reader.held[:before]))


def _closed(reader: Reader, end: str) -> Reading[bool]:
    """Read the closing tag and the line break before it, or at least one character."""
    before = len(reader.held)
    try:
        yield from reader.any_of("\n")
        yield from reader.literal(end)
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
