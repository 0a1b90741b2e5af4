"""Arguments of a tool call that was cut off, as it comes back in a history."""

import json
import re
from collections import deque
from typing import Any

_BROKEN = re.compile(r"(?<!\\)((?:\\\\)*)\\(u[0-9a-fA-F]{0,3})?$")
"""An escape that was cut off at the end of a text, after whole ones of backslashes."""
DEEPEST = 64
"""Levels. Deeper texts are not closed: each place holds its open brackets."""
TRIES = 8
"""Places, from the end on, at which a cut text is closed."""


class CutArguments(dict[str, Any]):
    """What a cut JSON object holds so far, for templates that read its members."""

    text: str
    """The text as it was written, for templates that show it."""


def cut_arguments(text: str) -> CutArguments | None:
    """Return the arguments of a text cut inside a JSON object, else None."""
    for beginning in _closed(text):
        try:
            value = json.loads(beginning)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            arguments = CutArguments(value)
            arguments.text = text
            return arguments
    return None


def _closed(text: str) -> list[str]:
    """Return beginnings of a JSON text with their strings and brackets closed, the
    longest first; none if the text itself is closed.
    """
    open_: list[str] = []
    in_string = escaped = False
    ends: deque[tuple[int, str]] = deque(maxlen=TRIES)
    for at, letter in enumerate(text):
        if in_string:
            in_string = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            in_string = True
        elif letter in "{[":
            open_.append("}" if letter == "{" else "]")
            if len(open_) > DEEPEST:
                return []
            ends.append((at + 1, "".join(reversed(open_))))
        elif letter in "}]" and open_:
            open_.pop()
        elif letter == ",":
            ends.append((at, "".join(reversed(open_))))
    if not open_:
        return []
    whole = _BROKEN.sub(r"\1", text) + '"' if in_string else text
    shorter = [text[:at] + closing for at, closing in reversed(ends)]
    return [whole + "".join(reversed(open_)), *shorter]
