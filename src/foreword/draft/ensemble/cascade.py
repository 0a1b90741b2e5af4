"""An ensemble in order of cost: expensive members draft where cheap ones are not
confident enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from foreword.draft.base import Drafter
from foreword.draft.ensemble.base import DecayedMean, EnsembleDrafter
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft


class CascadeDrafter(EnsembleDrafter):
    """Ensemble whose members run in turn, each where its mean gain exceeds that of
    earlier members and its time.

    The gain of a tree is the sum of its probabilities: its expected accepted tokens.
    The tree of the largest gain is taken (as SuffixDecoding hands over to a model by
    its score: Oliaro et al. 2025, arXiv 2411.04975).
    """

    about = OWN_METHODS["cascade"]

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters)
        self._gain_estimates = [(DecayedMean(), DecayedMean()) for _ in self.members]
        """Mean gain of each member, by (sampled, greedy)."""

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_nonempty(batch, nodes)
        sequences = batch.sequences
        best = self._propose_member(0, batch, nodes)
        best_gains = [
            self._expected_gain(0, sequence, tree, batch)
            for sequence, tree in zip(sequences, best, strict=True)
        ]
        for member in range(1, len(self.members)):
            by_kind = self._gain_estimates[member]
            estimates = [by_kind[sequence.params.greedy] for sequence in sequences]
            gains = [
                max(estimate.tokens() - gain, 0.0)
                for estimate, gain in zip(estimates, best_gains, strict=True)
            ]
            budgets = self._budgets(member, batch, nodes, gains)
            trees = self._propose_member(member, batch, budgets)
            for row, tree in enumerate(trees):
                sequence = sequences[row]
                gain = self._expected_gain(member, sequence, tree, batch)
                if budgets[row]:
                    estimates[row].learn(gain)
                if gain > best_gains[row]:
                    best[row] = tree
                    best_gains[row] = gain
        return Draft(best if batch.trees else [tree.as_chain() for tree in best])
