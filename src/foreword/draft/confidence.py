"""How far what a drafter knows foretells what the target will draw, learnt as the text is written.

Knows numbers; knows nothing about models, trees or how anybody guesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass
from operator import mul

from foreword.draft.evidence import finite

SPREAD = 0.53
"""Error of a drafter's log-probabilities that no temperature takes away, in nats; measured from 0.3 to 1.3."""
INFORMATION = 50.0
"""Fisher information about log error that is remembered: about 200 draws at temperature 0, more where each says less.

Fixed: were it to fade by the draw, draws that say nothing (a hot text, a bias that leaves no choice) would empty it.
"""


@dataclass(slots=True)
class Confidence:
    """How far a drafter can be trusted: the chance that the target draws a child, from what the drafter would draw.

    The target says argmax(log p + G). A drafter that knows G sees log q + G, off by an error of log q - log p. Were
    the error Gumbel noise of scale s, the chance of each token would be softmax((log q + G) / s); measured on the small
    family it is, within 0.03 for chances from 0.01 to 0.99 at temperatures 0 to 1.3. One number is learnt from what
    becomes of the guesses: `error`, that of the drafter's logits, so that s^2 = (error / temperature)^2 + SPREAD^2.
    """

    error: float = 0.6

    def scale(self, temperature: float) -> float:
        """s, by which to divide log q + G; at temperature 0, by which to divide the logits themselves."""
        return math.hypot(self.error / temperature, SPREAD) if temperature else self.error

    def learn(self, values: List[float], drawn: int, temperature: float) -> None:
        """The target drew child `drawn` of some with these log q + G: one step of Fisher scoring on log error.

        A child of -inf is forbidden and has no mass. A draw among fewer than two says nothing.
        """
        possible = [value for value in values if value != -math.inf]
        if len(possible) < 2 or not finite(values[drawn], *possible):
            return
        scale = self.scale(temperature)
        best = max(possible)
        masses = [math.exp((value - best) / scale) for value in possible]
        mean = sum(map(mul, masses, possible)) / sum(masses)
        slope = -((self.error / (temperature or 1.0) / scale) ** 2) / scale  # of 1 / s, by log error
        step = slope * (values[drawn] - mean) / INFORMATION
        if finite(step):
            self.error = min(max(self.error * math.exp(min(max(step, -0.2), 0.2)), 0.05), 20.0)
