"""Calls in Python's syntax, values literal: Llama 3.2 and 4, Gemma, LFM2, Olmo 3."""

import json
import re

from foreword_server.output import json_text
from foreword_server.output.calls import Calls
from foreword_server.output.reader import Ended, Mismatch, Reader, Reading

WORDS = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\n": "", **{one: one for one in "\\'\""}}
"""Letter after a backslash -> what both are; other letters keep their backslash."""
_NAME = re.compile(r"[A-Za-z0-9_]+")
_HOLDERS = ("default_api.", "functions.", "")
"""What Gemma's templates write before a name."""


def call(calls: Calls, name: str) -> Reading[None]:
    """Read the arguments of a call, and write them as one JSON object."""
    calls.whole(name, (yield from arguments(calls.reader)))


def listed(calls: Calls) -> Reading[None]:
    """Read calls, separated by commas, and the bracket that ends them."""
    reader = calls.reader
    while True:
        yield from call(calls, (yield from reader.one_of(calls.schemas)))
        yield from reader.space()
        if not (yield from reader.any_of(",")):
            break
        calls.closing = False
        yield from reader.space()
    yield from reader.literal("]")


def printed(calls: Calls) -> Reading[None]:
    """Read a call within `print()`."""
    reader = calls.reader
    yield from reader.literal("print(")
    names = {part + name: name for part in _HOLDERS for name in calls.schemas}
    yield from call(calls, names[(yield from reader.one_of(names))])
    yield from reader.literal(")")


def lines(calls: Calls) -> Reading[None]:
    """Read calls that are whole lines, or raise Mismatch."""
    reader = calls.reader
    while True:
        name = yield from reader.one_of(calls.schemas)
        text = yield from arguments(reader)
        try:
            yield from reader.run(json_text.BLANKS)
            ends = (yield from reader.peek()) in "\r\n;"
        except Ended:
            ends = True
        if not ends:
            raise Mismatch
        calls.whole(name, text)
        yield from reader.any_of(";")
        yield from reader.space()


def arguments(reader: Reader) -> Reading[str]:
    """Read (key=value, …); return it as a JSON object."""
    values: dict[str, object] = {}
    yield from reader.literal("(")
    yield from reader.space()
    while not (yield from reader.any_of(")")):
        start = len(reader.held)
        yield from reader.run(_NAME)
        key = reader.held[start:]
        if not key or key in values:
            raise Mismatch
        yield from reader.space()
        yield from reader.literal("=")
        yield from reader.space()
        values[key] = yield from _value(reader, json_text.DEPTH)
        yield from reader.space()
        if not (yield from reader.any_of(",")):
            yield from reader.literal(")")
            break
        yield from reader.space()
    return json.dumps(values, ensure_ascii=False)


def _value(reader: Reader, depth: int) -> Reading[object]:
    character = yield from reader.peek()
    if character in "'\"":
        return (yield from _string(reader))
    if character in "TFNtfn":
        return WORDS[(yield from reader.one_of(WORDS))]
    if character in "[(":
        reader.take()
        return (yield from _items(reader, "])"["[(".index(character)], depth - 1))
    if character == "{":
        reader.take()
        return (yield from _members(reader, depth - 1))
    start = len(reader.held)
    yield from json_text.number(reader)
    return json.loads(reader.held[start:])


def _items(reader: Reader, bracket: str, depth: int) -> Reading[list[object]]:
    values: list[object] = []
    while (yield from _goes_on(reader, bracket, depth, first=not values)):
        values.append((yield from _value(reader, depth)))
    return values


def _members(reader: Reader, depth: int) -> Reading[dict[str, object]]:
    values: dict[str, object] = {}
    while (yield from _goes_on(reader, "}", depth, first=not values)):
        key = yield from _string(reader)
        yield from reader.space()
        yield from reader.literal(":")
        yield from reader.space()
        values[key] = yield from _value(reader, depth)
    return values


def _goes_on(reader: Reader, bracket: str, depth: int, *, first: bool) -> Reading[bool]:
    """Read up to the next item or the closing bracket; return whether one follows."""
    if not depth:
        raise Mismatch
    yield from reader.space()
    if not first:
        comma = yield from reader.any_of(",")
        yield from reader.space()
        if not comma:
            yield from reader.literal(bracket)
            return False
    return not (yield from reader.any_of(bracket))


def _string(reader: Reader) -> Reading[str]:
    """Read a string of any of Python's four quotes; return its value."""
    quote = yield from reader.any_of("'\"")
    if not quote:
        raise Mismatch
    if (yield from reader.any_of(quote)):
        if not (yield from reader.any_of(quote)):
            return ""
        quote *= 3
    text, quotes = "", ""
    while quotes != quote:
        character = yield from reader.peek()
        if character == "\n" and len(quote) == 1:
            raise Mismatch
        reader.take()
        if character == quote[0]:
            quotes += character
            continue
        if character == "\\":
            character = yield from _escape(reader)
        text += quotes + character
        quotes = ""
    return text


def _escape(reader: Reader) -> Reading[str]:
    letter = yield from reader.peek()
    reader.take()
    return ESCAPES.get(letter, "\\" + letter)
