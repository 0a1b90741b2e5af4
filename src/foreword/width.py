"""How much to guess, from what rounds cost and what guesses earned. Under `match` no choice made here changes the text.

A choice looks at past rounds alone, never at the guesses it is about, so it is exact under the other rules too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from foreword.types import Clock, Sequence

LIMIT = 16
"""Longest chain that is ever tried."""
DECAY = 0.95
"""Weight of the past, per round: about twenty rounds are remembered."""
OPTIMISM = 0.7
"""The chance that a first guess is kept, before anything is known."""
PATIENCE = 4
"""Rounds without guessing before it is tried again, the first time it loses."""


@runtime_checkable
class Width(Protocol):
    """Decides how many guesses a sequence gets and learns from what became of them."""

    @property
    def floor(self) -> float:
        """The chance below which no guess can pay for its scoring."""
        ...

    def nodes(self, sequence: Sequence, company: int) -> int:
        """Guesses for the next round of a sequence that shares its forward with `company` others."""
        ...

    def clocked(self, rows: int, clock: Clock) -> None:
        """What the last round cost; `rows` is the size of its forward."""
        ...

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        """What became of the guesses of a sequence in that round."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round of one sequence."""

    asked: int
    drafted: int
    """Depth of the deepest guess; the number of guesses where they are a chain."""
    accepted: int
    guess: float
    """Seconds spent guessing, the whole batch together."""


class Fixed:
    """Always the same number of guesses."""

    floor = 0.0

    def __init__(self, count: int) -> None:
        self.count = count

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.count

    def clocked(self, rows: int, clock: Clock) -> None:
        pass

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
    patience: int = PATIENCE
    """Length of the next pause; doubles each time guessing still loses."""

    def add(self, drafted: int, accepted: int) -> None:
        for depth in range(LIMIT):
            self.scored[depth] *= DECAY
            self.kept[depth] *= DECAY
            if depth < min(drafted, accepted + 1):
                self.scored[depth] += 1
                self.kept[depth] += depth < accepted


class Costs:
    """Seconds of a forward by its number of rows: measured beforehand, and corrected by every round that is run."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._rows = sorted(measured)
        self._base = [measured[rows] for rows in self._rows]
        self._drift = 1.0
        """All forwards grow dearer with the text, and with what else the machine does."""

    def seconds(self, rows: int) -> float:
        """Expected cost, in proportion between the measured widths and beyond them."""
        return self._drift * self._interpolated(rows)

    def correct(self, rows: int, seconds: float) -> None:
        """Learn from a forward that was run. One slow forward says little, so it counts little."""
        expected = self._interpolated(rows)
        ratio = min(max(seconds / (self._drift * expected), 0.25), 4.0)
        self._drift *= 1 + 0.1 * (ratio - 1)
        at = bisect_left(self._rows, rows)
        if at == len(self._rows) or self._rows[at] != rows:
            self._rows.insert(at, rows)
            self._base.insert(at, expected)
        self._base[at] = expected * (1 + 0.2 * (ratio - 1))

    def _interpolated(self, rows: int) -> float:
        at = bisect_left(self._rows, rows)
        if len(self._rows) == 1 or (at < len(self._rows) and self._rows[at] == rows):
            return self._base[min(at, len(self._base) - 1)]
        at = min(max(at, 1), len(self._rows) - 1)
        low, high = self._rows[at - 1], self._rows[at]
        cheap, dear = self._base[at - 1], self._base[at]
        return max(cheap + (dear - cheap) * (rows - low) / (high - low), 0.1 * cheap)


class Measured:
    """Guesses as many tokens as earn the most text per second, and none while guessing loses to plain decoding.

    Text per second of k guesses is (1 + sum over j <= k of the chance that the first j are kept) over the time of a
    round with k guesses (Leviathan et al. 2023, section 3.3, with the measured cost of every width instead of one
    ratio). Chances are this sequence's own, steadied by those of all sequences; costs are measured.
    """

    floor = 0.0

    def __init__(self, cost: Mapping[int, float]) -> None:
        self.costs = Costs(cost)
        self._guess = 0.0
        self._rest = 0.0
        self._all = _Record()
        self._records: dict[int, _Record] = {}

    def nodes(self, sequence: Sequence, company: int) -> int:
        record = self._records.setdefault(sequence.id, _Record())
        if record.pause:
            record.pause -= 1
            return 0
        best = self._best(record, company + 1)
        if best:
            return best
        # Losing now is no reason to lose for good: try one guess, then pause, and longer each time.
        record.pause, record.patience = record.patience, min(2 * record.patience, 256)
        return 1

    def clocked(self, rows: int, clock: Clock) -> None:
        self.costs.correct(rows, clock.score)
        self._rest = _blend(self._rest, clock.decide + clock.keep)

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        record = self._records.setdefault(sequence.id, _Record())
        if outcome.asked:
            self._guess = _blend(self._guess, outcome.guess / outcome.asked)
        if outcome.drafted:
            record.add(outcome.drafted, outcome.accepted)
            self._all.add(outcome.drafted, outcome.accepted)
            if outcome.accepted:
                record.patience = PATIENCE

    def release(self, sequence: Sequence) -> None:
        self._records.pop(sequence.id, None)

    def _best(self, record: _Record, rows: int) -> int:
        """The number of guesses with the most tokens per second, when `rows` sequences guess that many each."""
        best, fastest = 0, 1.0 / (self.costs.seconds(rows) + self._rest)
        earned = reached = 1.0
        prior = OPTIMISM
        for count in range(1, LIMIT + 1):
            depth = count - 1
            # Own rounds count most, then everybody's; a depth nobody has tried is thought as good as the one before.
            prior = (self._all.kept[depth] + 2 * prior) / (self._all.scored[depth] + 2)
            reached *= (record.kept[depth] + 2 * prior) / (record.scored[depth] + 2)
            earned += reached
            rate = earned / (self.costs.seconds(rows * (1 + count)) + self._rest + count * self._guess)
            if rate > fastest:
                best, fastest = count, rate
        return best


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else 0.9 * old + 0.1 * new
