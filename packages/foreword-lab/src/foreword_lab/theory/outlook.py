"""The formulas for one acceptance and one cost: curves, the best point, the limits."""

from dataclasses import asdict, dataclass
from typing import Any

from foreword.errors import InvalidRequest
from foreword.options import NODES
from foreword_lab.theory.formulas import (
    PassCost,
    best_gamma,
    expected_tokens,
    loses_from,
    operations,
    pays_from,
    speeds,
)

SHOWN = 16
"""Draft tokens. Longest draft in figures and in JSON."""
STEPS = 20
"""Steps of α from 0 to 1 in the surface."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expected speed of drafting at one acceptance and one cost."""

    alpha: float
    cost: PassCost

    @property
    def speeds(self) -> list[float]:
        """Speed over plain decoding by draft tokens, from 0 to the most of a round."""
        return speeds(self.alpha, self.cost, NODES)

    @property
    def best(self) -> int:
        """Fastest number of draft tokens; 0 = none pays."""
        return best_gamma(self.speeds)

    @property
    def loses_from(self) -> int | None:
        """Draft tokens from which drafting loses, if within the most of a round."""
        return loses_from(self.speeds)

    @property
    def pays_from(self) -> float | None:
        """Acceptance below which no number of draft tokens pays."""
        return pays_from(self.cost, NODES)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, lists and dicts."""
        scoring = self.cost.scoring[: SHOWN + 1]
        return {
            "alpha": self.alpha,
            "cost": asdict(self.cost) | {"scoring": list(scoring)},
            "rows": [self._row(gamma) for gamma in range(1, SHOWN + 1)],
            "best_gamma": self.best,
            "best_speed": self.speeds[self.best],
            "loses_from": self.loses_from,
            "pays_from": self.pays_from,
            "surface": surface(self.cost),
        }

    def _row(self, gamma: int) -> dict[str, float]:
        return {
            "gamma": gamma,
            "tokens": expected_tokens(self.alpha, gamma),
            "operations": operations(self.alpha, gamma),
            "speed": self.speeds[gamma],
        }


def surface(cost: PassCost) -> dict[str, Any]:
    """Return the speed over plain by acceptance (rows) and draft tokens (columns)."""
    alphas = [step / STEPS for step in range(STEPS + 1)]
    return {
        "alpha": alphas,
        "gamma": list(range(SHOWN + 1)),
        "speed": [speeds(alpha, cost, SHOWN) for alpha in alphas],
    }


def given(alpha: float, cost: float) -> Outlook:
    """Return the outlook by theorem 3.8 for numbers that are not measured.

    Raises InvalidRequest for a number out of range.
    """
    if not 0 <= alpha <= 1:
        raise InvalidRequest(
            f"cannot apply the formulas: '--alpha' is a probability, got {alpha}. "
            "Give a number from 0 to 1"
        )
    if not 0 <= cost < float("inf"):
        raise InvalidRequest(
            f"cannot apply the formulas: '--cost' is a share of a step of the target, "
            f"got {cost}. Give a number of at least 0"
        )
    return Outlook(alpha, PassCost(token=cost))
