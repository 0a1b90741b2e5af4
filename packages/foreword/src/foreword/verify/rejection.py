"""Speculative sampling of a chain: accept with min(1, p/q), else draw from [p - q]+."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.types import Draft, Noise, Verdict
from foreword.verify.base import Rule
from foreword.verify.residual import draw, in_use, ratio, target_distributions


def rejection(
    weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise
) -> Verdict:
    """Verify a chain token by token (Leviathan et al. 2023, arXiv 2211.17192, Alg. 1;
    Chen et al. 2023, 2302.01318).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. Draft token i is accepted if u_i
    < min(1, p_i(x)/q_i(x)) and all before it are. The bonus comes from [p - q]+ after a
    rejection and from p after the last draft token. `noise.accept` and `noise.bonus`
    must be independent of each other and of the drafter's noise. Raises InvalidRequest
    for a tree.
    """
    p, q = chain_distributions(weights, draft)
    mask = (noise.accept[:, :-1] < acceptance(p, q, draft)).cumprod(dim=1)
    return chain_verdict(mask.sum(dim=1), p, (p - q).clamp(min=0), noise)


def acceptance(
    p: Float[Tensor, "batch column vocab"],
    q: Float[Tensor, "batch column vocab"],
    draft: Draft,
) -> Float[Tensor, "batch column-1"]:
    """Return min(1, p(x)/q(x)) of each draft token, given its prefix; 0 for padding."""
    return ratios(p, q, draft).clamp(max=1)


def ratios(
    p: Float[Tensor, "batch column vocab"],
    q: Float[Tensor, "batch column vocab"],
    draft: Draft,
) -> Float[Tensor, "batch column-1"]:
    """Return p(x)/q(x) of each draft token x, finite; 0 for padding."""
    used = in_use(draft)
    return ratio(p[:, :-1], q[:, :-1], draft.tokens.where(used, 0)).where(used, 0.0)


def chain_distributions(
    weights: Float[Tensor, "batch column vocab"], draft: Draft
) -> tuple[Float[Tensor, "batch column vocab"], Float[Tensor, "batch column vocab"]]:
    """Return the target's distribution p and the drafter's q at each position, in
    float32 or wider.

    A chosen draft token (`draft.probs` None) has a one-hot q. Padding has q = 0, so
    that [p - q]+ is p there. Raises InvalidRequest for a tree.
    """
    if not draft.chain:
        raise InvalidRequest(
            "cannot verify a tree: this rule takes chains only. Draft a chain, or use "
            "a rule that verifies trees"
        )
    p = target_distributions(weights)
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
    """Accept `accepted` draft tokens; draw the bonus from the unnormalised residual."""
    node = torch.arange(p.shape[1] - 1, device=p.device)
    row = torch.arange(len(accepted), device=p.device)
    distribution = residual[row, accepted]
    # Rounding can reject a token where p equals q and the residual is 0; then p is the
    # right distribution.
    distribution = distribution.where(
        (distribution > 0).any(dim=1, keepdim=True), p[row, accepted]
    )
    bonus = draw(distribution, noise.bonus[row, accepted])
    return Verdict.padded(
        path=node.where(node < accepted[:, None], -1), accepted=accepted, bonus=bonus
    )


def given_text(ratios: Sequence[float]) -> list[float]:
    """Return prod min(1, q/p) over the first 1, 2, … tokens of a text: the probability
    that at least so many draft tokens are accepted, given the text.

    A draft token is x and accepted with probability min(p, q)(x), and what follows is a
    draw from the target either way.
    """
    reached = 1.0
    all_reached: list[float] = []
    for value in ratios:
        reached *= min(1.0, value)
        all_reached.append(reached)
    return all_reached


RULE = Rule(name="rejection", verify=rejection, given_text=given_text, lists="one")
