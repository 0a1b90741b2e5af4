"""Checks of what a drafter returns."""

from itertools import count
from operator import ge

import torch

from foreword.model import Model
from foreword.types.draft import Draft

TOLERANCE = 1e-3
"""Largest deviation of a distribution's sum from 1: rounding in 16 bits."""


def checked(draft: Draft, budgets: list[int], target: Model) -> Draft:
    """Return a copy of the draft on the target's device. Raises ValueError if the draft
    breaks the contract.

    A copy, because the drafter may change its lists before the round is over.
    """
    _check_trees(draft, budgets, target.vocab)
    if draft.probs is None:
        return draft.copy(target.device)
    if draft.weighed and draft.nodes:
        raise ValueError(
            "cannot use this draft: sampled tokens must not carry probabilities. Pass "
            "one of the two"
        )
    shape = [len(budgets), draft.nodes, target.vocab]
    if list(draft.probs.shape) != shape:
        raise ValueError(
            f"cannot use this draft: probs must have shape {shape}, got "
            f"{list(draft.probs.shape)}"
        )
    check_probs(draft)
    return draft.copy(target.device)


def _check_trees(draft: Draft, budgets: list[int], vocab: int) -> None:
    """Raise ValueError unless each request has a draft tree within its budget."""
    trees = draft.trees
    if len(trees) != len(budgets):
        raise ValueError(
            f"cannot use this draft: it has {len(trees)} rows for {len(budgets)} "
            "requests"
        )
    if any(len(tree.parents) != len(tree.tokens) for tree in trees):
        raise ValueError(
            "cannot use this draft: tokens and parents must have equal lengths"
        )
    if any(
        set(map(type, numbers)) - {int}
        for tree in trees
        for numbers in (tree.tokens, tree.parents)
    ):
        raise ValueError(
            "cannot use this draft: tokens and parents must be Python ints"
        )
    if any(len(tree) > most for tree, most in zip(trees, budgets, strict=True)):
        raise ValueError(
            f"cannot use this draft: it has {[len(tree) for tree in trees]} tokens, "
            f"the limit is {budgets}"
        )
    if any(
        not 0 <= min(tree.tokens) <= max(tree.tokens) < vocab
        for tree in trees
        if tree.tokens
    ):
        raise ValueError(
            "cannot use this draft: a token is outside the target's vocabulary of "
            f"{vocab}"
        )
    if any(
        min(tree.parents) < -1 or any(map(ge, tree.parents, count()))
        for tree in trees
        if tree.parents
    ):
        raise ValueError(
            "cannot use this draft: a node's parent must come before it, or be -1"
        )


def check_probs(draft: Draft) -> None:
    """Raise ValueError unless a distribution can produce each draft token."""
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
