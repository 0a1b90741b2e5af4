"""What drafting is worth where several texts share a round: what they would take without, and what it adds.

Knows seconds and chances; knows nothing about drafters, nor about what became of any draft token.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from foreword.width.asking import Asking
from foreword.width.costs import Costs

LEVELS = 8
"""Chances that are told apart where drafters say them: as many parts of [0, 1]."""
TRIES = (1, 4, 16)
"""Lengths of a chain by which it is seen whether any could pay."""


@dataclass(slots=True)
class Promised:
    """What drafters said of their draft tokens, round by round, the past fading."""

    rounds: float = 0.0
    tokens: float = 0.0
    """Draft tokens that should have been kept: the sum of the chances."""
    counts: list[float] = field(default_factory=lambda: [0.0] * LEVELS)
    """Draft tokens by their chance."""

    def add(self, chances: List[float], decay: float) -> None:
        """The chances of the draft tokens of one text in one round; none where it was asked and had nothing to say."""
        self.rounds = decay * self.rounds + 1
        self.tokens = decay * self.tokens + sum(chances)
        self.counts = [decay * count for count in self.counts]
        for chance in chances:
            self.counts[min(int(LEVELS * chance), LEVELS - 1)] += 1

    def beside(self, usual: Promised) -> float:
        """How many times as much as usual this text promises, as far as it is known."""
        expected = usual.tokens / max(usual.rounds, 1e-9)
        return (self.tokens + 2 * expected) / ((self.rounds + 2) * expected) if expected else 1.0


@dataclass(slots=True)
class Company:
    """So many texts that write in one round, all treated alike."""

    texts: int
    costs: Costs
    asking: Asking
    bare: float
    """Seconds of deciding and keeping without draft tokens, for each text."""
    rest: float
    """The same with them."""

    @property
    def plainly(self) -> float:
        """Seconds of the round without draft tokens."""
        return self.costs.seconds(self.texts) + self.texts * self.bare

    @property
    def worth(self) -> float:
        """Seconds that a token is worth: what it takes without draft tokens."""
        return self.plainly / self.texts

    def added(self, scored: float, wanted: float) -> float:
        """Seconds that the round takes longer for each text, when each is asked for `wanted` and has `scored` scored.

        Both are averages; the forward has whole rows.
        """
        more = self.costs.seconds(self.texts + round(self.texts * scored)) - self.costs.seconds(self.texts)
        asked = self.asking.seconds(self.texts * wanted)
        return max(more, 0.0) / self.texts + self.rest - self.bare + asked / self.texts

    def hopeless(self) -> bool:
        """Not even draft tokens that are all kept could pay, by what asking for them was seen to take."""
        if not self.asking.known:
            return False
        now, worth = self.costs.seconds(self.texts), self.worth
        for count in TRIES:
            scoring = max(self.costs.seconds(self.texts + count) - now, 0.0)
            if count * worth > scoring + self.asking.seconds(count, 1.0 / self.texts):
                return False
        return True

    def best(self, usual: Promised, share: float, most: float) -> tuple[float, float]:
        """What the most profitable of the promised draft tokens earn and cost a text: tokens, and seconds longer.

        The likeliest are taken first, as `trim` does; a promised chance is worth `share` of it.
        """
        plainly, earned, scored, fastest = self.plainly, 0.0, 0.0, 0.0
        found = (0.0, self.added(0.0, most))
        for level in range(LEVELS - 1, -1, -1):
            count = usual.counts[level] / usual.rounds
            if not count:
                continue
            scored += count
            earned += share * count * (level + 0.5) / LEVELS
            longer = self.added(scored, most)
            rate = (1.0 + earned) / (plainly + self.texts * longer)
            if rate > fastest:
                fastest, found = rate, (earned, longer)
        return found
