"""How much to guess, from what rounds cost and what guesses earned. Under `match` no choice made here changes the text.

A choice looks at past rounds alone, never at the guesses it is about, so it is exact under the other rules too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from foreword.types import Sequence

LIMIT = 16
"""Longest chain that is ever tried."""
DECAY = 0.95
"""Weight of the past, per round: about twenty rounds are remembered."""


@runtime_checkable
class Width(Protocol):
    """Decides how many guesses a sequence gets and learns from what became of them."""

    def nodes(self, sequence: Sequence, company: int) -> int:
        """Guesses for the next round of a sequence that shares its forward with `company` others."""
        ...

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        """What the last round of a sequence was like."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round of one sequence."""

    asked: int
    drafted: int
    accepted: int
    guess: float
    """Seconds spent guessing, the whole batch together."""
    score: float
    rest: float
    rows: int
    """Rows of the target's forward."""


class Fixed:
    """Always the same number of guesses."""

    def __init__(self, count: int) -> None:
        self.count = count

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.count

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass


@dataclass(slots=True)
class _Record:
    """Decayed counts of one sequence: rounds in which depth i was scored, and kept."""

    scored: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    kept: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    pause: int = 0
    """Rounds to go without guessing."""
    patience: int = 4
    """Length of the next pause; doubles each time guessing still loses."""

    def add(self, drafted: int, accepted: int) -> None:
        for depth in range(LIMIT):
            self.scored[depth] *= DECAY
            self.kept[depth] *= DECAY
            if depth < min(drafted, accepted + 1):
                self.scored[depth] += 1
                self.kept[depth] += depth < accepted


class Measured:
    """Guesses as many tokens as earn the most text per second, and none while guessing loses to plain decoding.

    Text per second of k guesses is (1 + sum over j <= k of the chance that the first j are kept) over the time of a
    round with k guesses (Leviathan et al. 2023, section 3.3, with the measured cost of every width instead of one
    ratio). Chances are this sequence's own, steadied by those of all sequences; costs are measured.
    """

    def __init__(self, cost: Mapping[int, float]) -> None:
        self._cost = sorted(cost.items())
        self._drift = 1.0
        self._guess = 0.0
        self._rest = 0.0
        self._all = _Record()
        self._records: dict[int, _Record] = {}

    def nodes(self, sequence: Sequence, company: int) -> int:
        record = self._records.setdefault(sequence.id, _Record())
        if record.pause:
            record.pause -= 1
            return 0
        rates = [self._rate(record, count, company + 1) for count in range(LIMIT + 1)]
        best = max(range(LIMIT + 1), key=rates.__getitem__)
        if best:
            return best
        # Losing now is no reason to lose for good: try again after a while, and wait longer each time.
        record.pause, record.patience = record.patience, min(2 * record.patience, 256)
        return 0 if sum(record.scored) else 1

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        record = self._records.setdefault(sequence.id, _Record())
        expected = self._seconds(outcome.rows)
        self._drift = _blend(self._drift, outcome.score / expected)
        self._rest = _blend(self._rest, outcome.rest)
        if outcome.asked:
            self._guess = _blend(self._guess, outcome.guess / outcome.asked)
        if outcome.drafted:
            record.add(outcome.drafted, outcome.accepted)
            self._all.add(outcome.drafted, outcome.accepted)
            if outcome.accepted:
                record.patience = 4

    def release(self, sequence: Sequence) -> None:
        self._records.pop(sequence.id, None)

    def _rate(self, record: _Record, count: int, rows: int) -> float:
        earned, chance = 1.0, 1.0
        for depth in range(count):
            chance *= self._chance(record, depth)
            earned += chance
        score = self._drift * self._seconds(rows * (1 + count))
        return earned / (score + self._rest + count * self._guess)

    def _chance(self, record: _Record, depth: int) -> float:
        """That a guess at this depth is kept if the ones before it were: own rounds, then everybody's, then a half."""
        prior = (self._all.kept[depth] + 1) / (self._all.scored[depth] + 2)
        return (record.kept[depth] + 2 * prior) / (record.scored[depth] + 2)

    def _seconds(self, rows: int) -> float:
        """Cost of a forward over `rows` tokens, in proportion between the measured widths and beyond them."""
        at = bisect_left(self._cost, (rows, 0.0))
        if len(self._cost) == 1 or (at < len(self._cost) and self._cost[at][0] == rows):
            return self._cost[min(at, len(self._cost) - 1)][1]
        at = min(max(at, 1), len(self._cost) - 1)
        (low, cheap), (high, dear) = self._cost[at - 1], self._cost[at]
        return max(cheap + (dear - cheap) * (rows - low) / (high - low), 1e-6)


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else 0.9 * old + 0.1 * new
