"""The last tokens of one text or many, indexed so that earlier places with the same last tokens are found at once.

Knows token ids and places; knows nothing about sequences, tenants or guesses.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as List
from itertools import accumulate

from foreword.native import ballots

SIZES = (16, 8, 4, 2, 1)
"""Lengths of the runs that are indexed, longest first."""
GAP = -1
"""Stands between two texts: no context holds it, so nothing is found across it."""
STEPS = 4
"""Places looked at for each that is wanted: other runs with the same slot lie between, and runs found already."""
_BASE, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class History:
    """A ring of tokens and, for each of SIZES, a hash table of runs: the latest place of each, and the one before.

    A *place* is the number of tokens noted before it, forgotten ones included. Work is constant for each token noted
    and each place looked at. Memory is taken at once: 12 bytes a token, and 16 to 24 for each of SIZES. Runs are told
    apart by 64-bit rolling hashes (Karp and Rabin 1987); should two ever agree by chance, it costs a guess.
    """

    __slots__ = ("_before", "_hashes", "_latest", "_powers", "_shift", "_tokens", "capacity", "end", "index")

    def __init__(self, capacity: int) -> None:
        """Room for the last `capacity` tokens."""
        bits = max(SIZES[0], capacity - 1).bit_length()
        self.capacity, self.end = max(2 * SIZES[0], capacity), 0
        self._shift = 64 - bits
        self._powers = [pow(_BASE, size, 1 << 64) for size in SIZES]
        self._tokens = array("i", bytes(4 * self.capacity))
        self._hashes = array("Q", bytes(8 * self.capacity))
        self._latest = [array("q", bytes(8 << bits)) for _ in SIZES]
        self._before = [array("q", bytes(8 * self.capacity)) for _ in SIZES]
        self.index = ballots.index(
            self._tokens, self._hashes, self._latest, self._before, self.capacity, self._shift
        )  # None without a compiler

    @property
    def start(self) -> int:
        """The first place that is remembered."""
        return max(0, self.end - self.capacity)

    @property
    def located(self) -> tuple[ballots.Index, int]:
        """Where it lies in memory, and its end; there must be a compiler."""
        assert self.index is not None, "there is no compiler"
        return self.index, self.end

    def resized(self, capacity: int) -> History:
        """A copy with room for `capacity` tokens; places are counted anew."""
        copy = History(capacity)
        copy.extend(self.tokens())
        return copy

    def tokens(self) -> list[int]:
        """All that is remembered, oldest first."""
        cut = self.start % self.capacity
        return list(self._tokens[cut : self.end] + self._tokens[:cut])

    def after(self, place: int, count: int) -> tuple[int, ...]:
        """The `count` tokens from `place` on, fewer before a gap; start <= place < end.

        A run that reaches the end goes on with itself, as in LZ77: so a text that repeats itself is continued for as
        long as one likes, however short the period.
        """
        at, length = place % self.capacity, min(count, self.end - place)
        run = self._tokens[at : at + length]
        if len(run) < length:
            run += self._tokens[: length - len(run)]
        if GAP in run:
            return tuple(run[: run.index(GAP)])
        return tuple((run * (1 + count // length))[:count]) if count else ()

    def extend(self, tokens: List[int]) -> None:
        """Note tokens at the end; the oldest ones make room."""
        tokens = tokens[-self.capacity :]
        if self.index is not None:
            ballots.note(self.index, self.end, tokens)
            self.end += len(tokens)
        else:
            for token in tokens:
                self._note(token)

    def find(self, context: List[int], most: int) -> list[tuple[int, int]]:
        """Places before the end that follow a run which `context` ends with: (place, the longest of SIZES that agrees).

        Longest first, then latest first, at most `most`.
        """
        found: dict[int, int] = {}
        prefix = list(accumulate(context[-SIZES[0] :], _rolled, initial=0))
        for row, size in enumerate(SIZES):
            if size >= len(prefix):
                continue
            wanted = (prefix[-1] - prefix[-1 - size] * self._powers[row]) & _WORD
            place = self._latest[row][wanted >> self._shift]
            for _ in range(STEPS * most):
                if place == 0 or place - size <= self.end - self.capacity:
                    break
                if place not in found and place < self.end and self._hash(place, row) == wanted:
                    found[place] = size
                    if len(found) == most:
                        return list(found.items())
                place = self._before[row][place % self.capacity]
        return list(found.items())

    def _hash(self, place: int, row: int) -> int:
        """Hash of the last SIZES[row] tokens before a place."""
        start = self._hashes[(place - SIZES[row]) % self.capacity]
        return (self._hashes[place % self.capacity] - start * self._powers[row]) & _WORD

    def _note(self, token: int) -> None:
        """The plain definition of `ballots.note`, for one token."""
        last, place = self._hashes[self.end % self.capacity], self.end + 1
        self._tokens[self.end % self.capacity] = token
        self._hashes[place % self.capacity] = _rolled(last, token)
        self.end = place
        for row, size in enumerate(SIZES):
            if size <= place:
                slot = self._hash(place, row) >> self._shift
                self._before[row][place % self.capacity] = self._latest[row][slot]
                self._latest[row][slot] = place


def _rolled(hashed: int, token: int) -> int:
    """The hash of all tokens so far, once another is read. Tokens count from GAP: a 0 would leave no trace."""
    return (hashed + token - GAP + 1) * _BASE & _WORD
