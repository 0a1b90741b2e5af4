"""The forms in which models write calls, all of them read for every family.

A model writes what it saw in training, not what its template asks for: Qwen2.5-Coder
fences its calls, and its template wants tags.
"""

from foreword_server.output.calls import Calls
from foreword_server.output.forms import marked, python, tagged
from foreword_server.output.reader import Mismatch, Reading

FRAMES = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<tools>": "</tools>",
    "<function_call>": "</function_call>",
    "<function_calls>": "</function_calls>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "[TOOL_CALLS]": "",
    "<|python_tag|>": "",
    "```json": "```",
    "```tool_call": "```",
    "```tool_code": "```",
    "```": "```",
}
"""What begins a frame of calls -> what ends it."""
FENCES = ("```", "```json")
"""Frames of Markdown, where Python is an example and no call."""
OPENERS = (*FRAMES, *marked.OPENERS, tagged.FUNCTION, "{", "[")
"""All that may begin calls within a text."""


def read(opener: str, calls: Calls) -> Reading[None]:
    """Read the calls after an opener, and their frame. Raises Mismatch."""
    reader = calls.reader
    if opener in marked.OPENERS:
        yield from marked.read(opener, calls)
        return
    if opener == tagged.FUNCTION:
        yield from tagged.function(calls)
        yield from reader.space()
        yield from reader.literal(FRAMES["<tool_call>"])
        return
    if opener not in FRAMES:
        yield from _several(calls, opener)
        return
    end = FRAMES[opener]
    yield from reader.space()
    is_closed = yield from _several(calls, "", data=opener in FENCES)
    if not is_closed:
        yield from reader.space()
        yield from reader.literal(end)


def _several(calls: Calls, begun: str, *, data: bool = False) -> Reading[bool]:
    """Read calls, with a comma, a semicolon or white space between them.

    `begun`: the bracket that was read. `data`: whether only JSON is a call. Returns
    whether the last one ended its frame.
    """
    reader = calls.reader
    is_framed = not begun
    while True:
        bracket = begun or (yield from reader.any_of("{[<"))
        begun = ""
        if data and bracket not in ("{", "["):
            raise Mismatch
        if (yield from _read(calls, bracket)):
            return True
        yield from reader.space()
        if (yield from reader.any_of(",;")):
            calls.closing = False
            yield from reader.space()
        elif not is_framed or (yield from reader.peek()) != "{":
            return False


def _read(calls: Calls, bracket: str) -> Reading[bool]:
    """Read calls after a bracket, "" for a name; return whether their frame ended."""
    reader = calls.reader
    if bracket == "{":
        yield from calls.opened()
    elif bracket == "[":
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from calls.listed("]")
        else:
            yield from python.listed(calls)
    elif bracket == "<":
        yield from reader.literal(tagged.FUNCTION[1:])
        yield from tagged.function(calls)
    else:
        return (yield from _named(calls))
    return False


def _named(calls: Calls) -> Reading[bool]:
    """Read a call that begins with its name; return whether it ended its frame."""
    reader = calls.reader
    if (yield from reader.peek()) == "p" and "print" not in calls.schemas:
        yield from python.printed(calls)
        return False
    name = yield from reader.one_of(calls.schemas)
    after = yield from reader.peek()
    if after == "(":
        yield from python.call(calls, name)
        return False
    if after == "[":
        yield from marked.arguments_marker(reader)
    yield from reader.space()
    if (yield from reader.peek()) == "<":
        yield from tagged.pairs(calls, name)
        return True
    yield from calls.arguments(name)
    return False
