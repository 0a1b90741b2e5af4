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
        self._usual = [(Hope(), Hope()) for _ in self.parts]
        """What each part promises, on average, with texts that are drawn and with the likeliest ones."""

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_to_speak(batch, nodes)
        best = self._ask(0, batch, nodes)
        promised = [self._promise(0, s, tree, batch) for s, tree in zip(batch.sequences, best, strict=True)]
        for part in range(1, len(self.parts)):
            usual = [self._usual[part][s.params.greedy] for s in batch.sequences]
            gains = [max(hope.tokens() - had, 0.0) for hope, had in zip(usual, promised, strict=True)]
            due = self._due(part, batch, nodes, gains)
            for row, tree in enumerate(self._ask(part, batch, due)):
                promise = self._promise(part, batch.sequences[row], tree, batch)
                if due[row]:
                    usual[row].learn(promise)
                if promise > promised[row]:
                    best[row], promised[row] = tree, promise
        return Draft(best if batch.trees else [tree.straight() for tree in best])
