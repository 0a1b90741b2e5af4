"""What the rules with independent noise share: the laws they compare, a draw from what is left, a path to report.

Knows drafts and laws; decides nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict


def target_laws(weights: Float[Tensor, "batch column vocab"]) -> Float[Tensor, "batch column vocab"]:
    """The laws of log-weights (-inf = forbidden), in float32 or wider; a tensor of its own."""
    return torch.softmax(weights, dim=-1, dtype=torch.promote_types(weights.dtype, torch.float32))


def guess_law(
    draft: Draft, node: int, token: Int[Tensor, "batch"], like: Float[Tensor, "batch vocab"]
) -> Float[Tensor, "batch vocab"]:
    """The law that a node's siblings were drawn from, in the dtype of `like`; `token` is the guess, 0 for padding.

    A chosen guess (`draft.probs` None) has a one-hot law: it could not have been another token, whatever the drafter
    believed.
    """
    return one_hot(token, like) if draft.probs is None else draft.probs[:, node].to(like.dtype)


def one_hot(token: Int[Tensor, "batch"], like: Float[Tensor, "batch vocab"]) -> Float[Tensor, "batch vocab"]:
    """The law that is certain of one token in each row."""
    return torch.zeros_like(like).scatter_(1, token[:, None], 1.0)


def ratio(
    p: Float[Tensor, "*at vocab"], q: Float[Tensor, "*at vocab"], token: Int[Tensor, "*at"]
) -> Float[Tensor, "*at"]:
    """p(x)/q(x) of one token x in each place, finite even where q says that x cannot have been drawn."""
    p_token, q_token = (law.gather(-1, token[..., None])[..., 0] for law in (p, q))
    return p_token / q_token.clamp(min=torch.finfo(q.dtype).tiny)


def normalised(
    law: Float[Tensor, "batch vocab"], otherwise: Float[Tensor, "batch vocab"]
) -> Float[Tensor, "batch vocab"]:
    """The law scaled to sum to one; where nothing is left of it, the other."""
    total = law.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, law / total, otherwise)


def draw(law: Float[Tensor, "batch vocab"], uniform: Float[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """Draw by inverse CDF from an unnormalised law; never a token of weight zero, even for a uniform of 0 or 1."""
    # float64: in float32 the tail of a large vocabulary would drown in the rounding of the sum before it.
    # The mask is for devices that sum in parallel, where rounding lets the sum move at a token of weight zero.
    cdf = law.double().cumsum(dim=-1).masked_fill(law <= 0, 0.0)
    total = cdf.amax(dim=-1, keepdim=True)
    reached = (cdf > uniform[:, None].double() * total) | (cdf == total)
    return reached.byte().argmax(dim=-1)


def in_use(draft: Draft) -> Bool[Tensor, "batch node"]:
    """True for guesses, False for padding."""
    return torch.arange(draft.nodes, device=draft.tokens.device) < draft.count[:, None]


def stop_at(end: Int[Tensor, "batch"], law: Float[Tensor, "batch vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Keep the path that ends at column `end` (0 = no guess), and draw the bonus after it from `law`, unnormalised."""
    upwards = []
    node = end - 1
    while bool((node >= 0).any()):
        upwards.append(node)
        node = draft.parents.gather(1, node.clamp(min=0)[:, None])[:, 0].where(node >= 0, -1)
    path = torch.full_like(draft.tokens, -1)
    bonus = draw(law, noise.bonus.gather(1, end[:, None])[:, 0])
    if not upwards:
        return Verdict.padded(path=path, accepted=torch.zeros_like(end), bonus=bonus)
    climbed = torch.stack(upwards, dim=1)
    accepted = (climbed >= 0).sum(dim=1)
    step = accepted[:, None] - 1 - torch.arange(len(upwards), device=end.device)
    path[:, : len(upwards)] = climbed.gather(1, step.clamp(min=0)).where(step >= 0, -1)
    return Verdict.padded(path=path, accepted=accepted, bonus=bonus)
