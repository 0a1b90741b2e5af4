"""Traversal verification: verify a tree from its leaves up and accept the first whole
path that passes.

Siblings must be sampled without replacement. On chains the rule equals block
verification.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.base import Rule
from foreword.verify.block import given_text, weight_left
from foreword.verify.residual import (
    draft_distribution,
    in_use,
    normalised,
    one_hot,
    ratio,
    stop_at,
    target_distributions,
)
from foreword.verify.without_replacement import untried

Shape = tuple[int, ...]
"""The parent of each node in use."""
Weigh = Callable[[Float[Tensor, "row"], Float[Tensor, "row"]], Float[Tensor, "row"]]
"""(a path's weight, its residual's sum after a rejection) -> its new weight."""


def traversal(
    weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise
) -> Verdict:
    """Verify a tree of distinct siblings (Weng et al., NeurIPS 2025, arXiv 2505.12398).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. The weight r of a path is 1 at
    the root and min(1, r t(x)/d(x)) one token x further: t is the residual of the
    target's distribution, d the distribution x was sampled from. Nodes are tested in
    post-order; the whole path to the first with u < r is accepted. A rejected node
    leaves [r t - d]+ to its parent, which gives the parent's new t and r, and its token
    is removed from d. `draft.probs` is as in `without_replacement`. `noise.accept` and
    `noise.bonus` must be independent of each other and of the drafter's noise.
    """
    return ascend(weights, draft, noise, weight_left)


def ascend(
    weights: Float[Tensor, "batch column vocab"],
    draft: Draft,
    noise: Noise,
    weigh: Weigh,
) -> Verdict:
    """Verify trees of one shape together; `weigh` gives a weight after a rejection."""
    p = target_distributions(weights)
    end, distribution = torch.zeros_like(draft.count), p[:, 0].clone()
    for shape, rows in _shapes(draft):
        walk = _Traversal(p[rows], _rows(draft, rows), noise.accept[rows], shape, weigh)
        walk.visit(0)
        end[rows] = walk.end
        distribution[rows] = walk.left[
            torch.arange(len(rows), device=p.device), walk.end
        ]
    return stop_at(end, distribution, draft, noise)


class _Traversal:
    """Post-order traversal of rows that share one tree shape."""

    def __init__(
        self,
        p: Float[Tensor, "row column vocab"],
        draft: Draft,
        accept: Tensor,
        shape: Shape,
        weigh: Weigh,
    ) -> None:
        self.left = p
        self._draft = draft
        self._accept = accept
        self._weigh = weigh
        self.end = torch.zeros_like(draft.count)
        self._active = torch.ones_like(draft.count, dtype=torch.bool)
        self._reach = p.new_ones(p.shape[:2])
        self._children: dict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(shape):
            self._children[parent + 1].append(node)

    def visit(self, column: int) -> None:
        """Test all nodes below a column, then the column itself."""
        tried = torch.zeros_like(self.left[:, column], dtype=torch.bool)
        for node in self._children[column]:
            token = self._draft.tokens[:, node]
            left = self.left[:, column]
            reach = self._reach[:, column]
            q = untried(
                draft_distribution(self._draft, node, token, left), tried, token
            )
            self._reach[:, node + 1] = (reach * ratio(left, q, token)).clamp(max=1)
            self.visit(node + 1)
            if not self._active.any():
                return
            rest = (reach[:, None] * left - q).clamp(min=0)
            self._reach[:, column] = self._weigh(reach, rest.sum(dim=-1))
            self.left[:, column] = normalised(rest, left)
            tried |= one_hot(token, left).bool()
        if column:
            passes = self._active & (
                self._accept[:, column - 1] < self._reach[:, column]
            )
            self.end[passes] = column
            self._active &= ~passes


def _shapes(draft: Draft) -> Iterator[tuple[Shape, Int[Tensor, "row"]]]:
    """Yield each tree shape, with the rows that have it."""
    parents = draft.parents.where(in_use(draft), -1)
    shapes, shape_of_row = torch.cat((draft.count[:, None], parents), dim=1).unique(
        dim=0, return_inverse=True
    )
    for number, (count, *shape) in enumerate(shapes.tolist()):
        yield tuple(shape[:count]), (shape_of_row == number).nonzero()[:, 0]


def _rows(draft: Draft, index: Int[Tensor, "row"]) -> Draft:
    probs = None if draft.probs is None else draft.probs[index]
    tokens, parents, count = (
        tensor[index] for tensor in (draft.tokens, draft.parents, draft.count)
    )
    return Draft.padded(tokens, parents, count, probs, chain=draft.chain)


RULE = Rule(name="traversal", verify=traversal, given_text=given_text, lists="distinct")
