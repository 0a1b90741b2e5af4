"""Decides the shape of drawn trees from how often the first, second, third child of a node was kept in past rounds.

Knows drafts and verdicts; knows nothing about what is drawn next, which a shape must not depend on.
"""

from __future__ import annotations

from functools import lru_cache

from foreword.draft.static import Shape, sequoia
from foreword.draft.trust import Trust
from foreword.types import Draft, Verdict

FIRST = (0.6, 0.2, 0.1, 0.05)
"""What is believed before anything was judged; no node has more children than this."""
DEEP = 12
"""Levels of a tree at most."""
GRAIN = 20
"""Chances are told apart in steps of one in so many: a new shape is not worth its making for less."""


class Ranks:
    """The chance that the k-th child of a node is kept, the same at every node (Sequoia, arXiv 2402.12374)."""

    def __init__(self) -> None:
        self._trust = Trust()

    def shape(self, count: int, deep: int = DEEP) -> Shape:
        """The tree of `count` nodes and at most `deep` levels that is expected to keep most."""
        chances = (self._trust.chance(rank, prior) for rank, prior in enumerate(FIRST))
        return _shape(
            tuple(max(round(GRAIN * chance), 1) / GRAIN / 1.001 for chance in chances), count, min(deep, DEEP)
        )

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Judge every list of children that the target looked at."""
        for tree, path in zip(draft.trees, verdict.kept, strict=True):
            for place, node in enumerate([-1, *path]):
                children = [child for child, parent in enumerate(tree.parents) if parent == node]
                kept = path[place] if place < len(path) else -1
                for rank, child in enumerate(children[: len(FIRST)]):
                    self._trust.learn(rank, child == kept)


@lru_cache(256)
def _shape(acceptance: tuple[float, ...], count: int, deep: int) -> Shape:
    return sequoia(acceptance, count, deep)
