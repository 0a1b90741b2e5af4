"""Measured figures of a drafter at one temperature, and the speed that they predict."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, median
from typing import Any

from foreword.model.cost import Cost
from foreword_lab.bench.records import Round
from foreword_lab.doctor.formulas import PassCost, best_gamma, tokens_by_depth
from foreword_lab.doctor.pass_cost import pass_cost, rest_of, shares
from foreword_lab.doctor.rounds import LONGEST, Answers

BUDGETS = (0, 1, LONGEST)
"""Draft tokens of the measured passes: the formulas are linear between them."""
BETTER, SURE = 0.1, 3.0
"""An acceptance is another one if it differs by BETTER and by SURE standard errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a drafter over all answers at one temperature; drafts are chains."""

    first: float
    """Share of first draft tokens accepted, in passes of one draft token."""
    tried: int
    """Passes of one draft token."""
    by_depth: tuple[float, ...]
    """Share accepted at each depth if the depth before was, in passes of LONGEST."""
    drafting: float
    """Share of the passes of LONGEST in which there was a draft token."""
    by_answer: tuple[float, ...]
    """Tokens of a pass of LONGEST, by answer."""
    cost: PassCost
    """In steps; `start` holds what else a pass with draft tokens takes longer."""
    step: float
    """Seconds of a step: the target over one row."""

    @property
    def error(self) -> float:
        """Standard error of `first`."""
        spread = math.sqrt(self.first * (1 - self.first) / max(1, self.tried))
        return spread if self.tried else 1.0

    @property
    def tokens_per_pass(self) -> float:
        """Measured, with LONGEST draft tokens."""
        return mean(self.by_answer) if self.by_answer else 1.0

    @property
    def speeds(self) -> list[float]:
        """Predicted speed over plain decoding by draft tokens, from 0."""
        return [1.0, *map(self._speed, range(1, 1 + len(self.by_depth)))]

    @property
    def nodes(self) -> int:
        """Fastest number of draft tokens; 0 = drafting does not pay."""
        return best_gamma(self.speeds)

    @property
    def best(self) -> float:
        """Predicted speed over plain decoding with the fastest number of draft tokens.

        At least 1: the default budget stops drafting that loses.
        """
        return max(self.speeds)

    @property
    def propose(self) -> float:
        """Seconds of drafting one draft token."""
        return self.cost.token * self.step

    def _speed(self, gamma: int) -> float:
        deep = tokens_by_depth(self.by_depth[:gamma])
        tokens = 1 + self.first if gamma == 1 else deep
        drafting, plain = self.drafting, self.cost(0)
        seconds = drafting * self.cost(gamma) + (1 - drafting) * plain
        return (1 + drafting * (tokens - 1)) * plain / seconds

    def at_cost(self, **changes: Any) -> "Figures":
        """Return the figures with other entries of the cost."""
        return replace(self, cost=replace(self.cost, **changes))

    def with_acceptance(self, other: "Figures") -> "Figures":
        """Return the figures with the acceptance of others."""
        return replace(
            self, first=other.first, by_depth=other.by_depth, drafting=other.drafting
        )

    def accepting(self, least: float, factor: float = 1.0) -> "Figures":
        """Return the figures with every share times `factor`, at least `least`."""
        raised = [
            min(1.0, max(least, factor * share))
            for share in (self.first, *self.by_depth)
        ]
        return replace(self, first=raised[0], by_depth=tuple(raised[1:]))

    def clearly_above(self, other: "Figures") -> bool:
        """Return whether more first draft tokens are accepted, beyond the noise."""
        noise = SURE * math.hypot(self.error, other.error)
        return self.first - other.first > max(BETTER, noise)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, times in seconds."""
        cost = asdict(self.cost)
        cost["scoring"] = list(self.cost.scoring[: LONGEST + 1])
        return {
            "first": self.first,
            "tried": self.tried,
            "by_depth": list(self.by_depth),
            "drafting": self.drafting,
            "tokens_per_pass": self.tokens_per_pass,
            "propose": self.propose,
            "score": self.step,
            "cost": cost,
            "nodes": self.nodes,
            "speed": self.best,
        }


def figures(answers: Answers, scoring: Cost) -> Figures:
    """Return the figures of answers at BUDGETS; `scoring`: the target's forwards."""
    sums = answers.counts().sum(axis=0)
    longest = [runs[LONGEST] for runs in answers.passes]
    passes = [one for run in longest for one in run]
    reached = int((sums[LONGEST, :, 1] > 0).sum())
    cost, step = pass_cost(answers.decoding(), scoring)
    extra = _extra(answers.decoding()) / step
    return Figures(
        first=float(shares(sums[1])[0]),
        tried=int(sums[1, 0, 1]),
        by_depth=tuple(shares(sums[LONGEST])[:reached].tolist()),
        drafting=sum(one.drafted > 0 for one in passes) / max(1, len(passes)),
        by_answer=tuple(mean(one.tokens for one in run) for run in longest if run),
        cost=replace(cost, start=cost.start + extra),
        step=step,
    )


def _extra(passes: Sequence[Round]) -> float:
    """Return the seconds outside drafting and scoring that passes with draft tokens
    take longer than those without.
    """
    rests = [
        [rest_of(one) for one in passes if bool(one.drafted) is drafts]
        for drafts in (True, False)
    ]
    if not all(rests):
        return 0.0
    return max(0.0, median(rests[0]) - median(rests[1]))
