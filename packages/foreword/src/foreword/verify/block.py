"""Block verification: verify a chain as a whole and accept its longest prefix that
passes.

Each token of the chain must be sampled from its own distribution in `draft.probs`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.base import Rule
from foreword.verify.rejection import chain_distributions, chain_verdict, ratios

LIGHT = 1e-300
"""Smallest weight of a prefix, so that dividing by it does not fail."""


def block(
    weights: Float[Tensor, "batch column vocab"],
    draft: Draft,
    noise: Noise,
) -> Verdict:
    """Verify a chain as one block (Sun et al., ICLR 2025, arXiv 2403.10444, Alg. 2).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. Every prefix is tested on its
    own, and the longest that passes is accepted. The expected number of accepted tokens
    is at least that of `rejection`, and equal to it for chosen draft tokens.
    `noise.accept` and `noise.bonus` must be independent of each other and of the
    drafter's noise. Raises InvalidRequest for a tree.
    """
    p, q = chain_distributions(weights, draft)
    reach = prefix_weight(ratios(p, q, draft))
    residual = (reach[..., None] * p - q).clamp(min=0)
    passes = noise.accept[:, :-1] < prefix_acceptance(reach, residual, draft)
    length = torch.arange(1, draft.nodes + 1, device=p.device)
    accepted = torch.cat(
        (torch.zeros_like(draft.count)[:, None], length * passes), dim=1
    ).amax(dim=1)
    return chain_verdict(accepted, p, residual, noise)


def prefix_weight(ratio: Float[Tensor, "batch node"]) -> Float[Tensor, "batch node+1"]:
    """Return the weights b_0 = 1, b_i = min(1, b_{i-1} p_i(x_i)/q_i(x_i))."""
    weight = [ratio.new_ones(len(ratio))]
    for step in ratio.unbind(dim=1):
        weight.append((weight[-1] * step).clamp(max=1))
    return torch.stack(weight, dim=1)


def prefix_acceptance(
    reach: Float[Tensor, "batch column"],
    residual: Float[Tensor, "batch column vocab"],
    draft: Draft,
) -> Float[Tensor, "batch column-1"]:
    """Return the probability h_i that each token's prefix passes; 0 for padding."""
    reach, left = reach[:, 1:], residual[:, 1:].sum(dim=-1)
    length = torch.arange(1, draft.nodes + 1, device=reach.device)
    whole = length == draft.count[:, None]
    return reach.where(whole, weight_left(reach, left)).where(
        length <= draft.count[:, None], 0.0
    )


def weight_left(
    reach: Float[Tensor, "*any"], left: Float[Tensor, "*any"]
) -> Float[Tensor, "*any"]:
    """Return left / (left + 1 - reach): the weight of a prefix of weight `reach` once
    its continuation is rejected.

    `left` is the sum of [reach p - q]+ after it.
    """
    # 0/0: the prefix has weight 1 and p equals q after it, so it is accepted.
    return (left / (left + 1 - reach)).where(left + 1 > reach, 1.0)


def given_text(ratios: Sequence[float]) -> list[float]:
    """Return, of a text with these q/p, the probability that at least 1, 2, … draft
    tokens are accepted: (prod q/p) b_i, with the weight b_i of the prefix.

    A prefix is drafted and accepted with probability q(prefix) b_i, and what follows is
    a draw from the target.
    """
    # the product alone would overflow: its factors and the weight go together
    reached = weight = 1.0
    all_reached: list[float] = []
    for ratio in ratios:
        reached *= min(1.0, ratio / weight)
        all_reached.append(reached)
        weight = max(min(1.0, weight / ratio), LIGHT) if ratio else 1.0
    return all_reached


RULE = Rule(name="block", verify=block, given_text=given_text, lists="one")
