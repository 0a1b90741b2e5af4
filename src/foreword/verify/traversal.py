"""Traversal verification: judge a tree from its leaves up, and keep the first whole path that passes.

Knows trees and the laws their siblings were drawn from, without replacement; on chains it is block verification.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.block import weight_left
from foreword.verify.parts import guess_law, in_use, normalised, one_hot, ratio, stop_at, target_laws
from foreword.verify.without_replacement import untried

Shape = tuple[int, ...]
"""The parent of each node in use."""
Weigh = Callable[[Float[Tensor, "row"], Float[Tensor, "row"]], Float[Tensor, "row"]]
"""The weight of a path once a child went: of its weight before, and of the sum of what that child left to it."""


def traversal(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Judge a tree of siblings that differ (Weng et al., NeurIPS 2025, arXiv 2505.12398).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. The weight r of a path is 1 at the root and min(1, r t(x)/d(x)) one token x further, where t is
    what is left of the target's law and d the law x was drawn from. Nodes are asked in post-order, and the whole path
    to the first for which u < r stays. A node that goes leaves [r t - d]+ to its parent, whose law and weight follow
    from it, and its token is taken out of d. `draft.probs` is as in `without_replacement`. `noise.accept` and
    `noise.bonus` must be independent of each other and of the noise that drew the tokens.
    """
    return ascend(weights, draft, noise, weight_left)


def ascend(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise, weigh: Weigh) -> Verdict:
    """Judge the rows of each shape together; `weigh` says what a path weighs once a child of its end went."""
    p = target_laws(weights)
    end, law = torch.zeros_like(draft.count), p[:, 0].clone()
    for shape, rows in _shapes(draft):
        climb = _Climb(p[rows], _rows(draft, rows), noise.accept[rows], shape, weigh)
        climb.visit(0)
        end[rows], law[rows] = climb.end, climb.left[torch.arange(len(rows), device=p.device), climb.end]
    return stop_at(end, law, draft, noise)


class _Climb:
    """The way up of rows that share one shape."""

    def __init__(
        self, p: Float[Tensor, "row column vocab"], draft: Draft, accept: Tensor, shape: Shape, weigh: Weigh
    ) -> None:
        self.left, self._draft, self._accept, self._weigh = p, draft, accept, weigh
        self.end = torch.zeros_like(draft.count)
        self._going = torch.ones_like(draft.count, dtype=torch.bool)
        self._reach = p.new_ones(p.shape[:2])
        self._children: dict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(shape):
            self._children[parent + 1].append(node)

    def visit(self, column: int) -> None:
        """Ask everything below a column, and then the column itself."""
        tried = torch.zeros_like(self.left[:, column], dtype=torch.bool)
        for node in self._children[column]:
            token, left, reach = self._draft.tokens[:, node], self.left[:, column], self._reach[:, column]
            q = untried(guess_law(self._draft, node, token, left), tried, token)
            self._reach[:, node + 1] = (reach * ratio(left, q, token)).clamp(max=1)
            self.visit(node + 1)
            if not self._going.any():
                return
            rest = (reach[:, None] * left - q).clamp(min=0)
            self._reach[:, column] = self._weigh(reach, rest.sum(dim=-1))
            self.left[:, column] = normalised(rest, left)
            tried |= one_hot(token, left).bool()
        if column:
            stays = self._going & (self._accept[:, column - 1] < self._reach[:, column])
            self.end[stays] = column
            self._going &= ~stays


def _shapes(draft: Draft) -> Iterator[tuple[Shape, Int[Tensor, "row"]]]:
    """Each shape of tree there is, and the rows that have it."""
    parents = draft.parents.where(in_use(draft), -1)
    kinds, which = torch.cat((draft.count[:, None], parents), dim=1).unique(dim=0, return_inverse=True)
    for kind, (count, *shape) in enumerate(kinds.tolist()):
        yield tuple(shape[:count]), (which == kind).nonzero()[:, 0]


def _rows(draft: Draft, index: Int[Tensor, "row"]) -> Draft:
    probs = None if draft.probs is None else draft.probs[index]
    tokens, parents, count = (made[index] for made in (draft.tokens, draft.parents, draft.count))
    return Draft.padded(tokens, parents, count, probs, chain=draft.chain)
