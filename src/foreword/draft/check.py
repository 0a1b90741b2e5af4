"""The check of the distributions that a drafter returns.

Knows drafts; knows nothing about sequences, rules or the engine.
"""

from __future__ import annotations

from foreword.guesses import Draft

TOLERANCE = 1e-3
"""How far the sum of a distribution may be from 1: rounding of 16-bit numbers over a large vocabulary."""


def check_probs(draft: Draft) -> None:
    """Raise ValueError unless every draft token comes with a distribution that gives it a chance."""
    if draft.probs is None:
        return
    for row, tree in enumerate(draft.trees):
        probs = draft.probs[row, : len(tree)].float()
        if not len(tree):
            continue
        if not bool((probs >= 0).all()):  # never true of NaN
            raise ValueError("probs must not be negative or NaN")
        if not bool(((probs.sum(-1) - 1).abs() <= TOLERANCE).all()):
            raise ValueError("the probs of every draft token must sum to 1")
        if not all(bool(one[token] > 0) for one, token in zip(probs, tree.tokens, strict=True)):
            raise ValueError("a draft token must have a probability above 0 in the probs that it was drawn from")
