"""Guesses on while the drafter is sure of what comes next: while its likeliest token is likely.

Knows the law that follows a prefix, never what is drawn from it.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from foreword.sampling import probs
from foreword.types import Sequence
from foreword.width.base import Width

THRESHOLD = 0.4
"""As `assistant_confidence_threshold` of transformers."""
MOST = 40
"""Longest chain."""


class Confidence(Width):
    """Stops before a guess whose law has no token of a chance above the threshold; one guess is always made.

    transformers and Draft & Verify (Zhang et al. 2024) look at the chance of the guess itself. To leave that guess out
    would be biased under every rule but `match`; the likeliest token of its law says as much, and is known beforehand.
    """

    summary = "on while the likeliest next token is likely"
    chains = True

    def __init__(self, threshold: float = THRESHOLD, most: int = MOST) -> None:
        self.threshold, self.most = threshold, most

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.most

    def stops(self, sequence: Sequence, depth: int, law: Float[Tensor, "vocab"]) -> bool:
        return depth > 0 and self.doubts(float(probs(law[None]).max()))

    def doubts(self, chance: float) -> bool:
        """This chance is too small."""
        return chance < self.threshold
