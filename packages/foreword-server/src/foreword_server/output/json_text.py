"""A strict grammar of JSON (RFC 8259)."""

import re

from foreword_server.output.reader import Mismatch, Reader, Reading

DEPTH = 64
"""Levels. Deeper nesting is not read as a tool call, which bounds the stack."""
BLANKS = re.compile(r"[ \t]+")
"""White space within a line."""
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_DIGITS = re.compile(r"[0-9]+")
_HEX = "0123456789abcdefABCDEF"


def value(reader: Reader, depth: int = DEPTH) -> Reading[None]:
    """Read one value. Raises Mismatch at a character that cannot belong to it."""
    character = yield from reader.peek()
    if character == "{":
        yield from members(reader, depth)
    elif character == "[":
        yield from elements(reader, depth)
    elif character == '"':
        yield from string(reader)
    elif character in "tfn":
        yield from reader.one_of(("true", "false", "null"))
    else:
        yield from number(reader)


def members(reader: Reader, depth: int = DEPTH) -> Reading[None]:
    """Read one object."""
    yield from _open(reader, "{", depth)
    if (yield from reader.any_of("}")):
        return
    while True:
        yield from string(reader)
        yield from reader.space()
        yield from reader.literal(":")
        yield from reader.space()
        yield from value(reader, depth - 1)
        if not (yield from _more(reader, "}")):
            return


def elements(reader: Reader, depth: int = DEPTH) -> Reading[None]:
    """Read one array."""
    yield from _open(reader, "[", depth)
    if (yield from reader.any_of("]")):
        return
    while True:
        yield from value(reader, depth - 1)
        if not (yield from _more(reader, "]")):
            return


def string(reader: Reader) -> Reading[None]:
    """Read one string."""
    yield from reader.literal('"')
    while True:
        yield from reader.run(_PLAIN)
        if (yield from reader.any_of('"')):
            return
        yield from reader.literal("\\")
        if (yield from reader.any_of("u")):
            for _ in range(4):
                yield from _needed(reader, _HEX)
        else:
            yield from _needed(reader, '"\\/bfnrt')


def _open(reader: Reader, bracket: str, depth: int) -> Reading[None]:
    if not depth:
        raise Mismatch
    yield from reader.literal(bracket)
    yield from reader.space()


def _more(reader: Reader, bracket: str) -> Reading[bool]:
    """Read a comma, or the closing bracket. Returns whether another item follows."""
    yield from reader.space()
    if (yield from reader.any_of(bracket)):
        return False
    yield from reader.literal(",")
    yield from reader.space()
    return True


def number(reader: Reader) -> Reading[None]:
    """Read one number."""
    yield from reader.any_of("-")
    if not (yield from reader.any_of("0")):
        yield from _digits(reader)
    if (yield from reader.any_of(".")):
        yield from _digits(reader)
    if (yield from reader.any_of("eE")):
        yield from reader.any_of("+-")
        yield from _digits(reader)


def _digits(reader: Reader) -> Reading[None]:
    yield from _needed(reader, "0123456789")
    yield from reader.run(_DIGITS)


def _needed(reader: Reader, characters: str) -> Reading[None]:
    if not (yield from reader.any_of(characters)):
        raise Mismatch
