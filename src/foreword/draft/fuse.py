"""Several drafters guess at once, and the best of all their guesses make one tree.

Knows trees and chances; knows nothing about how a part guesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List

from foreword.draft.base import Drafter
from foreword.draft.parts import Parts
from foreword.types import Batch, Draft, Tree

FADE = 0.98
"""Weight of the past, per round, in what a part's guesses were worth."""
UNSAID = 0.02
"""The chance that a part is thought to have given to a token that it did not name."""


class FusedDrafter(Parts):
    """Merges what its parts guess into one tree with as many guesses as were asked for.

    After each guess the chance of the next is a mean of what the parts say that have come this way, weighted by how
    well each has foreseen the text so far (a mixture of experts with weights by likelihood: Hedge, Freund and Schapire
    1997, with log loss). A token that two parts name is likelier than one that only one of them does.
    """

    summary = "several methods at once, the best guesses of all in one tree"

    def __init__(self, drafters: List[Drafter]) -> None:
        super().__init__(drafters)
        self._worth = [0.0] * len(self.parts)
        """Log-likelihood of the text under each part, the past fading."""

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_to_speak(batch, nodes)
        asked = [self._ask(part, batch, nodes) for part in range(len(self.parts))]
        rows = zip(*asked, strict=True)
        trees = [self._merged(row).cut(most, batch.floor) for row, most in zip(rows, nodes, strict=True)]
        return Draft(trees if batch.trees else [tree.straight() for tree in trees])

    def judge(self, part: int, tree: Tree, said: List[int]) -> None:
        super().judge(part, tree, said)
        node, reached, gained = -1, 1.0, 0.0
        for token in said:
            children = tree.children(node)
            if not children:
                break
            named = children.get(token)
            gained += math.log(max(tree.chances[named] / reached if named is not None else 0.0, UNSAID))
            if named is None:
                break
            node, reached = named, max(tree.chances[named], 1e-9)
        self._worth[part] = FADE * self._worth[part] + gained

    def _merged(self, trees: List[Tree]) -> Tree:
        best = max(self._worth)
        weights = [math.exp(max(worth - best, -5.0)) for worth in self._worth]
        merged = Tree()
        # A place in the merged tree, and where the parts that have come this way stand.
        open_: list[tuple[int, dict[int, int]]] = [(-1, dict.fromkeys(range(len(trees)), -1))]
        offspring = [tree.offspring() for tree in trees]
        for place, standing in open_:
            speaking = {part: node for part, node in standing.items() if offspring[part].get(node)}
            total = sum(weights[part] for part in speaking)
            odds: dict[int, float] = {}
            heads: dict[int, dict[int, int]] = {}
            for part, node in speaking.items():
                reached = trees[part].chances[node] if node >= 0 else 1.0
                for token, child in offspring[part][node].items():
                    share = trees[part].chances[child] / max(reached, 1e-9)
                    odds[token] = odds.get(token, 0.0) + weights[part] / total * share
                    heads.setdefault(token, {})[part] = child
            reached = merged.chances[place] if place >= 0 else 1.0
            for token, share in odds.items():
                open_.append((merged.add(token, place, reached * min(share, 1.0)), heads[token]))
        return merged
