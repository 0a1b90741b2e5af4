"""Prompt lookup: what followed the last few tokens the last time they occurred, in prompt or output, may follow again.

Knows the tokens of each sequence; needs no model. After Saxena 2023, "Prompt Lookup Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence as List

from foreword.draft.base import Drafter, chosen
from foreword.errors import InvalidRequest
from foreword.types import Batch, Draft, Sequence


class NgramDrafter(Drafter):
    """Copies what followed the longest n-gram that the text ends with, from its most recent earlier occurrence.

    On chat answers n from 1 to 4 gives all that longer n-grams give; on long source code a longer n adds below 1 %.
    The most recent occurrence beats the first one. Guesses from n = 1 are often wrong but cost only their scoring;
    how many are scored is not decided here.
    """

    summary = "copies what followed the last few tokens earlier in the text"

    def __init__(self, max_ngram: int = 4, min_ngram: int = 1) -> None:
        """Look for n-grams of `max_ngram` down to `min_ngram` tokens. Raises InvalidRequest unless 1 <= min <= max."""
        if not 1 <= min_ngram <= max_ngram:
            raise InvalidRequest(f"n-grams need 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}")
        self._sizes = range(min_ngram, max_ngram + 1)
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return chosen([self._guess(s, budget) for s, budget in zip(batch.sequences, nodes, strict=True)])

    def release(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence.id, None)

    def _guess(self, sequence: Sequence, budget: int) -> list[int]:
        """At most `budget` tokens, none after an end-of-text token."""
        if budget <= 0:
            return []
        index = self._indexes.get(sequence.id)
        if index is None:
            index = self._indexes[sequence.id] = NgramIndex(self._sizes)
        tokens = sequence.tokens
        index.read(tokens)
        start = index.find(tokens)
        if start is None:
            return []
        guess = copied(tokens, start, budget)
        ends = [place for place, token in enumerate(guess, 1) if token in sequence.eos]
        return guess[: ends[0]] if ends else guess


class NgramIndex:
    """For each n-gram of one growing text, where its latest occurrence that has a continuation ends.

    Work is constant for each new token. Memory grows by at most one entry for each size and token.
    """

    __slots__ = ("_ends", "_read", "_sizes")

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = 0
        """N-grams that end here or before are known."""

    def read(self, tokens: list[int]) -> None:
        """Take note of what was appended since the last call; n-grams at the very end wait: nothing follows them."""
        ends, sizes = self._ends, self._sizes
        for end in range(self._read + 1, len(tokens)):
            for size in sizes:
                if size > end:
                    break
                ends[tuple(tokens[end - size : end])] = end
        self._read = max(self._read, len(tokens) - 1)

    def find(self, tokens: list[int]) -> int | None:
        """Where the continuation of the longest known n-gram at the end of `tokens` begins; None if none is known."""
        start = None
        for size in self._sizes:
            end = self._ends.get(tuple(tokens[-size:]))
            if end is None:  # every occurrence of a longer n-gram would have been one of this
                break
            start = end
        return start


def copied(tokens: list[int], start: int, count: int) -> list[int]:
    """The `count` tokens from `start` on; a copy that reaches the end goes on with itself, as in LZ77.

    So a text that has begun to repeat itself is continued for the whole budget, however short the period.
    """
    guess = tokens[start : start + count]
    period = len(guess)
    return guess if period == count else [guess[place % period] for place in range(count)]
