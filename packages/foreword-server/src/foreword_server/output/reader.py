"""Reading of text that arrives in pieces: grammars are generators, which pause where
the text so far ends.

A grammar decides character by character, so its events do not depend on where the
pieces were cut.
"""

import re
from collections.abc import Callable, Collection, Generator
from typing import TypeVar

from foreword_server.output.events import Event

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A grammar: yields where it needs more text, returns what it read."""
SPACE = " \t\r\n"
"""The white space of JSON."""
_SPACE = re.compile(f"[{SPACE}]+")


class Mismatch(Exception):
    """Text that the grammar does not expect, at the next unread character."""


class Ended(Exception):
    """The end of the output, raised where a grammar waits for more text."""


class Reader:
    """Text as it arrives, and the events it becomes.

    Characters that were read are held until `flush` turns them into an event. Where
    `live` is set, a pause does so.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.held = ""
        self.live: Callable[[str], Event] | None = None
        self._text = ""
        self._at = 0
        self._forgotten = 0

    @property
    def position(self) -> int:
        """Number of characters read."""
        return self._forgotten + self._at

    def feed(self, text: str) -> None:
        """Append text. What was read is forgotten."""
        self._forgotten += self._at
        self._text, self._at = self._text[self._at :] + text, 0

    def flush(self, make: Callable[[str], Event]) -> None:
        """Turn the held characters, if any, into an event."""
        if self.held:
            self.events.append(make(self.held))
            self.held = ""

    def settle(self) -> None:
        """Flush what `live` has claimed."""
        if self.live:
            self.flush(self.live)

    def peek(self) -> Reading[str]:
        """Return the next character without reading it."""
        while self._at == len(self._text):
            self.settle()
            yield
        return self._text[self._at]

    def take(self) -> None:
        """Read the character that `peek` returned."""
        self.held += self._text[self._at]
        self._at += 1

    def take_run(self, pattern: re.Pattern[str]) -> None:
        """Read what matches of the text that has arrived: for patterns that repeat one
        class of characters.
        """
        match = pattern.match(self._text, self._at)
        if match:
            self.held += match.group()
            self._at = match.end()

    def run(self, pattern: re.Pattern[str]) -> Reading[None]:
        """Read all characters that match, up to the first that does not."""
        while True:
            yield from self.peek()
            before = self._at
            self.take_run(pattern)
            if before == self._at:
                return

    def space(self) -> Reading[None]:
        """Read white space, if any."""
        yield from self.run(_SPACE)

    def any_of(self, characters: str) -> Reading[str]:
        """Read one of these characters if it is next; return it, or "" if it is not."""
        character = yield from self.peek()
        if character not in characters:
            return ""
        self.take()
        return character

    def literal(self, text: str) -> Reading[None]:
        """Read exactly this text."""
        for expected in text:
            if (yield from self.peek()) != expected:
                raise Mismatch
            self.take()

    def one_of(self, words: Collection[str]) -> Reading[str]:
        """Read on while a word can still match, and return the word that was read."""
        read, longer = "", [*words]
        while longer:
            character = yield from self.peek()
            longer = [word for word in longer if word.startswith(read + character)]
            if not longer:
                break
            self.take()
            read += character
            longer = [word for word in longer if len(word) > len(read)]
        if read not in words:
            raise Mismatch
        return read
