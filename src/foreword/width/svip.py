"""SVIP (Zhang et al. 2024, arXiv 2411.18462): guesses on until the drafter's law is too uncertain.

Knows the law that follows a prefix, never what is drawn from it.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from foreword.sampling import entropy
from foreword.types import Sequence
from foreword.width.base import Width

SHARE = 0.15
"""c: how much of the drafter's entropy is believed to be its distance from the target. As in the public code."""
THRESHOLD = 0.3
"""h, likewise."""
MOST = 40
"""Longest chain, likewise."""


class Svip(Width):
    """Stops before a guess where sqrt(c H(q)) > h, a bound on how far q may be from p; one guess is always made.

    The public code looks after a guess was drawn, and lets it be judged. Here it is not drawn: H(q) is known before.
    """

    summary = "SVIP: on until the drafter's entropy says that it is lost"
    chains = True

    def __init__(self, threshold: float = THRESHOLD, share: float = SHARE, most: int = MOST) -> None:
        self.threshold, self.share, self.most = threshold, share, most

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.most

    def stops(self, sequence: Sequence, depth: int, law: Float[Tensor, "vocab"]) -> bool:
        return depth > 0 and self.doubts(float(entropy(law[None])))

    def doubts(self, nats: float) -> bool:
        """An entropy so large is too uncertain."""
        return math.sqrt(self.share * nats) > self.threshold
