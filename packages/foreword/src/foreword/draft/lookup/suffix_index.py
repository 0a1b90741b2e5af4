"""Rolling-hash index of the latest tokens of one or more texts: finds earlier positions
with the same last tokens.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate

from foreword.native import suffix

SIZES = (16, 8, 4, 2, 1)
"""Tokens. Lengths of the runs that are indexed, longest first."""
GAP = -1
"""Separator between two texts: no context holds it, so no match spans it."""
STEPS = 4
"""Positions examined per match requested: some share the slot only, others matched a
longer run already.
"""
_BASE, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class SuffixIndex:
    """A ring buffer of tokens and, per size in SIZES, a hash table from runs to their
    last two positions.

    A *position* counts all tokens added before it, dropped ones included.
    Work is constant per token added and per position examined. Memory is allocated at
    once: 12 bytes per token, plus 16 to 24 for each of SIZES. Runs are compared by
    64-bit rolling hashes (Karp and Rabin 1987); a collision costs at most a rejected
    draft token.
    """

    __slots__ = (
        "_before",
        "_hashes",
        "_latest",
        "_powers",
        "_shift",
        "_tokens",
        "capacity",
        "end",
        "index",
    )

    def __init__(self, capacity: int) -> None:
        """Allocate room for the last `capacity` tokens."""
        bits = max(SIZES[0], capacity - 1).bit_length()
        self.capacity, self.end = max(2 * SIZES[0], capacity), 0
        self._shift = 64 - bits
        self._powers = [pow(_BASE, size, 1 << 64) for size in SIZES]
        self._tokens = array("i", bytes(4 * self.capacity))
        self._hashes = array("Q", bytes(8 * self.capacity))
        self._latest = [array("q", bytes(8 << bits)) for _ in SIZES]
        self._before = [array("q", bytes(8 * self.capacity)) for _ in SIZES]
        # None without a compiler.
        self.index = suffix.index(
            self._tokens,
            self._hashes,
            self._latest,
            self._before,
            self.capacity,
            self._shift,
        )

    @property
    def start(self) -> int:
        """First position still stored."""
        return max(0, self.end - self.capacity)

    @property
    def located(self) -> tuple[suffix.Index, int]:
        """The C struct of the index, and its end; requires a compiler."""
        assert self.index is not None, "the index needs a C compiler"
        return self.index, self.end

    def resized(self, capacity: int) -> "SuffixIndex":
        """Return a copy with room for `capacity` tokens; positions restart at 0."""
        copy = SuffixIndex(capacity)
        copy.extend(self.tokens())
        return copy

    def tokens(self) -> list[int]:
        """Return all stored tokens, oldest first."""
        cut = self.start % self.capacity
        return list(self._tokens[cut : self.end] + self._tokens[:cut])

    def after(self, position: int, count: int) -> tuple[int, ...]:
        """Return the `count` tokens from `position` on, fewer before a gap; start <=
        position < end.

        A run that reaches the end repeats itself, as in LZ77, so a repetitive text is
        continued for any `count`.
        """
        at, length = position % self.capacity, min(count, self.end - position)
        run = self._tokens[at : at + length]
        if len(run) < length:
            run += self._tokens[: length - len(run)]
        if GAP in run:
            return tuple(run[: run.index(GAP)])
        return tuple((run * (1 + count // length))[:count]) if count else ()

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; the oldest ones are dropped to make room."""
        tokens = tokens[-self.capacity :]
        if self.index is not None:
            suffix.note(self.index, self.end, tokens)
            self.end += len(tokens)
        else:
            for token in tokens:
                self._note(token)

    def find(self, context: Sequence[int], most: int) -> list[tuple[int, int]]:
        """Return (position, longest of SIZES that agrees) for positions after a run
        that `context` ends with.

        Longest first, then latest first, at most `most`.
        """
        matches: dict[int, int] = {}
        prefix = list(accumulate(context[-SIZES[0] :], _rolled, initial=0))
        for row, size in enumerate(SIZES):
            if size >= len(prefix):
                continue
            target_hash = (prefix[-1] - prefix[-1 - size] * self._powers[row]) & _WORD
            position = self._latest[row][target_hash >> self._shift]
            for _ in range(STEPS * most):
                if position == 0 or position - size <= self.end - self.capacity:
                    break
                if (
                    position not in matches
                    and position < self.end
                    and self._hash(position, row) == target_hash
                ):
                    matches[position] = size
                    if len(matches) == most:
                        return list(matches.items())
                position = self._before[row][position % self.capacity]
        return list(matches.items())

    def _hash(self, end: int, row: int) -> int:
        """Return the hash of the last SIZES[row] tokens before a position."""
        start = self._hashes[(end - SIZES[row]) % self.capacity]
        return (self._hashes[end % self.capacity] - start * self._powers[row]) & _WORD

    def _note(self, token: int) -> None:
        """Append one token; the reference for `suffix.note`."""
        last, end = self._hashes[self.end % self.capacity], self.end + 1
        self._tokens[self.end % self.capacity] = token
        self._hashes[end % self.capacity] = _rolled(last, token)
        self.end = end
        for row, size in enumerate(SIZES):
            if size <= end:
                slot = self._hash(end, row) >> self._shift
                self._before[row][end % self.capacity] = self._latest[row][slot]
                self._latest[row][slot] = end


def _rolled(hashed: int, token: int) -> int:
    """Return the hash extended by a token; ids are shifted by 1 - GAP so that none is
    0, which would not change it.
    """
    return (hashed + token - GAP + 1) * _BASE & _WORD
