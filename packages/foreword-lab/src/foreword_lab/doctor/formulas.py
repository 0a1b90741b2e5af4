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


def tokens_by_depth(shares: Sequence[float]) -> float:
    """Return the expected tokens of a pass: 1 + a₁ + a₁ a₂ + …, where a_k is the
    probability that draft token k is accepted if those before it are.

    It is equation 1, (1 − α^(γ+1)) / (1 − α), if all are α, and assumes nothing about
    them otherwise.
    """
    return 1.0 + sum(accumulate(shares, mul))


def speed_up(tokens: float, gamma: int, cost: PassCost) -> float:
    """Return the speed over plain decoding of passes with `gamma` draft tokens.

    With `tokens_by_depth` of equal shares and a cost of the draft tokens alone it is
    theorem 3.8: (1 − α^(γ+1)) / ((1 − α) (γ c + 1)).
    """
    return tokens * cost(0) / cost(gamma)


def best_gamma(speeds: Sequence[float]) -> int:
    """Return the fastest number of draft tokens, section 3.5; 0 = none pays.

    `speeds` has the speed of k draft tokens at index k.
    """
    return max(range(len(speeds)), key=lambda gamma: speeds[gamma])
