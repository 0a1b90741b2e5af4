"""Recursive rejection sampling: verify a tree, siblings drawn without replacement."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.base import Rule
from foreword.verify.rejection import given_text
from foreword.verify.residual import (
    draft_distribution,
    in_use,
    normalised,
    one_hot,
    ratio,
    stop_at,
    target_distributions,
)

Probs = Float[Tensor, "batch vocab"]
Next = Callable[[Probs, Bool[Tensor, "batch vocab"], Int[Tensor, "batch"]], Probs]
"""(first sibling's distribution, tokens tried, token) -> a sibling's distribution."""
Left = Callable[[Probs, Probs], Probs]
"""(target's distribution, the drafter's) -> the residual after a rejection."""


def without_replacement(
    weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise
) -> Verdict:
    """Verify a tree of distinct siblings (Yang et al. 2024, arXiv 2401.06706; Jeon et
    al. 2024, arXiv 2402.14160).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. At the node reached so far each
    child x is tried in node order and accepted if u < min(1, t(x)/d(x)): t is the
    target's distribution, d the one x was sampled from, without the siblings tried
    before. A rejection leaves t = norm([t - d]+), from which the bonus is drawn if no
    child passes. `draft.probs` holds for every sibling the distribution of the first
    one. Chosen draft tokens are accepted with the target's probability of drawing one
    of them. `noise.accept` and `noise.bonus` must be independent of each other and of
    the drafter's noise.
    """
    return descend(weights, draft, noise, untried, residual)


def descend(
    weights: Float[Tensor, "batch column vocab"],
    draft: Draft,
    noise: Noise,
    drawn_from: Next,
    left_after: Left,
) -> Verdict:
    """Step from the root to the first child that passes, while there is one.

    Children come after their parents, so one pass over the nodes visits them in order.
    """
    p, used = target_distributions(weights), in_use(draft)
    end, left = torch.zeros_like(draft.count), p[:, 0]
    tried = torch.zeros_like(left, dtype=torch.bool)
    for node in range(draft.nodes):
        active = used[:, node] & (draft.parents[:, node] + 1 == end)
        if not active.any():
            continue
        token = draft.tokens[:, node].where(active, 0)
        q = drawn_from(draft_distribution(draft, node, token, left), tried, token)
        passes = active & (noise.accept[:, node] < ratio(left, q, token))
        rejected = (active & ~passes)[:, None]
        left = p[:, node + 1].where(
            passes[:, None], left_after(left, q).where(rejected, left)
        )
        tried = (tried | (rejected & one_hot(token, left).bool())) & ~passes[:, None]
        end = torch.where(passes, node + 1, end)
    return stop_at(end, left, draft, noise)


def untried(
    distribution: Probs, tried: Bool[Tensor, "batch vocab"], token: Int[Tensor, "batch"]
) -> Probs:
    """Return the distribution without tried tokens; one-hot at `token` if empty."""
    return normalised(
        distribution.masked_fill(tried, 0.0), one_hot(token, distribution)
    )


def residual(left: Probs, q: Probs) -> Probs:
    """Return norm([t - q]+), or t where it is empty: only rounding can reject there."""
    return normalised((left - q).clamp(min=0), left)


RULE = Rule(
    name="without-replacement",
    verify=without_replacement,
    given_text=given_text,
    lists="distinct",
)
