"""Several drafters in order of cost: the dear ones are asked where the cheap ones are not sure enough.

Knows trees and chances; knows nothing about how a part guesses.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from foreword.draft.base import Drafter
from foreword.draft.parts import Hope, Parts
from foreword.types import Batch, Draft


class CascadeDrafter(Parts):
    """Asks its parts one after the other, each where it usually promises more than those before it and its time.

    A tree promises the sum of the chances of its guesses: what it is expected to add to the text. Of the parts that
    were asked, the one that promises most is taken (as SuffixDecoding hands over to a model by its score: Oliaro et
    al. 2025, arXiv 2411.04975).
    """

    summary = "several methods in turn, the next one where the one before is not sure"

    def __init__(self, drafters: List[Drafter]) -> None:
        super().__init__(drafters)
        self._usual = [Hope() for _ in self.parts]
        """What each part promises, on average."""

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_to_speak(batch, nodes)
        best = self._ask(0, batch, nodes)
        for part in range(1, len(self.parts)):
            promised = [self._promise(tree, batch) for tree in best]
            due = self._due(part, batch, nodes, [max(self._usual[part].tokens - one, 0.0) for one in promised])
            for row, tree in enumerate(self._ask(part, batch, due)):
                promise = self._promise(tree, batch)
                if due[row]:
                    self._usual[part].learn(promise)
                if promise > promised[row]:
                    best[row] = tree
        return Draft(best if batch.trees else [tree.straight() for tree in best])
