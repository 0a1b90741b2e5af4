"""Budgets that extend the chain while the drafter is confident.

They read the distribution that follows a prefix, never a sample from it.
"""

import math

from jaxtyping import Float
from torch import Tensor

from foreword.budget.base import RoundResult, StoppingBudget
from foreword.sampling.draw import entropy, probs
from foreword.types import Request

LONGEST_CHAIN = 40
"""Tokens. As in the public code of SVIP and AdaEDL."""


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


class SvipBudget(StoppingBudget):
    """Stop rule: the chain ends where sqrt(c H(q)) > h, a bound on the distance of q
    from p; at least one draft token.

    The public code tests after a token was sampled, and still scores it. This policy
    tests before: H(q) is fixed then.
    """

    SHARE = 0.15
    """c: assumed distance to the target over entropy, as in the public code."""
    THRESHOLD = 0.3
    """h, likewise."""

    def __init__(
        self,
        threshold: float = THRESHOLD,
        share: float = SHARE,
        most: int = LONGEST_CHAIN,
    ) -> None:
        self.threshold = threshold
        self.share = share
        self.most = most

    def nodes(self, request: Request, others: int) -> int:
        return self.most

    def stops(
        self, request: Request, depth: int, distribution: Float[Tensor, "vocab"]
    ) -> bool:
        return depth > 0 and self.doubts(float(entropy(distribution[None])))

    def doubts(self, nats: float) -> bool:
        """An entropy so large is too uncertain."""
        return math.sqrt(self.share * nats) > self.threshold


class AdaEdlBudget(SvipBudget):
    """Stop rule: the chain ends where 1 - sqrt(gamma H(q)) < lambda; it has at least
    one draft token.

    lambda rises while acceptance is below TARGET and falls otherwise, as in Draft &
    Verify (Zhang et al. 2024, section 3.3), whose constants these are; a chain of full
    length does not move it. It moves between rounds, so it is exact under every rule.
    """

    SHARE = 0.2
    """gamma: the acceptance probability is taken as 1 - sqrt(gamma H(q)) or more."""
    THRESHOLD = 0.4
    """lambda at the start."""
    TARGET = 0.9
    """Acceptance rate that the threshold steers toward."""
    STEP = 0.01
    """Change of lambda in a round, before it is smoothed."""
    INERTIA = 0.9
    """Weight of the old lambda beside the new one."""
    MEMORY = 0.5
    """Weight of the past in the measured acceptance rate."""

    def __init__(
        self,
        threshold: float = THRESHOLD,
        share: float = SHARE,
        most: int = LONGEST_CHAIN,
    ) -> None:
        super().__init__(threshold, share, most)
        self._acceptance = self.TARGET

    def doubts(self, nats: float) -> bool:
        """An entropy so large is too uncertain."""
        return 1 - math.sqrt(self.share * nats) < self.threshold

    def learn(self, request: Request, outcome: RoundResult) -> None:
        if not outcome.drafted:
            return
        acceptance = outcome.accepted / outcome.drafted
        self._acceptance = (
            self.MEMORY * self._acceptance + (1 - self.MEMORY) * acceptance
        )
        if outcome.drafted == self.most:
            return
        step = self.STEP if self._acceptance < self.TARGET else -self.STEP
        moved = self.threshold + step
        smoothed = self.INERTIA * self.threshold + (1 - self.INERTIA) * moved
        # Clamped to probabilities: from beyond, it would take as long to come back as
        # it took to go there.
        self.threshold = min(max(smoothed, 0.0), 1.0)
