"""Sample and match: draw the target's own token after every node, and keep the guesses that foresaw it.

Knows chains and trees; does not care how a guess was made, so every way of guessing is exact.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Tree, Verdict

FEW = 256
"""Draws that are followed sooner one by one than in tensor operations."""


def match(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Follow the target's own draws through the draft; the first one that nobody guessed is the bonus.

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. The target's token after a node is argmax(weights + noise.gumbel), which has the target's law
    (Gumbel-max) and does not depend on the draft: the text is that of plain decoding with the same noise. A drafter
    that reads the same noise agrees more often (Daliri, Musco, Suresh, arXiv 2408.07978). `noise.gumbel` None decodes
    greedily. Where siblings hold the same token the first one is followed. The path is as wide as the draft.
    """
    scores = weights if noise.gumbel is None else weights + noise.gumbel
    drawn = scores.argmax(dim=-1)
    if drawn.numel() <= FEW:
        return _one_by_one(drawn.tolist(), draft)
    return _follow_chain(drawn, draft) if draft.chain else _follow_tree(drawn, draft)


def follow(drawn: List[int], tree: Tree) -> tuple[list[int], int]:
    """What is left of the rule once the target's own token of each column is drawn: the guesses that it keeps of a
    sequence, and the token after them. Equal to the two below.
    """
    nodes: dict[tuple[int, int], int] = {}
    for node, guess in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        nodes.setdefault(guess, node)
    path, here = [], -1
    while (here := nodes.get((here, drawn[here + 1]), -1)) >= 0:
        path.append(here)
    return path, drawn[path[-1] + 1 if path else 0]


def _one_by_one(drawn: List[List[int]], draft: Draft) -> Verdict:
    """The walk of each sequence, in lists."""
    found = [follow(own, tree) for own, tree in zip(drawn, draft.trees, strict=True)]
    return Verdict([path for path, _ in found], [added for _, added in found], draft.nodes)


def _follow_chain(drawn: Int[Tensor, "batch column"], draft: Draft) -> Verdict:
    """The tree walk where there is one branch: keep the guesses before the first that differs."""
    node = torch.arange(draft.nodes, device=drawn.device)
    agrees = (draft.tokens == drawn[:, :-1]) & (node < draft.count[:, None])
    kept = agrees.cumprod(dim=1)
    accepted = kept.sum(dim=1)
    bonus = drawn.gather(1, accepted[:, None])[:, 0]
    return Verdict.padded(path=node.where(kept.bool(), -1), accepted=accepted, bonus=bonus)


def _follow_tree(drawn: Int[Tensor, "batch column"], draft: Draft) -> Verdict:
    """From the root on, step into the child that holds the drawn token, as long as some row finds one."""
    node = torch.arange(draft.nodes, device=drawn.device)
    used = node < draft.count[:, None]
    path = torch.full_like(draft.tokens, -1)
    here = torch.full_like(draft.count, -1)
    token = drawn[:, 0]
    for depth in range(draft.nodes):
        child = used & (draft.parents == here[:, None]) & (draft.tokens == token[:, None])
        found, first = child.byte().max(dim=1)
        if not found.any():
            break
        # A row that stopped looks for the same token again and finds no child again.
        here = first.where(found.bool(), here)
        path[:, depth] = here.where(found.bool(), -1)
        token = drawn.gather(1, here[:, None] + 1)[:, 0]
    return Verdict.padded(path=path, accepted=(path >= 0).sum(dim=1), bonus=token)
