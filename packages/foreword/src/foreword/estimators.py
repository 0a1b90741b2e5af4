"""Online estimators that forget: calibration, linear cost, the share of prompts."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

P = TypeVar("P")

OUTLIER = 4.0
"""Multiple of its expected duration at which a round is clipped: it may be a stall."""


def finite(*numbers: float) -> bool:
    """Return whether all numbers are finite, so that an estimate may include them.

    Estimates are shared by all requests, so one NaN would spoil them all.
    """
    return all(map(math.isfinite, numbers))


def steadied(seen: float, expected: float) -> float:
    """Return a measured duration, clipped to OUTLIER times `expected`; `expected`
    itself if it is not finite.

    `expected` = 0 means that nothing is expected yet.
    """
    if not finite(seen):
        return expected
    return min(seen, OUTLIER * expected) if expected > 0 else seen


def interpolated(at: int, points: Sequence[int], values: Sequence[float]) -> float:
    """Return the value at a whole number, in a straight line between ascending
    `points`, and beyond them as steep as at their end: at least a tenth of the value
    before.
    """
    last = len(points) - 1
    index = bisect_left(points, at)
    if last == 0 or (index <= last and points[index] == at):
        return values[min(index, last)]
    index = min(max(index, 1), last)
    low, high = points[index - 1], points[index]
    below, above = values[index - 1], values[index]
    between = below + (above - below) * (at - low) / (high - low)
    return max(between, 0.1 * below)


def running_mean(mean: float, value: float) -> float:
    """Return the mean moved toward a value by a tenth; the value if the mean is 0."""
    return (
        mean + 0.1 * (steadied(value, mean) - mean) if mean else steadied(value, mean)
    )


def shrunk(part: float, whole: float, prior: float, weight: float) -> float:
    """Return part / whole, shrunk toward `prior` as if `weight` more had had that
    ratio: the mean of a Beta posterior.

    Every estimate of acceptance is this one; only what it counts differs.
    """
    return (part + weight * prior) / (whole + weight)


BELIEF = 0.5
"""Draft tokens always counted, so that the ratio returns to 1 without evidence."""


class CalibrationRatio:
    """Calibration of predicted acceptance: accepted over expected draft tokens."""

    __slots__ = ("_accepted", "_expected")

    def __init__(self) -> None:
        self._expected = self._accepted = 5.0 - BELIEF

    def promise(self, draft_tokens: float) -> None:
        """Add the expected number of accepted tokens of a round; decay earlier ones."""
        if not finite(draft_tokens):
            return
        self._expected = 0.98 * self._expected + draft_tokens
        self._accepted = 0.98 * self._accepted

    def keep(self, draft_tokens: int) -> None:
        """Add the number of accepted tokens of this round."""
        self._accepted += draft_tokens

    @property
    def share(self) -> float:
        """Factor by which to multiply a predicted probability, in [0.2, 1.2]."""
        return min(max((self._accepted + BELIEF) / (self._expected + BELIEF), 0.2), 1.2)


DECAY = 0.95
"""Weight of the past per round, wherever rounds are counted: about twenty of them."""


@dataclass(slots=True)
class LinearCost:
    """Least-squares line through (draft tokens, seconds) of past rounds, with decay."""

    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    each: float = field(default=0.0, init=False)
    """Seconds per further draft token; half the average while counts are alike."""
    start: float = field(default=0.0, init=False)
    """Fixed seconds of a round that drafts."""

    def learn(self, tokens: int, seconds: float) -> None:
        """Record one round; its seconds are clipped if far above the expectation."""
        # with fewer tokens than rounds, nothing is expected for many
        enough = self.tokens >= self.weight
        seconds = steadied(seconds, self.start + self.each * tokens if enough else 0.0)
        if not finite(seconds):
            return
        self.weight = DECAY * self.weight + 1
        self.tokens = DECAY * self.tokens + tokens
        self.seconds = DECAY * self.seconds + seconds
        self.squares = DECAY * self.squares + tokens * tokens
        self.products = DECAY * self.products + tokens * seconds
        self._refit()

    def _refit(self) -> None:
        # finite, also if no round drafted for long
        average = self.seconds / (max(self.tokens, self.weight) or 1.0)
        self.each = 0.5 * average
        square = self.tokens**2
        spread = self.weight * self.squares - square
        if spread > 0.05 * square + 1e-9:
            slope = self.weight * self.products
            slope -= self.tokens * self.seconds
            most = self.seconds / self.tokens
            self.each = min(max(slope / spread, 0.05 * average), most)
        drafting = self.each * self.tokens
        fixed = max(self.seconds - drafting, 0.0)
        self.start = fixed / self.weight


FIRST = 16
"""Prompt tokens read in the first shared round; later ones follow measurements."""
LARGEST_STEP = 2.0
"""Factor by which the share changes at most from one round to the next, so that one
slow round does not undo what many have measured.
"""
ROUNDS = 16
"""Shared rounds after which one without prompts measures a round's time anew."""
WEIGHT = 0.5
"""Weight of the newest round without prompts in the average."""
SHORTEST = 1e-4
"""Seconds. Least time that reading is taken to cost; below it clocks are noise."""


class ReadingShare:
    """Prompt tokens that a round may read without lasting longer than allowed.

    A stream beside a long prompt then slows to half its pace at most, on any machine.
    Of several prompts the shortest is read first, and every other round the one that
    came first, so that none waits for ever.
    """

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds`: of reading in a round; None: as long as it takes without."""
        self._seconds = seconds
        self._round: float | None = None
        """Seconds of a round that reads no prompt."""
        self._tokens = float(FIRST)
        self._shared = 0
        """Rounds that read prompts since the last one that did not."""
        self._turns = 0
        """Rounds in which several prompts were read."""

    def limit(self, most: int) -> int:
        """Return the prompt tokens that the next round may read, at most `most`; 0
        where it measures a round without them.
        """
        unmeasured = 1 if self._round is None else ROUNDS
        if self._shared >= unmeasured:
            return 0
        return max(1, min(int(self._tokens), most))

    def in_turn(self, prompts: Sequence[P], pending: Callable[[P], int]) -> Sequence[P]:
        """Return the prompts in the order in which the next round reads them; they come
        in the order of their arrival. `pending`: tokens of one that are not read.
        """
        if len(prompts) < 2:
            return prompts
        self._turns += 1
        if self._turns % 2:
            return sorted(prompts, key=pending)
        return prompts

    def measure(self, seconds: float, read: int) -> None:
        """Learn from a round of writing sequences that read `read` prompt tokens."""
        if not read:
            last = seconds if self._round is None else self._round
            self._round = WEIGHT * seconds + (1 - WEIGHT) * last
            self._shared = 0
            return
        self._shared += 1
        if self._round is None:
            return
        allowed = self._round if self._seconds is None else self._seconds
        factor = allowed / max(SHORTEST, seconds - self._round)
        factor = min(LARGEST_STEP, max(1 / LARGEST_STEP, factor))
        # the rest of a short prompt says little of a larger share
        if factor < 1 or read >= int(self._tokens):
            self._tokens = max(1.0, read * factor)
