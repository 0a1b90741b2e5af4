"""Speculative sampling: accept each drafted token with probability min(1, p/q), else draw from what is left of p.

Knows chains and the law each of their tokens was drawn from; knows no trees.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.types import Draft, Noise, Verdict
from foreword.verify.parts import draw, in_use, ratio, target_laws


def rejection(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Judge a chain token by token (Leviathan et al. 2023, arXiv 2211.17192, Alg. 1; Chen et al. 2023, 2302.01318).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. Guess i stays where u_i < min(1, p_i(x)/q_i(x)) and every guess before it stayed; the bonus
    comes from [p - q]+ after a refusal and from p after the last guess. `noise.accept` and `noise.bonus` must be
    independent of each other and of the noise that drew the tokens. Raises InvalidRequest for a tree.
    """
    p, q = chain_laws(weights, draft)
    kept = (noise.accept[:, :-1] < acceptance(p, q, draft)).cumprod(dim=1)
    return chain_verdict(kept.sum(dim=1), p, (p - q).clamp(min=0), noise)


def acceptance(
    p: Float[Tensor, "batch column vocab"], q: Float[Tensor, "batch column vocab"], draft: Draft
) -> Float[Tensor, "batch column-1"]:
    """Chance min(1, p(x)/q(x)) that each guess stays once all before it did; 0 for padding."""
    return ratios(p, q, draft).clamp(max=1)


def ratios(
    p: Float[Tensor, "batch column vocab"], q: Float[Tensor, "batch column vocab"], draft: Draft
) -> Float[Tensor, "batch column-1"]:
    """p(x)/q(x) of each guess x, finite; 0 for padding."""
    used = in_use(draft)
    return ratio(p[:, :-1], q[:, :-1], draft.tokens.where(used, 0)).where(used, 0.0)


def chain_laws(
    weights: Float[Tensor, "batch column vocab"], draft: Draft
) -> tuple[Float[Tensor, "batch column vocab"], Float[Tensor, "batch column vocab"]]:
    """The target's law and the law of the guess at each position, in float32 or wider.

    A chosen guess (`draft.probs` None) has a one-hot law: it could not have been another token, whatever the drafter
    believed. Where nothing was guessed q is zero, so that [p - q]+ is p there. Raises InvalidRequest for a tree.
    """
    if not draft.chain:
        raise InvalidRequest(
            "this rule judges chains only and the draft is a tree; draft a chain or use a rule that judges trees"
        )
    p = target_laws(weights)
    used = in_use(draft)[..., None]
    q = torch.zeros_like(p)
    if draft.probs is None:
        q[:, :-1].scatter_(2, draft.tokens[..., None].where(used, 0), used.to(p.dtype))
    else:
        q[:, :-1] = draft.probs.to(p.dtype).where(used, 0.0)
    return p, q


def chain_verdict(
    accepted: Int[Tensor, "batch"],
    p: Float[Tensor, "batch column vocab"],
    residual: Float[Tensor, "batch column vocab"],
    noise: Noise,
) -> Verdict:
    """Keep the first `accepted` guesses and draw the bonus from the residual (unnormalised) that follows them."""
    node = torch.arange(p.shape[1] - 1, device=p.device)
    row = torch.arange(len(accepted), device=p.device)
    law = residual[row, accepted]
    # Rounding can refuse a guess where p and q agree and nothing is left; the target itself is then as good a law.
    law = law.where((law > 0).any(dim=1, keepdim=True), p[row, accepted])
    bonus = draw(law, noise.bonus[row, accepted])
    return Verdict.padded(path=node.where(node < accepted[:, None], -1), accepted=accepted, bonus=bonus)
