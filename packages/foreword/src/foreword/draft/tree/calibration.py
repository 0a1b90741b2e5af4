"""Calibration of a drafter's scores a log q + G into acceptance probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from foreword.estimators import finite

SPREAD = 0.53
"""Nats. Error of log q at every temperature; measured at 0.3 to 1.3."""
INFORMATION = 50.0
"""Fisher information about log error: a memory of about 200 draws at temperature 0,
more if each is less informative.

Fixed: decay per draw would erase it by uninformative draws (a high temperature, a bias
that leaves no choice).
"""


@dataclass(slots=True)
class Calibration:
    """Model of the probability that the target draws a child, from the drafter's scores
    a log q + G.

    The target emits argmax(log p + G). A drafter that shares G computes a log q + G,
    off by a log q - log p. If this error is Gumbel noise of scale s, the probability of
    each token is softmax((a log q + G) / s). Measured on the small bundled models this
    holds within 0.03, for probabilities from 0.01 to 0.99 at temperatures 0 to 1.3. One
    number is learned: `error`, that of the drafter's logits, where s^2 = (error /
    temperature)^2 + SPREAD^2.
    """

    error: float = 0.6

    def scale(self, temperature: float) -> float:
        """Return s, the divisor of a log q + G; at temperature 0, of the logits."""
        return (
            math.hypot(self.error / temperature, SPREAD) if temperature else self.error
        )

    def learn(self, values: Sequence[float], drawn: int, temperature: float) -> None:
        """Update log error by one step of Fisher scoring: the target drew child `drawn`
        of these a log q + G.

        A child of -inf is forbidden and has no mass. A draw among fewer than two is
        ignored.
        """
        possible = [value for value in values if value != -math.inf]
        if len(possible) < 2 or not finite(values[drawn], *possible):
            return
        scale = self.scale(temperature)
        best = max(possible)
        masses = [math.exp((value - best) / scale) for value in possible]
        mean = sum(map(mul, masses, possible)) / sum(masses)
        # of 1 / s, by log error
        slope = -((self.error / (temperature or 1.0) / scale) ** 2) / scale
        step = slope * (values[drawn] - mean) / INFORMATION
        if finite(step):
            self.error = min(
                max(self.error * math.exp(min(max(step, -0.2), 0.2)), 0.05), 20.0
            )
