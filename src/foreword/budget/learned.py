"""A budget that extends the chain while all of it is likely accepted, by a trained
model (SpecDec++, arXiv 2405.19715).

It reads the distribution that follows a prefix, never a sample from it;
train/methods/acceptance.py trains the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.budget.base import DraftBudget, Measure
from foreword.errors import InvalidRequest, named
from foreword.files import atomic_file, room
from foreword.types import Request

DOUBT = 0.7
"""Probability that any draft token of the chain is rejected, above which it ends
(paper, section 4).
"""
MOST = 40
"""Tokens. Longest chain."""
FILE = "acceptance.json"
SURE = 1e-4
"""Probabilities are clamped to [SURE, 1 - SURE], which keeps log-odds finite."""


def features(
    distribution: Float[Tensor, "rows vocab"], temperature: float
) -> Float[Tensor, "rows features"]:
    """Return features of distributions in log-weights, before anything is sampled from
    them; -inf = forbidden.

    Log-odds of the likeliest token and its lead over the second, the entropy, the
    probability that two samples are equal, and the temperature; then all pairwise
    products, so that the model is quadratic.
    """
    logs = distribution.float().log_softmax(-1)
    probabilities = logs.exp()
    best = logs.topk(2).values
    first = best[:, 0].exp().clamp(SURE, 1 - SURE)
    as_chain = torch.stack(
        [
            first.logit(),
            (best[:, 0] - best[:, 1]).clamp_max(20.0),
            torch.special.entr(probabilities).sum(-1),
            probabilities.square().sum(-1),
            torch.full_like(first, temperature),
        ],
        -1,
    )
    pairs = combinations_with_replacement(as_chain.unbind(-1), 2)
    return torch.cat(
        [as_chain, torch.stack([one * other for one, other in pairs], -1)], -1
    )


@dataclass(frozen=True, slots=True)
class LogisticModel:
    """Log-odds of acceptance, linear in features that are scaled to mean 0 and
    deviation 1.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    weights: tuple[float, ...]
    """The last entry is the bias."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LogisticModel:
        """Read a model from plain values.

        Raises KeyError, TypeError or ValueError if they are invalid.
        """
        mean, spread, weights = (
            tuple(map(float, values[part])) for part in ("mean", "spread", "weights")
        )
        if len(mean) != len(spread) or len(weights) != len(mean) + 1:
            raise ValueError("mean, spread and weights differ in length")
        return cls(mean, spread, weights)

    def probability(
        self, values: Float[Tensor, "rows features"]
    ) -> Float[Tensor, "rows"]:
        """Return the acceptance probability of a draft token whose distribution has
        these features.
        """
        scaled = (values - values.new_tensor(self.mean)) / values.new_tensor(
            self.spread
        )
        return (
            scaled @ values.new_tensor(self.weights[:-1]) + self.weights[-1]
        ).sigmoid()


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """Trained acceptance probabilities of a draft model's tokens for its target."""

    greedy: LogisticModel
    """At temperature 0: accepted if both models have the same likeliest token."""
    drawn: LogisticModel
    """Above 0: a token sampled from q is accepted, with probability sum min(p, q)."""
    about: dict[str, Any] = field(default_factory=dict)
    """Its origin, and its quality on held-out text."""

    @classmethod
    def read(cls, source: str | Path) -> AcceptanceModel:
        """Read the model from a folder of `foreword train acceptance`.

        Raises InvalidRequest if it has none.
        """
        try:
            values = json.loads(
                (Path(source).expanduser() / FILE).read_text(encoding="utf-8")
            )
            return cls(
                LogisticModel.of(values["greedy"]),
                LogisticModel.of(values["drawn"]),
                values.get("about", {}),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"cannot read an acceptance model from {source}: {named(error)}. Give "
                "a folder that `foreword train acceptance` wrote"
            ) from error

    def write(self, folder: Path) -> None:
        """Write the file atomically, in a folder that is made if missing.

        Raises DiskError if the disk is full.
        """
        with room(folder / FILE):
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(folder / FILE) as partial:
                partial.write_text(
                    json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8"
                )

    def probability(
        self, sequence: Request, distribution: Float[Tensor, "vocab"]
    ) -> float:
        """Return the acceptance probability of the next draft token of a sequence,
        before it is sampled.
        """
        params = sequence.params
        model, temperature = (
            (self.greedy, 0.0) if params.greedy else (self.drawn, params.temperature)
        )
        return float(model.probability(features(distribution[None], temperature)))


class AcceptanceBudget(DraftBudget):
    """Stop rule: the chain ends where P(all accepted) < 1 - doubt; it has at least one
    draft token.

    SpecDec++ reads a head on the draft's hidden state after a token was sampled. This
    policy reads the distribution before, so a draft token is never dropped for its
    value.
    """

    summary = (
        "extend the chain while all of it is likely accepted, by a trained model: "
        "acceptance:DIR"
    )
    chains = True

    def __init__(
        self, model: AcceptanceModel, doubt: float = DOUBT, most: int = MOST
    ) -> None:
        self.model = model
        self.doubt = doubt
        self.most = most
        self._kept: dict[int, float] = {}
        """Request id -> probability that all draft tokens of its chain so far are
        accepted.
        """

    @classmethod
    def from_text(cls, source: str) -> Callable[[Measure], DraftBudget]:
        if not source:
            raise InvalidRequest(
                "cannot use budget='acceptance': it takes a folder that `foreword "
                "train acceptance` wrote. Write acceptance:DIR"
            )
        budget = cls(AcceptanceModel.read(source))
        return lambda _: budget

    def nodes(self, sequence: Request, others: int) -> int:
        return self.most

    def stops(
        self, sequence: Request, depth: int, distribution: Float[Tensor, "vocab"]
    ) -> bool:
        before = self._kept[sequence.id] if depth else 1.0
        self._kept[sequence.id] = kept = before * self.model.probability(
            sequence, distribution
        )
        return depth > 0 and self.doubts(kept)

    def doubts(self, kept: float) -> bool:
        """Return whether the probability that all are accepted is too small."""
        return 1 - kept > self.doubt

    def release(self, sequence: Request) -> None:
        self._kept.pop(sequence.id, None)
