"""Rejects a text by its number of characters, before a tokenizer reads all of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from foreword.errors import ContextExceeded

LEAST_LONGEST = 32
"""Characters.

A tokenizer may read a longer word as one unknown token, so a shorter longest token
bounds nothing.
"""
SAMPLED = 8
"""Characters for each token of the context that are tokenized alone, of a text of twice
as many.
"""
MARGIN = 1.125
"""Tokens of the sample over the context, from which on the text is refused: its end may
join with what follows.
"""


@dataclass(frozen=True)
class TextLimit:
    """The longest text that a context can hold."""

    context: int
    """Tokens of the longest prompt."""
    pieces: Callable[[], dict[str, int]]
    """Return the vocabulary: the text of each token."""
    tokenize: Callable[[str], list[int]]

    @cached_property
    def longest(self) -> int:
        """Characters of the longest token."""
        return max(LEAST_LONGEST, *map(len, self.pieces()))

    @property
    def unchecked(self) -> int:
        """Characters. A text of at most this length is tokenized at once."""
        return 2 * SAMPLED * self.context

    def check(self, text: str) -> None:
        """Raise ContextExceeded for a text that cannot fit the context."""
        if len(text) <= self.unchecked:
            return
        if len(text) > self.longest * self.context:
            raise self._too_long(text, "at least", len(text) // self.longest)
        sample = len(self.tokenize(text[: SAMPLED * self.context]))
        if sample > MARGIN * self.context:
            raise self._too_long(text, "more than", sample)

    def _too_long(self, text: str, about: str, tokens: int) -> ContextExceeded:
        return ContextExceeded(
            f"cannot run this request: the prompt has {about} {tokens} tokens in "
            f"{len(text)} characters, and the context holds {self.context}. Shorten it",
            prompt=max(tokens, self.context + 1),
            limit=self.context,
        )


def characters(value: object) -> int:
    """Return the characters of all strings in a message, or in a list of messages."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(characters, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(characters, value))
    return 0
