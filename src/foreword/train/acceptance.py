"""Learns how often a target keeps the guesses of a draft model, from the draft's laws alone; and how honest that is.

Knows both models' laws on data; knows nothing about how the odds are used (width/acceptance.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword import family
from foreword.disk import makeable
from foreword.errors import InvalidRequest
from foreword.model import HFModel, check_same, load_tokenizer
from foreword.model.linear import fast_bfloat16
from foreword.params import whole
from foreword.train.data import Record, read, split
from foreword.train.job import eos
from foreword.train.lm import load
from foreword.train.losses import agreement, overlap
from foreword.train.pack import Block, Encoder, Packer, stack
from foreword.width.acceptance import FILE, Forecast, Odds, features

HEATS = (0.3, 0.5, 0.7, 1.0, 1.3)
"""Temperatures that drawn guesses are looked at; one formula serves them and those between."""
RIDGE = 1e-4
"""Keeps weights small where the data does not say."""
BINS = 15
PIECES = 20
"""Blocks are told about one in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to learn the odds of, and from what."""

    data: tuple[Path, ...]
    """JSON lines; see foreword.train.data."""
    out: Path
    target: str | None = None
    """Folder or hub id; None = the family that ships."""
    draft: str | None = None
    """Likewise."""
    tokens: int = 40_000
    """Learnt tokens that are read, about; a fifth as many are held out."""
    length: int = 512
    """Tokens in a block."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the draft's laws were like, and how often guesses from them are kept."""

    features: Float[Tensor, "rows features"]
    kept: Float[Tensor, "rows"]

    def fit(self) -> Odds:
        """Logistic regression, by maximum likelihood with shares in place of outcomes (Cox 1958)."""
        mean, spread = self.features.mean(0), self.features.std(0).clamp_min(1e-3)
        scaled = (self.features - mean) / spread
        weights = torch.zeros(scaled.shape[1] + 1, requires_grad=True)
        search = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            said = scaled @ weights[:-1] + weights[-1]
            found = F.binary_cross_entropy_with_logits(said, self.kept) + RIDGE * weights[:-1].square().sum()
            found.backward()
            return found

        search.step(loss)
        return Odds(tuple(mean.tolist()), tuple(spread.tolist()), tuple(weights.detach().tolist()))

    def judge(self, odds: Odds) -> dict[str, float]:
        """How good odds are here: expected calibration error in bins of equal size, and Brier scores."""
        said = odds.chance(self.features)
        order = said.argsort()
        errors = [
            float((said[part].mean() - self.kept[part].mean()).abs()) * len(part) / len(order)
            for part in order.chunk(BINS)
        ]
        return {
            "tokens": float(len(order)),
            "kept": float(self.kept.mean()),
            "calibration_error": sum(errors),
            "brier": float((said - self.kept).square().mean()),
            "brier_of_a_constant": float((self.kept.mean() - self.kept).square().mean()),
        }


def run(asked: Asked, note: Callable[[str], None] = lambda _: None) -> Forecast:
    """Read data with both models, learn the odds, measure them on held-out records, and write them.

    Raises InvalidRequest, ModelError or VocabularyMismatch before any reading where something does not fit.
    """
    for name, least in (("tokens", 1000), ("length", 2)):
        whole(least)(name, getattr(asked, name))
    makeable(asked.out)
    if (asked.out / FILE).exists():
        raise InvalidRequest(f"{asked.out / FILE} exists already; remove it or name another folder")
    if asked.target is not None and asked.draft is None:
        raise InvalidRequest("odds are those of a draft model: give draft='folder or hub id'")
    source, draft = asked.target or family.target(), asked.draft or family.draft()
    records = read(list(asked.data))
    tokenizer = load_tokenizer(source)
    check_same(tokenizer, load_tokenizer(draft))
    dtype = torch.bfloat16 if fast_bfloat16() else torch.float32
    pair = load(source, dtype).eval(), load(draft, dtype).eval()
    encode = Encoder(tokenizer, eos(pair[0], tokenizer))
    learnt, held_out = split(records, max(1, len(records) // 6), asked.seed)
    if not learnt or not held_out:
        raise InvalidRequest(
            f"{len(records)} records are too few: some must be held out to see whether the odds are honest"
        )
    note(f"{len(learnt):,} records to learn from, {len(held_out):,} held out")

    def seen(some: List[Record], tokens: int, what: str) -> dict[float, Seen]:
        return looked_at(
            pair, Packer(encode, some, asked.length, asked.seed), tokens, lambda n: note(f"{what}: {n:,} tokens")
        )

    known = seen(learnt, asked.tokens, "learning")
    unknown = seen(held_out, max(1000, asked.tokens // 5), "held out")
    drawn = joined([known[heat] for heat in HEATS])
    made = {0.0: known[0.0].fit()} | dict.fromkeys(HEATS, drawn.fit())
    about: dict[str, Any] = {"target": asked.target, "draft": asked.draft, "tokens": len(known[0.0].kept)}
    about["held_out"] = {f"{heat:g}": found.judge(made[heat]) for heat, found in unknown.items()}
    forecast = Forecast(made[0.0], made[1.0], about)
    forecast.write(asked.out)
    return forecast


@torch.no_grad()
def looked_at(
    pair: tuple[HFModel, HFModel], packer: Packer, tokens: int, note: Callable[[int], None]
) -> dict[float, Seen]:
    """Where learnt tokens come next, up to about so many: the draft's laws, and how often the target keeps guesses."""
    parts: dict[float, list[tuple[Tensor, Tensor]]] = {heat: [] for heat in (0.0, *HEATS)}
    count = 0
    for place, block in enumerate(packer.all(1 + 8 * tokens // packer.length)):
        target, draft = _logits(pair, stack([block]))
        for heat, found in parts.items():
            p, q = (logits / (heat or 1.0) for logits in (target, draft))
            found.append((features(q, heat), (overlap(p, q) if heat else agreement(p, q)).float()))
        count += len(target)
        if place % PIECES == PIECES - 1:
            note(count)
        if count >= tokens:
            break
    return {heat: joined([Seen(*part) for part in found]) for heat, found in parts.items()}


def joined(parts: List[Seen]) -> Seen:
    """All rows of all parts."""
    return Seen(torch.cat([part.features for part in parts]), torch.cat([part.kept for part in parts]))


def _logits(pair: tuple[HFModel, HFModel], block: Block) -> tuple[Tensor, Tensor]:
    """Both models' logits where a learnt token comes next, cut to the tokens that both have."""
    asked: dict[str, Any] = {"input_ids": block.tokens, "position_ids": block.positions, "use_cache": False}
    target, draft = (model(**asked).logits[:, :-1][block.learnt[:, 1:]].float() for model in pair)
    vocab = min(target.shape[-1], draft.shape[-1])
    return target[:, :vocab], draft[:, :vocab]
