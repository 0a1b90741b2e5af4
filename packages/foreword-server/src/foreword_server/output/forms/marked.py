"""Calls between tokens of their own: DeepSeek V3, Kimi K2; the marker of arguments of
Mistral.

Source: their chat templates.
"""

from dataclasses import dataclass

from foreword_server.output.calls import Calls
from foreword_server.output.reader import Reader, Reading

ARGS = "[ARGS]"
ID = "[CALL_ID]"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens around calls, around each call, and before its arguments; "": none."""

    begin: str
    end: str
    call: str
    call_end: str
    arguments: str
    kinds: tuple[str, ...]
    """What may stand before the name."""


DEEPSEEK = Marks(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    ("function<｜tool▁sep｜>",),
)
KIMI = Marks(
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    ("functions.",),
)
MISTRAL = Marks("", "", "[TOOL_CALLS]", "", ARGS, ())
_BY_OPENER = {
    opener: marks for marks in (DEEPSEEK, KIMI) for opener in (marks.begin, marks.call)
}
OPENERS = tuple(_BY_OPENER)


def read(opener: str, calls: Calls) -> Reading[None]:
    """Read calls after the token that begins them all, or the first one."""
    marks, reader = _BY_OPENER[opener], calls.reader
    if opener == marks.begin:
        yield from reader.space()
        yield from reader.literal(marks.call)
    while True:
        yield from _call(calls, marks)
        yield from reader.space()
        if (yield from reader.one_of((marks.call, marks.end))) == marks.end:
            return
        calls.closing = False


def _call(calls: Calls, marks: Marks) -> Reading[None]:
    reader = calls.reader
    names = {kind + name: name for kind in ("", *marks.kinds) for name in calls.schemas}
    name = names[(yield from reader.one_of(names))]
    if (yield from reader.any_of(":")):
        while (yield from reader.any_of(DIGITS)):
            pass
    yield from reader.space()
    is_fenced = (yield from reader.peek()) == "`"
    yield from reader.literal("```json" if is_fenced else marks.arguments)
    yield from reader.space()
    yield from calls.arguments(name)
    yield from reader.space()
    if is_fenced:
        yield from reader.literal("```")
        yield from reader.space()
    yield from reader.literal(marks.call_end)


def arguments_marker(reader: Reader) -> Reading[None]:
    """Read what stands between name and arguments: [ARGS], after an id of the model's
    own or without one.
    """
    if (yield from reader.one_of((ID, ARGS))) == ARGS:
        return
    while (yield from reader.any_of(LETTERS + DIGITS)):
        pass
    yield from reader.literal(ARGS)
