"""The check of the distributions that a drafter returns."""

from __future__ import annotations

import torch

from foreword.types.draft import Draft

TOLERANCE = 1e-3
"""Largest deviation of a distribution's sum from 1: rounding of 16-bit numbers over a
large vocabulary.
"""


def check_probs(draft: Draft) -> None:
    """Raise ValueError unless every draft token comes with a distribution that can
    produce it.
    """
    if draft.probs is None:
        return
    for row, tree in enumerate(draft.trees):
        if not len(tree):
            continue
        probs = draft.probs[row, : len(tree)].float()
        # neither is true of NaN
        if not (probs.min() >= 0 and (probs.sum(-1) - 1).abs().max() <= TOLERANCE):
            raise ValueError(
                "cannot use the draft: probs must be probabilities, not negative and "
                "of sum 1 for each draft token"
            )
        drawn = torch.tensor(tree.tokens, device=probs.device)[:, None]
        if not bool((probs.gather(1, drawn) > 0).all()):
            raise ValueError(
                "cannot use the draft: each token must have a probability above 0 in "
                "the probs it was sampled from"
            )
