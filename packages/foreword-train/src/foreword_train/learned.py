"""A budget that extends the chain while all of it is likely accepted, by a model that
methods/acceptance.py trains (SpecDec++, arXiv 2405.19715).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.budget.base import DraftBudget, Measure, StoppingBudget
from foreword.errors import InvalidRequest, named
from foreword.types import Request

DOUBT = 0.7
"""Probability of any rejection above which a chain ends (paper, section 4)."""
MOST = 40
"""Tokens. Longest chain."""
FILE = "acceptance.json"
SURE = 1e-4
"""Least distance of probabilities from 0 and 1, which keeps log-odds finite."""


def features(
    distribution: Float[Tensor, "rows vocab"], temperature: float
) -> Float[Tensor, "rows features"]:
    """Return features of distributions in log-weights; -inf = forbidden.

    Log-odds of the likeliest token and its lead over the second, the entropy, the
    probability that two samples are equal, the temperature, and all pairwise products.
    """
    logs = distribution.float().log_softmax(-1)
    probabilities = logs.exp()
    best = logs.topk(2).values
    first = best[:, 0].exp().clamp(SURE, 1 - SURE)
    single = [
        first.logit(),
        (best[:, 0] - best[:, 1]).clamp_max(20.0),
        torch.special.entr(probabilities).sum(-1),
        probabilities.square().sum(-1),
        torch.full_like(first, temperature),
    ]
    pairs = combinations_with_replacement(single, 2)
    return torch.stack([*single, *(one * other for one, other in pairs)], -1)


@dataclass(frozen=True, slots=True)
class LogisticModel:
    """Log-odds of acceptance, linear in features of mean 0 and deviation 1."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    weights: tuple[float, ...]
    """The last entry is the bias."""

    @classmethod
    def of(cls, values: dict[str, list[float]]) -> "LogisticModel":
        """Read a model. Raises KeyError, TypeError or ValueError if it is invalid."""
        model = cls(*(tuple(map(float, values[name])) for name in cls.__slots__))
        if not len(model.mean) == len(model.spread) == len(model.weights) - 1:
            raise ValueError("mean, spread and weights differ in length")
        return model

    def probability(
        self, values: Float[Tensor, "rows features"]
    ) -> Float[Tensor, "rows"]:
        """Return the acceptance probability of draft tokens with these features."""
        new = values.new_tensor
        scaled = (values - new(self.mean)) / new(self.spread)
        return (scaled @ new(self.weights[:-1]) + self.weights[-1]).sigmoid()


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """Trained acceptance probabilities of a draft model's tokens for its target."""

    greedy: LogisticModel
    """At temperature 0: both models have the same likeliest token."""
    drawn: LogisticModel
    """Above 0: a token sampled from q is accepted, with probability sum min(p, q)."""
    about: dict[str, Any] = field(default_factory=dict)
    """Origin of the model, and its quality on held-out text."""

    @classmethod
    def read(cls, source: str | Path) -> "AcceptanceModel":
        """Read the model of a folder. Raises InvalidRequest if it has none."""
        try:
            values = json.loads((Path(source).expanduser() / FILE).read_bytes())
            greedy = LogisticModel.of(values["greedy"])
            drawn = LogisticModel.of(values["drawn"])
            return cls(greedy, drawn, values.get("about", {}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"cannot read an acceptance model from {source}: {named(error)}. Give "
                "a folder that `foreword train acceptance` wrote"
            ) from error


class AcceptanceBudget(StoppingBudget):
    """Stop rule: the chain ends, after one draft token, where P(any rejected) > DOUBT.

    SpecDec++ reads the draft's hidden state after a token was sampled. This policy
    reads the distribution before, so no draft token is dropped for its value.
    """

    def __init__(self, model: AcceptanceModel) -> None:
        self.model = model
        self._kept: dict[int, float] = {}
        """By request: probability that its chain so far is accepted."""

    @classmethod
    def from_text(cls, source: str) -> Callable[[Measure], DraftBudget]:
        if not source:
            raise InvalidRequest(
                "cannot use budget='acceptance': it takes a folder of `foreword train "
                "acceptance`. Write acceptance:DIR"
            )
        budget = cls(AcceptanceModel.read(source))
        return lambda _: budget

    def nodes(self, request: Request, others: int) -> int:
        return MOST

    def stops(
        self, request: Request, depth: int, distribution: Float[Tensor, "vocab"]
    ) -> bool:
        params = request.params
        model = self.model.greedy if params.greedy else self.model.drawn
        heat = 0.0 if params.greedy else params.temperature
        probability = float(model.probability(features(distribution[None], heat)))
        probability *= self._kept[request.id] if depth else 1.0
        self._kept[request.id] = probability
        return depth > 0 and self.doubts(probability)

    def doubts(self, probability: float) -> bool:
        """Return whether the probability that all are accepted is too small."""
        return 1 - probability > DOUBT

    def release(self, request: Request) -> None:
        self._kept.pop(request.id, None)
