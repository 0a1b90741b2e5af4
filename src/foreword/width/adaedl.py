"""AdaEDL (Agrawal et al. 2024, arXiv 2410.18351): SVIP's question with a threshold that follows the acceptance.

Knows the law that follows a prefix and what became of past rounds, never what is drawn.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from foreword.sampling import entropy
from foreword.types import Sequence
from foreword.width.base import Outcome, Width

SHARE = 0.2
"""gamma: the chance that a guess is kept is believed to be at least 1 - sqrt(gamma H(q))."""
THRESHOLD = 0.4
"""lambda, before anything is known."""
WANTED = 0.9
"""Share of the guesses that should be kept."""
STEP, INERTIA, MEMORY = 0.01, 0.9, 0.5
"""How far the threshold is moved, how slowly it follows, and the weight of the past in the measured acceptance."""
MOST = 40
"""Longest chain."""


class AdaEdl(Width):
    """Stops before a guess where 1 - sqrt(gamma H(q)) < lambda; one guess is always made.

    lambda rises while fewer guesses are kept than wanted and falls otherwise, as the threshold of Draft & Verify does
    (Zhang et al. 2024, section 3.3), whose constants these are; a chain of full length says nothing about it. It is
    moved after a round for the next ones, so it is exact under every rule.
    """

    summary = "AdaEDL: the same, with a threshold that follows the measured acceptance"
    chains = True

    def __init__(self, threshold: float = THRESHOLD, share: float = SHARE, most: int = MOST) -> None:
        self.threshold, self.share, self.most = threshold, share, most
        self._kept = WANTED

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.most

    def stops(self, sequence: Sequence, depth: int, law: Float[Tensor, "vocab"]) -> bool:
        return depth > 0 and self.doubts(float(entropy(law[None])))

    def doubts(self, nats: float) -> bool:
        """An entropy so large is too uncertain."""
        return 1 - math.sqrt(self.share * nats) < self.threshold

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        if not outcome.drafted:
            return
        self._kept = MEMORY * self._kept + (1 - MEMORY) * outcome.accepted / outcome.drafted
        if outcome.drafted < self.most:
            moved = self.threshold + (STEP if self._kept < WANTED else -STEP)
            # Beyond what a chance can be it would take as long to come back as it took to go there.
            self.threshold = min(max(INERTIA * self.threshold + (1 - INERTIA) * moved, 0.0), 1.0)
