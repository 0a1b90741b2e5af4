"""Block verification: judge a drafted chain as a whole, and keep its longest prefix that passes.

Knows chains; expects the tokens of the chain to be drawn from the law each carries, one after the other.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.rejection import chain_laws, chain_verdict, ratios


def block(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Judge a chain as one block (Sun et al., ICLR 2025, arXiv 2403.10444, Alg. 2); never keeps fewer in expectation.

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. Every prefix is tested on its own and the longest that passes stays, so a guess that would
    fail alone can be carried by the ones around it. Chosen guesses gain nothing over the rule rejection.
    `noise.accept` and `noise.bonus` must be independent of each other and of the noise that drew the tokens.
    Raises InvalidRequest for a tree.
    """
    p, q = chain_laws(weights, draft)
    reach = prefix_weight(ratios(p, q, draft))
    residual = (reach[..., None] * p - q).clamp(min=0)
    passes = noise.accept[:, :-1] < prefix_acceptance(reach, residual, draft)
    length = torch.arange(1, draft.nodes + 1, device=p.device)
    accepted = torch.cat((torch.zeros_like(draft.count)[:, None], length * passes), dim=1).amax(dim=1)
    return chain_verdict(accepted, p, residual, noise)


def prefix_weight(ratio: Float[Tensor, "batch node"]) -> Float[Tensor, "batch node+1"]:
    """b_0 = 1, b_i = min(1, b_{i-1} p_i(x_i)/q_i(x_i)): how much of each prefix the target would have written."""
    weight = [ratio.new_ones(len(ratio))]
    for step in ratio.unbind(dim=1):
        weight.append((weight[-1] * step).clamp(max=1))
    return torch.stack(weight, dim=1)


def prefix_acceptance(
    reach: Float[Tensor, "batch column"], residual: Float[Tensor, "batch column vocab"], draft: Draft
) -> Float[Tensor, "batch column-1"]:
    """Chance h_i that the prefix which ends at each guess passes its own test; 0 for padding."""
    reach, left = reach[:, 1:], residual[:, 1:].sum(dim=-1)
    length = torch.arange(1, draft.nodes + 1, device=reach.device)
    whole = length == draft.count[:, None]
    return reach.where(whole, weight_left(reach, left)).where(length <= draft.count[:, None], 0.0)


def weight_left(reach: Float[Tensor, "*any"], left: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """How much of a prefix of weight `reach` the target would still write once what followed it is given up.

    `left` is the sum of [reach p - q]+ after it.
    """
    # 0/0 is a prefix that the target writes for certain and that nothing follows but what was drafted: it stays.
    return (left / (left + 1 - reach)).where(left + 1 > reach, 1.0)
