"""What guesses cost, to make or to score: so much for beginning, and so much for each.

Knows seconds; knows nothing about drafters.
"""

from __future__ import annotations

from dataclasses import dataclass

from foreword.draft.evidence import finite, steadied

DECAY = 0.95
"""Weight of the past, per round."""


@dataclass(slots=True)
class Making:
    """A straight line through (guesses, seconds taken), by least squares, whose past fades."""

    weight: float = 0.0
    made: float = 0.0
    seconds: float = 0.0
    made_twice: float = 0.0
    both: float = 0.0

    def learn(self, made: int, seconds: float) -> None:
        """One round. One that took far longer than those before says little, so it counts little."""
        known = self.made >= self.weight  # where hardly any were made, nobody knows what to expect of many
        seconds = steadied(seconds, self.start + self.each * made if known else 0.0)
        if not finite(seconds):
            return
        self.weight = DECAY * self.weight + 1
        self.made = DECAY * self.made + made
        self.seconds = DECAY * self.seconds + seconds
        self.made_twice = DECAY * self.made_twice + made * made
        self.both = DECAY * self.both + made * seconds

    @property
    def each(self) -> float:
        """Seconds of one more guess; half of what one takes on average while all rounds made about as many."""
        average = self.seconds / (max(self.made, self.weight) or 1.0)  # finite, however long none was made
        spread = self.weight * self.made_twice - self.made**2
        if spread <= 0.05 * self.made**2 + 1e-9:
            return 0.5 * average
        slope = (self.weight * self.both - self.made * self.seconds) / spread
        return min(max(slope, 0.05 * average), self.seconds / self.made)

    @property
    def start(self) -> float:
        """Seconds before the first guess."""
        return max(self.seconds - self.each * self.made, 0.0) / self.weight if self.weight else 0.0
