"""An ensemble that merges the trees of all its members into one tree of the likeliest
draft tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

from foreword.draft.base import Drafter
from foreword.draft.ensemble.base import EAGER, DecayedMean, EnsembleDrafter
from foreword.estimators import finite
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request

DECAY = 0.98
"""Weight of the past in log weights, per round."""
UNNAMED = 0.02
"""Probability of a token that an active member did not draft."""
LEAST = -5.0
"""Lowest log weight of a member, relative to the best one's."""
LEVELS = 6
"""Bins of expected gain, each twice as wide as the one before."""


class FusedDrafter(EnsembleDrafter):
    """Ensemble that merges its members' trees into one tree within the budget.

    The probability of a child is the mean over members that drafted its parent,
    weighted by their likelihood of the text so far. It is a mixture of experts that are
    not all active at every token (Freund, Schapire, Singer, Warmuth 1997, "Using and
    combining predictors that specialize"). A token that two members drafted gets more
    than one that only one did. A member runs only if its expected extra accepted tokens
    are worth its measured time, and the first one if it adds as much to the others.
    Name members in order of cost.
    """

    about = OWN_METHODS["fuse"]

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters)
        self._log_weights = [0.0] * len(self.members)
        """Log-likelihood of each member relative to the mixture, with decay."""
        self._gains = [
            tuple([DecayedMean() for _ in range(LEVELS)] for _ in range(2))
            for _ in self.members
        ]
        """Mean extra gain of each member over earlier ones, by (sampled, greedy) and by
        bin of their gain.
        """
        self._others = (DecayedMean(), DecayedMean())
        """Mean gain of the members after the first, without it, by (sampled,
        greedy).
        """
        self._first = (DecayedMean(), DecayedMean())
        """Mean gain that the first member adds to theirs."""

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_nonempty(batch, nodes)
        kinds = [sequence.params.greedy for sequence in batch.sequences]
        gains = [self._first[kind].tokens() for kind in kinds]
        budgets = [self._budgets(0, batch, nodes, gains)]
        drafts = [self._propose_member(0, batch, budgets[0])]
        for member in range(1, len(self.members)):
            before = self._gains_so_far(batch, drafts)
            estimates = self._estimates(member, kinds, before, budgets)
            gains = list(map(_gain_estimate, estimates))
            budgets.append(self._budgets(member, batch, nodes, gains))
            drafts.append(self._propose_member(member, batch, budgets[-1]))
            rows = zip(
                batch.sequences, drafts[-1], estimates, before, budgets[-1], strict=True
            )
            for sequence, tree, levels, gain, budget in rows:
                if budget:
                    alone = self._expected_gain(member, sequence, tree, batch)
                    levels[-1].learn(max(alone - gain, 0.0))
        rows = zip(*drafts, strict=True)
        trees = [
            self._joined(row).cut(most, self._floor(batch))
            for row, most in zip(rows, nodes, strict=True)
        ]
        for row, sequence in enumerate(batch.sequences):
            if budgets[0][row]:
                others = {
                    member: drafts[member][row]
                    for member, budget in enumerate(budgets)
                    if member and budget[row]
                }
                self._weigh_first(batch, sequence, others, trees[row])
        return Draft(trees if batch.trees else [tree.as_chain() for tree in trees])

    def _gains_so_far(
        self,
        batch: Batch,
        drafts: Sequence[Sequence[DraftTree]],
    ) -> list[float]:
        """Return, by sequence, the largest expected gain of the members that drafted
        already.
        """
        return [
            max(
                self._expected_gain(member, sequence, trees[row], batch)
                for member, trees in enumerate(drafts)
            )
            for row, sequence in enumerate(batch.sequences)
        ]

    def _estimates(
        self,
        member: int,
        kinds: Sequence[bool],
        before: Sequence[float],
        budgets: Sequence[Sequence[int]],
    ) -> list[Sequence[DecayedMean]]:
        """Return, by sequence, the estimates of a member's further gain, the most
        specific one last.
        """
        estimates: list[Sequence[DecayedMean]] = []
        for row, (kind, gain) in enumerate(zip(kinds, before, strict=True)):
            if any(budget[row] for budget in budgets):
                estimates.append(self._gains[member][kind][: _level(gain) + 1])
            else:
                estimates.append([self._others[kind]])
        return estimates

    def update(
        self,
        sequence: Request,
        trees: Mapping[int, DraftTree],
        emitted: Sequence[int],
    ) -> None:
        """Add log(member's probability / mixture's probability) to the log weights, for
        each emitted token.

        A member that drafted nothing there, or was rejected before, keeps its weight.
        Otherwise a long accepted draft would lose weight with every further token.
        """
        super().update(sequence, trees, emitted)
        if len(trees) < 2:
            return
        nodes_of, gained = dict.fromkeys(trees, -1), dict.fromkeys(trees, 0.0)
        weights = self._weights
        children_by_token = {
            member: tree.children_by_token() for member, tree in trees.items()
        }
        for token in emitted:
            children = {
                member: children_by_token[member].get(node, {})
                for member, node in nodes_of.items()
            }
            active = [member for member, tokens in children.items() if tokens]
            if not active:
                break
            shares = {
                member: _share(
                    trees[member], nodes_of[member], children[member].get(token)
                )
                for member in active
            }
            mean = sum(weights[member] * shares[member] for member in active)
            mean /= sum(weights[member] for member in active)
            for member, share in shares.items():
                gained[member] += math.log(share / mean)
            nodes_of = {
                member: children[member][token]
                for member in active
                if token in children[member]
            }
        for member, gain in gained.items():
            if finite(gain):
                self._log_weights[member] = DECAY * self._log_weights[member] + gain

    def _weigh_first(
        self,
        batch: Batch,
        sequence: Request,
        others: Mapping[int, DraftTree],
        joined: DraftTree,
    ) -> None:
        """Record the gain that the first member added to the others, or the time it
        saved if no other drafted.
        """
        kind = sequence.params.greedy
        gains = {0: 0.0} | {
            member: self._expected_gain(member, sequence, tree, batch)
            for member, tree in others.items()
        }
        surest = max(gains, key=lambda member: gains[member])
        if others:
            without = gains[surest]
            self._others[kind].learn(without)
        else:
            saved = batch.pace * sum(self._took[1:])
            without = max(self._others[kind].tokens() - saved, 0.0)
        together = self._expected_gain(surest, sequence, joined, batch)
        self._first[kind].learn(max(together - without, 0.0))

    @property
    def _weights(self) -> list[float]:
        """Mixture weight of each member, 1 for the best."""
        best = max(self._log_weights)
        relative = [log_weight - best for log_weight in self._log_weights]
        return [math.exp(max(log_weight, LEAST)) for log_weight in relative]

    def _joined(self, trees: Sequence[DraftTree]) -> DraftTree:
        active = [tree for tree in trees if tree.tokens]
        if len(active) > 1:
            return self._merged(trees)
        return active[0] if active else DraftTree()

    def _merged(self, trees: Sequence[DraftTree]) -> DraftTree:
        weights, merged = self._weights, DraftTree()
        # A node of the merged tree, and the matching nodes of the members that drafted
        # it.
        open_: list[tuple[int, dict[int, int]]] = [
            (-1, dict.fromkeys(range(len(trees)), -1))
        ]
        children_by_token = [tree.children_by_token() for tree in trees]
        for place, nodes_of in open_:
            active = {
                member: node
                for member, node in nodes_of.items()
                if children_by_token[member].get(node)
            }
            total = sum(weights[member] for member in active)
            shares: dict[int, float] = {}
            heads: dict[int, dict[int, int]] = {}
            for member, node in active.items():
                reached = trees[member].probabilities[node] if node >= 0 else 1.0
                for token, child in children_by_token[member][node].items():
                    share = trees[member].probabilities[child] / max(reached, 1e-9)
                    shares[token] = (
                        shares.get(token, 0.0) + weights[member] / total * share
                    )
                    heads.setdefault(token, {})[member] = child
            reached = merged.probabilities[place] if place >= 0 else 1.0
            for token, share in shares.items():
                open_.append(
                    (merged.add(token, place, reached * min(share, 1.0)), heads[token])
                )
        return merged


def _gain_estimate(levels: Sequence[DecayedMean]) -> float:
    """Return the estimate of the last level, whose prior is the level before it."""
    return reduce(lambda before, level: level.tokens(before), levels, EAGER)


def _level(gain: float) -> int:
    """Return the bin of a gain: 0 up to 1 accepted draft token, 1 up to 3, 2 up to 7,
    and so on.
    """
    return min(math.frexp(1.0 + gain)[1], LEVELS) - 1


def _share(
    tree: DraftTree,
    parent: int,
    child: int | None,
) -> float:
    """Return the probability that a tree gives to a child of one of its nodes."""
    if child is None:
        return UNNAMED
    reached = tree.probabilities[parent] if parent >= 0 else 1.0
    return max(tree.probabilities[child] / max(reached, 1e-9), UNNAMED)
