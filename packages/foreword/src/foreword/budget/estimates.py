"""Estimates of one method: acceptance on all texts and on one, and prices of rounds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from foreword.estimators import DECAY, OUTLIER, LinearCost

DEPTHS = 16
"""Draft tokens whose acceptance is known by depth; deeper ones inherit the last."""
FIRST, COPIED = 0.7, 0.5
"""Acceptance of a draft token before any: high enough that every model is tried; of one
that was looked up, which is compared with the text in any case, a cautious one.
"""
PRIOR = 4.0
"""Rounds. Weight of the depth before in the acceptance at a depth."""
TEXT = 16.0
"""Tokens. Weight of all texts in the acceptance on one text."""
UNREAD = 0.03
"""Rounds. What reading a token takes before any was timed: 0.06 for a draft model of a
third of the target's size, 0.01 for a small one.
"""
MEMORY = 0.98
"""Weight of the past in the acceptance on all texts, per round: about fifty."""
RECALLED = 8.0
"""Rounds. Weight of an acceptance measured in another process or kind of request."""
FIRST_GAIN = 0.2
"""Tokens. What drafts that are looked up gain in a round before any."""
LOOKED, LOOKED_ON_ALL = 0.1, 0.02
"""Weights of the newest round in that gain on a text, and on all."""
BUDGET, MODELS = 8.0, 7.0
"""Rounds of plain decoding that drafting may lose at first for each kind of request,
and that models may have lost of them: lookups take less to be tried.
"""
SHARE = 0.003
"""Share of later rounds that it may lose: see `Guard`."""
LOSING = 0.98
"""Pace of rounds with draft tokens below which they lose; two percent are noise."""
SAVED = 32.0
"""Rounds of plain decoding that gains are saved up to. Losses are counted up to twice
BUDGET: one stall of the machine must not end drafting for hours.
"""


class Agreement:
    """Acceptance of a method's draft tokens by depth, on all texts of a kind."""

    __slots__ = ("_accepted", "_expected", "_first", "_kept", "_tried", "rates")

    def __init__(self, first: float = FIRST) -> None:
        self._first = first
        self._tried = [0.0] * DEPTHS
        self._kept = [0.0] * DEPTHS
        self.rates = [first] * DEPTHS
        """By depth, the acceptance of a draft token after those before it."""
        self._expected = self._accepted = PRIOR
        """Draft tokens that were expected to be accepted, and that were."""

    def add(self, depth: int, accepted: int) -> None:
        """Record a draft of this depth; its first `accepted` tokens were accepted."""
        self._tried = [MEMORY * one for one in self._tried]
        self._kept = [MEMORY * one for one in self._kept]
        for at in range(min(depth, accepted + 1, DEPTHS)):
            self._tried[at] += 1
            self._kept[at] += at < accepted
        self._settle()

    def _settle(self) -> None:
        rate, rates = self._first, []
        for accepted, tried in zip(self._kept, self._tried, strict=True):
            # as `shrunk`, without a call in every round
            rate = (accepted + PRIOR * rate) / (tried + PRIOR)
            rates.append(rate)
        self.rates = rates

    def calibrate(self, expected: float, accepted: int) -> None:
        """Record how many draft tokens were expected to be accepted, and were."""
        self._expected = MEMORY * self._expected + expected
        self._accepted = MEMORY * self._accepted + accepted

    @property
    def calibration(self) -> float:
        """Accepted draft tokens over expected ones."""
        return (self._accepted + 1.0) / (self._expected + 1.0)

    def recall(self, rates: Iterable[float]) -> None:
        """Begin with an acceptance that was measured elsewhere."""
        for at, rate in zip(range(DEPTHS), rates, strict=False):
            self._tried[at] = RECALLED
            self._kept[at] = rate * RECALLED
        self._settle()


@dataclass(slots=True)
class OnText:
    """Acceptance of a method's draft tokens on one text and on all; old tokens fade."""

    tried: float = 0.0
    accepted: float = 0.0
    expected: float = 0.0
    """How many of those tried are accepted on all texts."""

    def add(self, depth: int, accepted: int, rates: Sequence[float]) -> None:
        """Record a draft, as `Agreement.add`; `rates`: the acceptance on all texts."""
        for at in range(min(depth, accepted + 1)):
            self.tried = DECAY * self.tried + 1
            self.accepted *= DECAY
            self.accepted += at < accepted
            self.expected = DECAY * self.expected + rates[min(at, DEPTHS - 1)]

    def odds(self) -> float:
        """Return the odds of acceptance on this text over all, shrunk toward 1."""
        if not self.tried:
            return 1.0
        usual = min(max(self.expected / self.tried, 0.01), 0.99)
        won = self.accepted + TEXT * usual
        lost = self.tried - self.accepted + TEXT * (1 - usual)
        return won / lost * (1 - usual) / usual


@dataclass(slots=True)
class Price:
    """Rounds of plain decoding that rounds of one method take, by their depth."""

    line: LinearCost = field(default_factory=LinearCost)
    """What a round takes beyond a plain one, by the depth of its draft."""
    drafting: LinearCost = field(default_factory=LinearCost)
    """What proposing takes, by the levels of drafts: forwards of a draft model."""
    unread: LinearCost = field(default_factory=LinearCost)
    """Seconds of reading, by tokens that another drafter wrote and this one reads."""
    is_warm: bool = False
    """Whether a round is over: the first of a process takes longer than others."""
    before: float = 0.0
    """What the round before took."""

    @property
    def known(self) -> bool:
        """Whether a round was seen."""
        return self.line.weight > 0

    def steady(self, depth: int, spent: float, unread: int, row: float) -> float:
        """Return what a round took, without a stall: more than OUTLIER times what it
        should take is believed if the round before took as much.
        """
        usual = max(self.spent(depth, row), 1.0) + self.reading(unread)
        if unread:
            return min(spent, OUTLIER * usual) if self.unread.weight else spent
        limit = max(OUTLIER * usual, self.before)
        self.before = spent
        return min(spent, limit)

    def propose(self, levels: int, rounds: float) -> None:
        """Record that drafts of so many levels took so many rounds to propose."""
        if self.is_warm:
            self.drafting.learn(levels, rounds)

    def learn(self, depth: int, spent: float, unread: int) -> None:
        """Record a round of a draft of this depth, after `unread` tokens were read."""
        if not self.is_warm:
            self.is_warm = True
            return
        if not unread:
            self.line.learn(depth, max(spent - 1.0, 0.0))
        elif self.known:
            self.unread.learn(unread, max(spent - self.spent(depth), 0.0))

    def reading(self, unread: float) -> float:
        """Return the rounds that reading so many tokens takes."""
        if not self.unread.weight:
            return UNREAD * unread
        return self.unread.start + self.unread.each * unread if unread else 0.0

    def spent(self, depth: float, row: float = 0.0) -> float:
        """Return the rounds that a round takes; `row`: those for a row of the target,
        for a method whose rounds were not seen.
        """
        if not self.known:
            return 1.0 + row * depth
        return 1.0 + self.line.start + self.line.each * depth


@dataclass(slots=True)
class Guard:
    """What drafting has lost on requests of one kind, and whether it may lose more.

    Whatever the estimates say, rounds that lose stop once plain decoding alone would
    have been faster by BUDGET rounds and SHARE of the rounds.
    """

    lost: float = 0.0
    """Rounds of plain decoding, less what was won and what is allowed."""
    pace: float = 1.0
    """Mean tokens of rounds with draft tokens over the plain rounds that they take."""

    @property
    def stops_models(self) -> bool:
        """Whether models may not draft or read."""
        return self.lost > MODELS and self.pace < LOSING

    @property
    def stops_lookups(self) -> bool:
        """Whether nothing may be looked up either."""
        return self.lost > BUDGET and self.pace < LOSING

    def record(self, pace: float) -> None:
        """Record a round with draft tokens that read nothing first."""
        self.pace += (1 - MEMORY) * (pace - self.pace)

    def charge(self, rounds: float) -> None:
        """Record a loss, or a gain below 0."""
        self.lost = min(max(self.lost + rounds, -SAVED), 2 * BUDGET)

    def allow(self) -> None:
        """Record a round of plain decoding."""
        if self.lost > 0:
            self.lost = max(self.lost - SHARE, 0.0)
