"""Tree shapes, fixed before sampling: full trees, Sequoia's, and one that adapts to
measured acceptance.

A shape is the parent of each node, -1 = the last committed token; parents come first.
"""

from collections import deque
from collections.abc import Sequence
from functools import cache, lru_cache

from foreword.draft.acceptance import AcceptanceEstimate
from foreword.types import Draft, Verdict

Shape = tuple[int, ...]


def full_tree(branching: Sequence[int]) -> Shape:
    """Return the tree whose nodes of depth d have branching[d] children."""
    parents: list[int] = []
    level = [-1]
    for children in branching:
        first = len(parents)
        parents += [parent for parent in level for _ in range(children)]
        level = list(range(first, len(parents)))
    return tuple(parents)


def sequoia(
    acceptance: Sequence[float],
    budget: int,
    depth: int,
) -> Shape:
    """Return the tree of at most `budget` nodes and `depth` levels with the most
    expected accepted draft tokens.

    `acceptance[k - 1]` = measured acceptance probability of the k-th child, the same at
    every node; no node gets more children than that. The dynamic programme of Sequoia
    (Chen et al. 2024, arXiv 2402.12374), over the children from the k-th on instead of
    up to it. Takes about budget^2 * depth * len(acceptance) steps.
    """

    @cache
    def best(nodes: int, levels: int, rank: int) -> tuple[float, int]:
        """Return the best value below a parent from child `rank` on, and its size."""
        if not nodes or not levels or rank == len(acceptance):
            return 0.0, 0
        values = (
            (
                acceptance[rank] * (1 + best(size - 1, levels - 1, 0)[0])
                + best(nodes - size, levels, rank + 1)[0],
                -size,
            )
            for size in range(1, nodes + 1)
        )
        value, size = max(values)
        return (value, -size) if value > 0 else (0.0, 0)

    parents: list[int] = []
    forests = deque([(-1, budget, depth)])
    while forests:
        parent, nodes, levels = forests.popleft()
        rank = 0
        while (size := best(nodes, levels, rank)[1]) > 0:
            parents.append(parent)
            forests.append((len(parents) - 1, size - 1, levels - 1))
            nodes, rank = nodes - size, rank + 1
    return tuple(parents)


FIRST = (0.6, 0.2, 0.1, 0.05)
"""Prior acceptance probability by rank of child; no node has more children."""
DEEP = 12
"""Most levels of a tree."""
GRAIN = 20
"""Probabilities are rounded to 1 / GRAIN: smaller changes are not worth a new shape."""


class AdaptiveShape:
    """Shape from measured acceptance of the k-th child (Sequoia, arXiv 2402.12374)."""

    def __init__(self) -> None:
        self._acceptance = AcceptanceEstimate()

    def shape(self, count: int, deep: int = DEEP) -> Shape:
        """Return the tree of `count` nodes within `deep` levels that gains most."""
        # rounded, so that few different shapes are computed
        acceptance: list[float] = []
        for rank, prior in enumerate(FIRST):
            probability = self._acceptance.probability(rank, prior)
            acceptance.append(max(round(GRAIN * probability), 1) / GRAIN / 1.001)
        return _shape(tuple(acceptance), count, min(deep, DEEP))

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Record acceptance for every list of children that was verified."""
        for tree, path in zip(draft.trees, verdict.kept, strict=True):
            for node, accepted in zip([-1, *path], [*path, -1], strict=True):
                parents = enumerate(tree.parents)
                children = [child for child, parent in parents if parent == node]
                for rank, child in enumerate(children[: len(FIRST)]):
                    self._acceptance.learn(rank, child == accepted)


_shape = lru_cache(256)(sequoia)
"""`sequoia`, for a tuple of rates."""
