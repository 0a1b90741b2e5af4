"""Guesses on while it is likely that all of them are kept, by odds learnt beforehand (SpecDec++, arXiv 2405.19715).

Knows the law that follows a prefix, never what is drawn from it; how the odds are learnt is in train/acceptance.py.
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

from foreword.errors import InvalidRequest, named
from foreword.types import Sequence
from foreword.width.base import Measure, Width

DOUBT = 0.7
"""A chain ends where the chance that any of its guesses is refused is larger. As in the paper, section 4."""
MOST = 40
"""Longest chain."""
FILE = "acceptance.json"
SURE = 1e-4
"""No token is taken for surer than 1 minus this."""


def features(law: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "rows features"]:
    """What can be known of laws, in log-weights, before anything is drawn from them; -inf = forbidden.

    Of the likeliest token the log-odds, and by how much it is ahead; the entropy; the chance that two draws are equal;
    the temperature. Then all their products by twos, so that odds need not be straight lines.
    """
    logs = law.float().log_softmax(-1)
    chances = logs.exp()
    best = logs.topk(2).values
    first = best[:, 0].exp().clamp(SURE, 1 - SURE)
    straight = torch.stack(
        [
            first.logit(),
            (best[:, 0] - best[:, 1]).clamp_max(20.0),
            torch.special.entr(chances).sum(-1),
            chances.square().sum(-1),
            torch.full_like(first, temperature),
        ],
        -1,
    )
    pairs = combinations_with_replacement(straight.unbind(-1), 2)
    return torch.cat([straight, torch.stack([one * other for one, other in pairs], -1)], -1)


@dataclass(frozen=True, slots=True)
class Odds:
    """Log-odds that a guess is kept, linear in features that are scaled to mean 0 and deviation 1."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    weights: tuple[float, ...]
    """The last is what is added."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Odds:
        """From plain values. Raises KeyError, TypeError or ValueError for what are none."""
        mean, spread, weights = (tuple(map(float, said[part])) for part in ("mean", "spread", "weights"))
        if len(mean) != len(spread) or len(weights) != len(mean) + 1:
            raise ValueError("its parts do not belong together")
        return cls(mean, spread, weights)

    def chance(self, seen: Float[Tensor, "rows features"]) -> Float[Tensor, "rows"]:
        """The chance that a guess is kept whose law has these features."""
        scaled = (seen - seen.new_tensor(self.mean)) / seen.new_tensor(self.spread)
        return (scaled @ seen.new_tensor(self.weights[:-1]) + self.weights[-1]).sigmoid()


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was learnt of a draft model: how often its target keeps what it guesses."""

    greedy: Odds
    """At temperature 0: both find the same token likeliest."""
    drawn: Odds
    """Above it: a guess drawn from the draft's law is kept, which happens with chance sum min(p, q)."""
    about: dict[str, Any] = field(default_factory=dict)
    """Where it is from, and how good it was on held-out text."""

    @classmethod
    def read(cls, source: str | Path) -> Forecast:
        """From the folder that `foreword train acceptance` wrote. Raises InvalidRequest where there is none."""
        try:
            said = json.loads((Path(source).expanduser() / FILE).read_text(encoding="utf-8"))
            return cls(Odds.of(said["greedy"]), Odds.of(said["drawn"]), said.get("about", {}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"{source} holds no odds of acceptance ({named(error)}); give a folder that "
                "`foreword train acceptance` wrote"
            ) from error

    def write(self, folder: Path) -> None:
        """Make the folder, if it is not there, and the file in it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def chance(self, sequence: Sequence, law: Float[Tensor, "vocab"]) -> float:
        """The chance that the next guess of a sequence is kept, before it is drawn."""
        params = sequence.params
        odds, heat = (self.greedy, 0.0) if params.greedy else (self.drawn, params.temperature)
        return float(odds.chance(features(law[None], heat)))


class Acceptance(Width):
    """Stops before a guess where all of the chain are kept with a chance below 1 - doubt; one guess is always made.

    SpecDec++ asks a head on the draft's hidden state about the token that was drawn. Here the law that it is drawn from
    is asked, before: a guess is never left out for what it turned out to be.
    """

    summary = "on while all guesses are likely to be kept, by odds that were learnt: acceptance:DIR"
    chains = True

    def __init__(self, forecast: Forecast, doubt: float = DOUBT, most: int = MOST) -> None:
        self.forecast, self.doubt, self.most = forecast, doubt, most
        self._kept: dict[int, float] = {}
        """The chance that all guesses of the chain so far are kept."""

    @classmethod
    def told(cls, source: str) -> Callable[[Measure], Width]:
        if not source:
            raise InvalidRequest("this width takes a folder that `foreword train acceptance` wrote: acceptance:DIR")
        made = cls(Forecast.read(source))
        return lambda _: made

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self.most

    def stops(self, sequence: Sequence, depth: int, law: Float[Tensor, "vocab"]) -> bool:
        before = self._kept[sequence.id] if depth else 1.0
        self._kept[sequence.id] = kept = before * self.forecast.chance(sequence, law)
        return depth > 0 and self.doubts(kept)

    def doubts(self, kept: float) -> bool:
        """A chance that all are kept which is too small."""
        return 1 - kept > self.doubt

    def release(self, sequence: Sequence) -> None:
        self._kept.pop(sequence.id, None)
