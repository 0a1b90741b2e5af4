"""What making guesses costs: so much for beginning, and so much for each.

Knows seconds; knows nothing about drafters.
"""

from __future__ import annotations

from dataclasses import dataclass

DECAY = 0.95
"""Weight of the past, per round."""


@dataclass(slots=True)
class Making:
    """A straight line through (guesses made, seconds taken), by least squares, whose past fades."""

    weight: float = 0.0
    made: float = 0.0
    seconds: float = 0.0
    made_twice: float = 0.0
    both: float = 0.0

    def learn(self, made: int, seconds: float) -> None:
        """One round of guessing."""
        self.weight = DECAY * self.weight + 1
        self.made = DECAY * self.made + made
        self.seconds = DECAY * self.seconds + seconds
        self.made_twice = DECAY * self.made_twice + made * made
        self.both = DECAY * self.both + made * seconds

    @property
    def each(self) -> float:
        """Seconds of one more guess; half of what one takes on average while all rounds made about as many."""
        if not self.made:
            return 0.0
        spread = self.weight * self.made_twice - self.made**2
        average = self.seconds / self.made
        if spread < 0.05 * self.made**2:
            return 0.5 * average
        return min(max((self.weight * self.both - self.made * self.seconds) / spread, 0.05 * average), average)

    @property
    def start(self) -> float:
        """Seconds of guessing before the first guess is made."""
        return max(self.seconds - self.each * self.made, 0.0) / self.weight if self.weight else 0.0
