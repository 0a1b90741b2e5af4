"""Budget that extends the chain while the drafter is confident.

It reads the distribution that follows a prefix, never a sample from it.
"""

from jaxtyping import Float
from torch import Tensor

from foreword.budget.base import StoppingBudget
from foreword.sampling.draw import probs
from foreword.types import Request

LONGEST_CHAIN = 40
"""Tokens. As in the public code of SVIP and AdaEDL (arXiv 2411.18462, 2410.18351)."""


class ConfidenceBudget(StoppingBudget):
    """Stop rule: the chain ends where no token has a probability above the threshold;
    it has at least one draft token.

    transformers and Draft & Verify (Zhang et al. 2024) test the probability of the
    sampled token. Dropping that token would be biased under every rule but `match`; the
    maximum of its distribution is as informative, and fixed before.
    """

    THRESHOLD = 0.4
    """Default of transformers' `assistant_confidence_threshold`."""

    def __init__(self, threshold: float = THRESHOLD, most: int = LONGEST_CHAIN) -> None:
        self.threshold, self.most = threshold, most

    def nodes(self, request: Request, others: int) -> int:
        return self.most

    def stops(
        self, request: Request, depth: int, distribution: Float[Tensor, "vocab"]
    ) -> bool:
        return depth > 0 and self.doubts(float(probs(distribution[None]).max()))

    def doubts(self, probability: float) -> bool:
        """Return whether this probability is too small."""
        return probability < self.threshold
