"""Sample and match: draw the target's token after every node and accept the draft
tokens that equal it.

The rule is exact for every drafter, on chains and trees.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, DraftTree, Noise, Verdict
from foreword.verify.base import Rule

FEW = 256
"""Draws. Up to this many, Python lists are faster than tensor operations."""


def match(
    weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise
) -> Verdict:
    """Follow the target's draws through the draft; the first draw without a matching
    node is the bonus.

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. The target's token after a node
    is argmax(weights + noise.gumbel), a sample of the target's distribution
    (Gumbel-max) that does not depend on the draft: the text equals plain decoding with
    the same noise. A drafter that reads the same noise agrees more often (Daliri,
    Musco, Suresh, arXiv 2408.07978). `noise.gumbel` None decodes greedily. Of siblings
    with the same token the first is followed. The path is as wide as the draft.
    """
    scores = weights if noise.gumbel is None else weights + noise.gumbel
    drawn = scores.argmax(dim=-1)
    if drawn.numel() <= FEW:
        return _one_by_one(drawn.tolist(), draft)
    return _follow_chain(drawn, draft) if draft.chain else _follow_tree(drawn, draft)


def follow(drawn: Sequence[int], tree: DraftTree) -> tuple[list[int], int]:
    """Return the accepted nodes and the token after them, given the target's drawn
    token of each column.

    Equal to `_follow_chain` and `_follow_tree` below, for one sequence.
    """
    nodes: dict[tuple[int, int], int] = {}
    for node, draft_token in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        nodes.setdefault(draft_token, node)
    path: list[int] = []
    here = -1
    while (here := nodes.get((here, drawn[here + 1]), -1)) >= 0:
        path.append(here)
    return path, drawn[path[-1] + 1 if path else 0]


def _one_by_one(drawn: Sequence[Sequence[int]], draft: Draft) -> Verdict:
    """Follow each sequence's draws, in lists."""
    results = [follow(own, tree) for own, tree in zip(drawn, draft.trees, strict=True)]
    return Verdict(
        [path for path, _ in results], [added for _, added in results], draft.nodes
    )


def _follow_chain(drawn: Int[Tensor, "batch column"], draft: Draft) -> Verdict:
    """Accept the draft tokens before the first that differs from its draw."""
    node = torch.arange(draft.nodes, device=drawn.device)
    agrees = (draft.tokens == drawn[:, :-1]) & (node < draft.count[:, None])
    mask = agrees.cumprod(dim=1)
    accepted = mask.sum(dim=1)
    bonus = drawn.gather(1, accepted[:, None])[:, 0]
    return Verdict.padded(
        path=node.where(mask.bool(), -1), accepted=accepted, bonus=bonus
    )


def _follow_tree(drawn: Int[Tensor, "batch column"], draft: Draft) -> Verdict:
    """From the root, step to the child with the drawn token, until no row has one."""
    node = torch.arange(draft.nodes, device=drawn.device)
    used = node < draft.count[:, None]
    path = torch.full_like(draft.tokens, -1)
    here = torch.full_like(draft.count, -1)
    token = drawn[:, 0]
    for depth in range(draft.nodes):
        below = draft.parents == here[:, None]
        child = used & below & (draft.tokens == token[:, None])
        has_child, first = child.byte().max(dim=1)
        if not has_child.any():
            break
        # A row that stopped searches for the same token again, and has no such child.
        here = first.where(has_child.bool(), here)
        path[:, depth] = here.where(has_child.bool(), -1)
        token = drawn.gather(1, here[:, None] + 1)[:, 0]
    return Verdict.padded(path=path, accepted=(path >= 0).sum(dim=1), bonus=token)


RULE = Rule(
    name="match",
    verify=match,
    follow=follow,
    shares_noise=True,
    lists="distinct",
    keeps="same-text",
)
