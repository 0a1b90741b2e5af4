"""Whether a rule keeps the target's distribution, in samples; see enumeration.py."""

import torch
from jaxtyping import Float, Int
from scipy.stats import chi2
from torch import Tensor

from foreword.types import Noise, Verify
from foreword_lab.certify import worlds
from foreword_lab.certify.enumeration import cells

ROWS = 120_000
"""Runs of a sampled test: they see a bias of 0.005 (test_exactness.py shows it)."""


def surprise(
    verify: Verify, drafting: worlds.Drafting, world: worlds.World, gumbel: bool
) -> float:
    """Chi-square of ROWS runs' first `depth` tokens over its 99.99 % quantile."""
    rng, rows = torch.Generator().manual_seed(0), ROWS
    draft_tokens = drafting(world)
    index = draft_tokens.likely.multinomial(rows, replacement=True, generator=rng)
    weights = worlds.along(world.target, draft_tokens.draft).log().float()[index]
    whole = draft_tokens.draft
    if whole.probs is not None:
        whole = worlds.changed(whole, probs=whole.probs.float())
    draft = worlds.repeat(whole, index)
    noise = random_noise(weights.shape, rng, gumbel=gumbel, dtype=weights.dtype)
    verdict = verify(weights, draft, noise)
    text = torch.zeros(rows, 0, dtype=torch.long)
    for depth in range(world.depth):
        plain = worlds.next_distribution(world.target, text).multinomial(
            1, generator=rng
        )[:, 0]
        added = verdict.bonus.where(verdict.accepted == depth, plain)
        draft_token = draft.tokens.gather(1, verdict.path[:, depth, None].clamp(min=0))[
            :, 0
        ]
        text = torch.cat(
            (text, draft_token.where(verdict.accepted > depth, added)[:, None]), dim=1
        )
    return chi_square(cells(text, world.vocab), plain_distribution(world))


def plain_distribution(world: worlds.World) -> Float[Tensor, "text"]:
    """Probability of every text of `depth` tokens under the target."""
    distribution = torch.ones(1, dtype=torch.float64)
    for table in world.target[: world.depth]:
        distribution = (
            distribution[:, None] * table.reshape(len(distribution), world.vocab)
        ).flatten()
    return distribution


def chi_square(
    observed: Int[Tensor, "row"], distribution: Float[Tensor, "cell"]
) -> float:
    """Pearson's statistic of the observed cells, as a share of its 99.99 % quantile."""
    expected = distribution * len(observed)
    counts = observed.bincount(minlength=len(distribution))
    return ((counts - expected) ** 2 / expected).sum().item() / float(
        chi2.ppf(0.9999, len(distribution) - 1)
    )


def random_noise(
    shape: torch.Size,
    rng: torch.Generator,
    *,
    gumbel: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Noise:
    """Independent noise for weights of this shape [row, column, vocab]."""
    accept, bonus = torch.rand(2, *shape[:2], generator=rng, dtype=dtype)
    if not gumbel:
        return Noise(None, accept, bonus)
    waiting = torch.empty(shape, dtype=dtype).exponential_(generator=rng)
    return Noise(-waiting.log(), accept, bonus)
