"""Shapes of trees that are decided before anything is drawn: how many guesses follow which.

Knows numbers alone. A shape is the parent of each node, -1 = the last committed token; parents come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as List
from functools import cache

Shape = tuple[int, ...]


def spread(branching: List[int]) -> Shape:
    """The tree in which every node of depth d has branching[d] children; depth by depth. (1, 1, 1) is a chain."""
    parents: list[int] = []
    level = [-1]
    for children in branching:
        first = len(parents)
        parents += [parent for parent in level for _ in range(children)]
        level = list(range(first, len(parents)))
    return tuple(parents)


def expected(shape: Shape, acceptance: List[float]) -> float:
    """Guesses that are kept on average where the k-th child of every node is kept with chance acceptance[k - 1]."""
    chances: list[float] = []
    born: dict[int, int] = {}
    for parent in shape:
        rank = born.get(parent, 0)
        born[parent] = rank + 1
        chances.append(acceptance[rank] * (chances[parent] if parent >= 0 else 1.0))
    return sum(chances)


def sequoia(acceptance: List[float], budget: int, depth: int) -> Shape:
    """The tree of at most `budget` nodes and `depth` levels that is expected to keep most guesses.

    `acceptance[k - 1]` = measured chance that the k-th child of a node is kept, the same at every node; no node gets
    more children than that. The dynamic programme of Sequoia (Chen et al. 2024, arXiv 2402.12374), over
    the children from the k-th on instead of up to it. Takes about budget^2 * depth * len(acceptance) steps.
    """

    @cache
    def best(nodes: int, levels: int, rank: int) -> tuple[float, int]:
        """The most that `nodes` below one parent keep, from its child `rank` on; and the nodes of that child's tree."""
        if not nodes or not levels or rank == len(acceptance):
            return 0.0, 0
        values = (
            (acceptance[rank] * (1 + best(size - 1, levels - 1, 0)[0]) + best(nodes - size, levels, rank + 1)[0], -size)
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
