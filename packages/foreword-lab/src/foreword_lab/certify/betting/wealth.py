"""Bets against an honest server.

A bet has a wealth: the product, over the tokens drawn, of their probability by another
distribution over that by the stated one. If the server draws by the stated one, the
wealth has the mean 1, whenever the run ends, and ever reaches 1/a with a probability of
at most a (Ville 1939; Shafer 2021, "Testing by betting"; Ramdas et al. 2023,
"Game-theoretic statistics and safe anytime-valid inference"). A mean of wealths is a
wealth again, so many differences are sought with one error.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from jaxtyping import Float

from foreword_lab.certify.betting.differences import FLOOR, Others, families, learned
from foreword_lab.certify.betting.rows import Rows

ERROR = 0.005
"""Probability, at most, of accusing an honest server: by all bets together, whenever
the run ends.
"""
POWER = 0.9
"""Probability of finding the stated difference."""
BELOW = 1.2816
"""Standard deviations. A normal number is as far below its mean with probability
1 - POWER.
"""
WIDTH = 0.05
"""Probability that an interval does not hold the true strength."""
SHARED = 0.5
"""Part of the stake on differences that all sources share."""

Sums = Float[np.ndarray, "strength"]


@dataclass(frozen=True, slots=True)
class Bet:
    """One difference, the stake on it, and the sums over all tokens.

    Each strength of the difference has an equal part of the stake.
    """

    name: str
    """What is likelier, or less likely, than it should be."""
    others: Callable[[Rows], Others]
    """Return the other distribution of each strength."""
    stake: float
    learns: bool
    """Whether the other distribution comes from the tokens so far."""
    wealth: Sums
    """Logarithm, of each strength."""
    nats: Sums
    """Divergence of the other distributions from the stated one."""
    moved: Sums
    """Total variation between them."""

    def after(self, rows: Rows) -> "Bet":
        """Return the bet after more tokens."""
        others, target = self.others(rows), rows.target[:, None]
        ratios = np.log(np.maximum(others, FLOOR) / np.maximum(target, FLOOR))
        drawn = ratios[np.arange(len(rows)), :, rows.drawn]
        return replace(
            self,
            wealth=self.wealth + drawn.sum(0),
            nats=self.nats + (others * ratios).sum((0, 2)),
            moved=self.moved + np.abs(others - target).sum((0, 2)) / 2,
        )

    def with_other(self, other: "Bet") -> "Bet":
        """Return the bet over the tokens of both."""
        return replace(
            self,
            wealth=self.wealth + other.wealth,
            nats=self.nats + other.nats,
            moved=self.moved + other.moved,
        )

    @property
    def log_wealth(self) -> float:
        """Logarithm of the mean wealth of the strengths."""
        return log_mean(self.wealth)

    def interval(self, tokens: int) -> tuple[float, float, float] | None:
        """Return the total variation of the strength that fits best, and the interval
        of strengths that are not refuted: it holds the true one in at least 1 - WIDTH
        of runs. None where the other distribution was learned.
        """
        if self.learns:
            return None
        variation = self.moved / tokens
        best = int(self.wealth.argmax())
        limit = min(self.log_wealth + math.log(WIDTH), self.wealth[best])
        fit = variation[self.wealth >= limit]
        return float(variation[best]), float(fit.min()), float(fit.max())

    def described(self, tokens: int) -> str:
        """Return what differs, and by how much."""
        interval = self.interval(tokens)
        if interval is None:
            return f"{self.name}: {self.log_wealth / tokens:.2g} nats a token"
        best, low, high = interval
        return f"{self.name}: a total variation of {best:.3f} ({low:.3f} to {high:.3f})"

    def finds(self, tokens: int, planned: float) -> float:
        """Return the smallest total variation that is found with probability POWER in
        so many tokens as planned; where even the largest is not, that one.
        """
        if self.learns or not tokens:
            return 0.0
        needed = enough(math.log(len(self.wealth) / (ERROR * self.stake)))
        nats, moved = self.nats * planned / tokens, self.moved / tokens
        reached = np.flatnonzero(nats >= needed)
        if not len(reached):
            return float(moved.max())
        # divergence grows with the square of the variation between two strengths
        first = reached[0]
        return float(moved[first] * math.sqrt(needed / nats[first]))


class Ledger:
    """All bets on one run, over several sources of tokens.

    Half of the stake is on differences that all sources share, half on each alone.
    """

    def __init__(self, sources: int = 1, *, drafted: bool = False) -> None:
        self.tokens = 0
        self.unlisted = 0
        """Tokens whose distribution is not stated, so they are not bet on."""
        self.highest = 0.0
        """Largest logarithm of the wealth so far."""
        self.bets = [list(_bets(drafted=drafted)) for _ in range(sources)]
        """By source."""

    def take(self, rows: Rows, source: int = 0) -> None:
        """Bet on tokens of one source."""
        self.tokens += len(rows)
        self.bets[source] = [bet.after(rows) for bet in self.bets[source]]
        self.highest = max(self.highest, self.log_wealth)

    @property
    def shared(self) -> list[Bet]:
        """Bets over the tokens of all sources."""
        return [reduce(Bet.with_other, bets) for bets in zip(*self.bets, strict=True)]

    @property
    def log_wealth(self) -> float:
        """Logarithm of the wealth of all bets."""
        return log_mean([_total(self.shared), log_mean([*map(_total, self.bets)])])

    @property
    def differs(self) -> bool:
        """Whether tokens are drawn otherwise: wrong of at most ERROR of servers."""
        return self.highest >= math.log(1 / ERROR)

    @property
    def best(self) -> Bet:
        """What differs most surely."""
        bets = [bet for source in [self.shared, *self.bets] for bet in source]
        return max(bets, key=lambda bet: bet.log_wealth)

    def finds(self, planned: float | None = None) -> float:
        """Return the total variation of tokens from which on a difference is found with
        probability POWER, of any kind that is not learned; `planned`: tokens in all.
        Nothing is found in unlisted tokens.
        """
        tokens = self.tokens
        largest = max(bet.finds(tokens, planned or tokens) for bet in self.shared)
        blind = self.unlisted / max(1, tokens + self.unlisted)
        return blind + (1 - blind) * largest


def log_mean(logs: Sequence[float] | Sums) -> float:
    """Return the logarithm of the mean of numbers, from their logarithms."""
    values = np.asarray(logs)
    largest = values.max()
    return float(largest + np.log(np.exp(values - largest).mean()))


def enough(nats: float) -> float:
    """Return the mean gain with which a bet on the true distribution wins so many nats
    with probability POWER: a gain is about normal, with twice its mean as its variance.
    """
    half = BELOW / math.sqrt(2)
    return (half + math.sqrt(half * half + nats)) ** 2


def _bets(*, drafted: bool) -> Iterator[Bet]:
    fixed, adaptive = families(drafted=drafted), learned()
    for family in [*fixed, *adaptive]:
        stake = SHARED / (len(fixed) + len(adaptive)) / len(family)
        for name, others, strengths in family:
            none = np.zeros(strengths)
            yield Bet(name, others, stake, family in adaptive, none, none, none)


def _total(bets: list[Bet]) -> float:
    """Return the logarithm of the wealth of bets on all differences."""
    stakes = [math.log(len(bets) * bet.stake / SHARED) for bet in bets]
    logs = [bet.log_wealth + stake for bet, stake in zip(bets, stakes, strict=True)]
    return log_mean(logs)
