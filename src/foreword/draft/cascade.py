"""Several drafters in order of cost: the dear ones are asked where the cheap ones are not sure enough.

Knows trees and chances; knows nothing about how a part guesses.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from foreword.draft.base import Drafter
from foreword.draft.parts import Parts
from foreword.types import Batch, Draft, Tree

EAGER = 1.0
"""What the next part is expected to promise before it was ever asked, in guesses that come true."""


class CascadeDrafter(Parts):
    """Asks its parts one after the other, and stops at the first that promises as much as the next one usually does.

    A tree promises the sum of the chances of its guesses: what it is expected to add to the text. Of the parts that
    were asked, the one that promises most is taken (as SuffixDecoding hands over to a model by its score: Oliaro et
    al. 2025, arXiv 2411.04975).
    """

    summary = "several methods in turn, the next one where the one before is not sure"

    def __init__(self, drafters: List[Drafter]) -> None:
        super().__init__(drafters)
        self._usual = [EAGER] * len(self.parts)
        """What each part promises, on average."""

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_to_speak(batch, nodes)
        best = [Tree() for _ in nodes]
        left = list(nodes)
        for part in range(len(self.parts)):
            for row, tree in enumerate(self._ask(part, batch, left)):
                if left[row]:
                    self._usual[part] += 0.05 * (sum(tree.chances) - self._usual[part])
                if sum(tree.chances) > sum(best[row].chances):
                    best[row] = tree
            later = self._usual[part + 1 :]
            left = [
                0 if later and sum(tree.chances) >= max(later) else most for tree, most in zip(best, left, strict=True)
            ]
            if not any(left):
                break
        return Draft(best if batch.trees else [tree.straight() for tree in best])
