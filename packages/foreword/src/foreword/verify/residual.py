"""Helpers of rules with independent noise: distributions, residuals, draws, paths."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict


def target_distributions(
    weights: Float[Tensor, "batch column vocab"],
) -> Float[Tensor, "batch column vocab"]:
    """Return the softmax of log-weights (-inf = forbidden), float32 or wider, anew."""
    return torch.softmax(
        weights, dim=-1, dtype=torch.promote_types(weights.dtype, torch.float32)
    )


def draft_distribution(
    draft: Draft,
    node: int,
    token: Int[Tensor, "batch"],
    like: Float[Tensor, "batch vocab"],
) -> Float[Tensor, "batch vocab"]:
    """Return the distribution a node's siblings were sampled from, in the dtype of
    `like`.

    `token` is the draft token, 0 for padding. A chosen one (`draft.probs` None) has a
    one-hot distribution.
    """
    return (
        one_hot(token, like)
        if draft.probs is None
        else draft.probs[:, node].to(like.dtype)
    )


def one_hot(
    token: Int[Tensor, "batch"], like: Float[Tensor, "batch vocab"]
) -> Float[Tensor, "batch vocab"]:
    """Return the distribution with probability 1 at one token per row."""
    return torch.zeros_like(like).scatter_(1, token[:, None], 1.0)


def ratio(
    p: Float[Tensor, "*at vocab"],
    q: Float[Tensor, "*at vocab"],
    token: Int[Tensor, "*at"],
) -> Float[Tensor, "*at"]:
    """Return p(x)/q(x) of one token x at each position, finite even if q(x) = 0."""
    p_token, q_token = (
        distribution.gather(-1, token[..., None])[..., 0] for distribution in (p, q)
    )
    return p_token / q_token.clamp(min=torch.finfo(q.dtype).tiny)


def normalised(
    distribution: Float[Tensor, "batch vocab"], otherwise: Float[Tensor, "batch vocab"]
) -> Float[Tensor, "batch vocab"]:
    """Return the distribution scaled to sum to 1, or `otherwise` where its sum is 0."""
    total = distribution.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, distribution / total, otherwise)


def draw(
    distribution: Float[Tensor, "batch vocab"], uniform: Float[Tensor, "batch"]
) -> Int[Tensor, "batch"]:
    """Draw by inverse CDF from unnormalised weights, never a token of weight 0."""
    # float64: in float32 the tail of a large vocabulary would be lost in the rounding
    # of the sum. The mask is for devices that sum in parallel: rounding can change the
    # sum at a token of weight 0.
    cdf = distribution.double().cumsum(dim=-1).masked_fill(distribution <= 0, 0.0)
    total = cdf.amax(dim=-1, keepdim=True)
    reached = (cdf > uniform[:, None].double() * total) | (cdf == total)
    return reached.byte().argmax(dim=-1)


def in_use(draft: Draft) -> Bool[Tensor, "batch node"]:
    """Return True for draft tokens, False for padding."""
    return torch.arange(draft.nodes, device=draft.tokens.device) < draft.count[:, None]


def stop_at(
    end: Int[Tensor, "batch"],
    distribution: Float[Tensor, "batch vocab"],
    draft: Draft,
    noise: Noise,
) -> Verdict:
    """Accept the path to column `end` (0 = none); draw from `distribution`."""
    upwards = []
    node = end - 1
    while bool((node >= 0).any()):
        upwards.append(node)
        node = draft.parents.gather(1, node.clamp(min=0)[:, None])[:, 0].where(
            node >= 0, -1
        )
    path = torch.full_like(draft.tokens, -1)
    bonus = draw(distribution, noise.bonus.gather(1, end[:, None])[:, 0])
    if not upwards:
        return Verdict.padded(path=path, accepted=torch.zeros_like(end), bonus=bonus)
    climbed = torch.stack(upwards, dim=1)
    accepted = (climbed >= 0).sum(dim=1)
    step = accepted[:, None] - 1 - torch.arange(len(upwards), device=end.device)
    path[:, : len(upwards)] = climbed.gather(1, step.clamp(min=0)).where(step >= 0, -1)
    return Verdict.padded(path=path, accepted=accepted, bonus=bonus)
