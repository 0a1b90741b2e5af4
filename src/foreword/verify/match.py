"""Sample and match: draw the target's own token after every node, and keep the guesses that foresaw it.

Knows chains and trees; does not care how a guess was made, so every way of guessing is exact.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict

FEW = 256
"""Draws that are followed sooner one by one, on CPU, than in tensor operations."""


def match(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Follow the target's own draws through the draft; the first one that nobody guessed is the bonus.

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. The target's token after a node is argmax(weights + noise.gumbel), which has the target's law
    (Gumbel-max) and does not depend on the draft: the text is that of plain decoding with the same noise. A drafter
    that reads the same noise agrees more often (Daliri, Musco, Suresh, arXiv 2408.07978). `noise.gumbel` None decodes
    greedily. Where siblings hold the same token the first one is followed. The path is as wide as the draft.
    """
    scores = weights if noise.gumbel is None else weights + noise.gumbel
    return follow(scores.argmax(dim=-1), draft)


def follow(drawn: Int[Tensor, "batch column"], draft: Draft) -> Verdict:
    """What is left of the rule once the target's own token of each column is drawn."""
    if not draft.nodes:
        return Verdict(path=draft.tokens, accepted=draft.count, bonus=drawn[:, 0])
    if drawn.device.type == "cpu" and drawn.numel() <= FEW:
        return _follow_few(drawn, draft)
    return _follow_chain(drawn, draft) if draft.chain else _follow_tree(drawn, draft)


def _follow_few(drawn: Int[Tensor, "batch column"], draft: Draft) -> Verdict:
    """Equal to the two below, number by number: for a few guesses on CPU ten small tensor operations take longer."""
    paths, accepted, bonus = [], [], []
    guesses = zip(drawn.tolist(), draft.tokens.tolist(), draft.parents.tolist(), draft.count.tolist(), strict=True)
    for own, tokens, parents, count in guesses:
        nodes: dict[tuple[int, int], int] = {}
        for node in range(count):
            nodes.setdefault((parents[node], tokens[node]), node)
        path, here = [], -1
        while (here := nodes.get((here, own[here + 1]), -1)) >= 0:
            path.append(here)
        paths.append(path + [-1] * (draft.nodes - len(path)))
        accepted.append(len(path))
        bonus.append(own[path[-1] + 1 if path else 0])
    path = torch.tensor(paths, dtype=torch.int64).reshape(draft.tokens.shape)
    return Verdict(path=path, accepted=torch.tensor(accepted), bonus=torch.tensor(bonus))


def _follow_chain(drawn: Int[Tensor, "batch column"], draft: Draft) -> Verdict:
    """The tree walk where there is one branch: keep the guesses before the first that differs."""
    node = torch.arange(draft.nodes, device=drawn.device)
    agrees = (draft.tokens == drawn[:, :-1]) & (node < draft.count[:, None])
    kept = agrees.cumprod(dim=1)
    accepted = kept.sum(dim=1)
    bonus = drawn.gather(1, accepted[:, None])[:, 0]
    return Verdict(path=node.where(kept.bool(), -1), accepted=accepted, bonus=bonus)


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
    return Verdict(path=path, accepted=(path >= 0).sum(dim=1), bonus=token)
