"""Recursive rejection sampling: judge a tree from the root on, sibling by sibling, drawn without replacement.

Knows trees and the laws their siblings were drawn from; a chain is a tree with one branch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.parts import guess_law, in_use, normalised, one_hot, ratio, stop_at, target_laws

Law = Float[Tensor, "batch vocab"]
Next = Callable[[Law, Bool[Tensor, "batch vocab"], Int[Tensor, "batch"]], Law]
"""The law a sibling was drawn from: of the law of the first, the tokens tried before it, and its own token."""
Left = Callable[[Law, Law], Law]
"""What is left of the target's law once a guess drawn from the second law is refused."""


def without_replacement(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Judge a tree of siblings that differ (Yang et al. 2024, arXiv 2401.06706; Jeon et al. 2024, arXiv 2402.14160).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. At the node reached so far each child x is tried in node order: it stays where
    u < min(1, t(x)/d(x)), t being the target's law and d the law x was drawn from, the siblings tried before it taken
    out. A refusal leaves t = norm([t - d]+), which the bonus is drawn from when no child stays. `draft.probs` holds for
    every sibling the law of the first, before anything is taken out. Chosen guesses stay with the chance that the
    target says one of them. `noise.accept` and `noise.bonus` must be independent of each other and of the noise that
    drew the tokens.
    """
    return descend(weights, draft, noise, untried, residual)


def descend(
    weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise, drawn_from: Next, left_after: Left
) -> Verdict:
    """Step from the root into the first child that stays, as long as one does.

    Children come after their parents, so one pass over the nodes meets them in order.
    """
    p, used = target_laws(weights), in_use(draft)
    end, left = torch.zeros_like(draft.count), p[:, 0]
    tried = torch.zeros_like(left, dtype=torch.bool)
    for node in range(draft.nodes):
        asked = used[:, node] & (draft.parents[:, node] + 1 == end)
        if not asked.any():
            continue
        token = draft.tokens[:, node].where(asked, 0)
        q = drawn_from(guess_law(draft, node, token, left), tried, token)
        stays = asked & (noise.accept[:, node] < ratio(left, q, token))
        refused = (asked & ~stays)[:, None]
        left = p[:, node + 1].where(stays[:, None], left_after(left, q).where(refused, left))
        tried = (tried | (refused & one_hot(token, left).bool())) & ~stays[:, None]
        end = torch.where(stays, node + 1, end)
    return stop_at(end, left, draft, noise)


def untried(law: Law, tried: Bool[Tensor, "batch vocab"], token: Int[Tensor, "batch"]) -> Law:
    """The law without the tokens tried before. A guess for which nothing is left of it is taken as chosen."""
    return normalised(law.masked_fill(tried, 0.0), one_hot(token, law))


def residual(left: Law, q: Law) -> Law:
    """norm([t - q]+). Only rounding refuses where nothing is left; the law before is then as good."""
    return normalised((left - q).clamp(min=0), left)
