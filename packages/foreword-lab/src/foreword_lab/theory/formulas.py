"""Formulas of Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), with their letters.

alpha (α): probability that a draft token is accepted, equal and independent for all.
gamma (γ): draft tokens in a pass. cost (c): time of one draft token, as a share of a
step of the target. Theorem 3.8 takes scoring γ + 1 rows to last as long as scoring one;
`PassCost` drops that assumption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

HALVINGS = 50
"""Halvings of an interval of length 1: the rest is below the precision of a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """Duration of a pass by its draft tokens, in steps of the target over one row."""

    token: float
    """Cost of each draft token: c of definition 3.7."""
    start: float = 0.0
    """Cost of drafting at all, however few draft tokens."""
    overhead: float = 0.0
    """Cost of each pass outside drafting and scoring, with draft tokens or without."""
    scoring: tuple[float, ...] = ()
    """Cost of scoring k + 1 rows, at index k; empty = 1, as theorem 3.8 assumes."""

    def __call__(self, gamma: int) -> float:
        """Return the duration of a pass with `gamma` draft tokens; 0 = plain."""
        scoring = self.scoring[gamma] if self.scoring else 1.0
        drafting = self.start + gamma * self.token if gamma else 0.0
        return drafting + scoring + self.overhead


def expected_tokens(alpha: float, gamma: int) -> float:
    """Return the expected tokens of a pass: (1 − α^(γ+1)) / (1 − α), equation 1.

    Computed as 1 + α + … + α^γ, which holds for α = 1 too.
    """
    return sum(alpha**depth for depth in range(gamma + 1))


def tokens_by_depth(shares: Sequence[float]) -> float:
    """Return the expected tokens of a pass: 1 + a₁ + a₁ a₂ + …, where a_k is the
    probability that draft token k is accepted if those before it are.

    It is equation 1 if all are α, and assumes nothing about them otherwise.
    """
    return 1.0 + sum(accumulate(shares, mul))


def speed_up(tokens: float, gamma: int, cost: PassCost) -> float:
    """Return the speed over plain decoding of passes with `gamma` draft tokens.

    With `tokens` of equation 1 and a cost of the draft tokens alone it is theorem 3.8:
    (1 − α^(γ+1)) / ((1 − α) (γ c + 1)).
    """
    return tokens * cost(0) / cost(gamma)


def operations(alpha: float, gamma: int, cost: float = 0.0) -> float:
    """Return the factor by which arithmetic operations grow, theorem 3.11:
    (1 − α) (γ ĉ + γ + 1) / (1 − α^(γ+1)).

    `cost` (ĉ): operations of a draft token, as a share of the target's for a token.
    """
    return (gamma * cost + gamma + 1) / expected_tokens(alpha, gamma)


def speeds(alpha: float, cost: PassCost, most: int) -> list[float]:
    """Return the expected speed over plain decoding of 0 to `most` draft tokens."""
    return [
        speed_up(expected_tokens(alpha, gamma), gamma, cost)
        for gamma in range(most + 1)
    ]


def best_gamma(speeds: Sequence[float]) -> int:
    """Return the fastest number of draft tokens, section 3.5; 0 = none pays.

    `speeds` has the speed of k draft tokens at index k.
    """
    return max(range(len(speeds)), key=lambda gamma: speeds[gamma])


def loses_from(speeds: Sequence[float]) -> int | None:
    """Return the number of draft tokens, above the best, from which drafting is slower
    than plain decoding; None if it is not.
    """
    beyond = range(best_gamma(speeds) + 1, len(speeds))
    losing = (gamma for gamma in beyond if speeds[gamma] < 1)
    return next(losing, None)


def least_alpha(gamma: int, cost: PassCost) -> float | None:
    """Return the acceptance from which `gamma` draft tokens are not slower than plain
    decoding; None if they always are.

    For γ = 1 and theorem 3.8 it is c itself, as corollary 3.9 says.
    """
    if speed_up(gamma + 1, gamma, cost) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tokens = expected_tokens(middle, gamma)
        if speed_up(tokens, gamma, cost) < 1:
            low = middle
        else:
            high = middle
    return high


def pays_from(cost: PassCost, most: int) -> float | None:
    """Return the acceptance below which no number of draft tokens up to `most` pays;
    None if none ever does.
    """
    alphas = [least_alpha(gamma, cost) for gamma in range(1, most + 1)]
    paying = [alpha for alpha in alphas if alpha is not None]
    return min(paying, default=None)
