"""Several drafters guess at once, and the best of all their guesses make one tree.

Knows trees and chances; knows nothing about how a part guesses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as List
from functools import reduce

from foreword.draft.base import Drafter
from foreword.draft.evidence import finite
from foreword.draft.parts import EAGER, Hope, Parts
from foreword.types import Batch, Draft, Sequence, Tree

FADE = 0.98
"""Weight of the past, per round, in what a part's guesses were worth."""
UNSAID = 0.02
"""The chance that a part is thought to have given to a token that it did not name."""
LEAST = -5.0
"""Log of the least that a part's word counts, beside the best one's."""
LEVELS = 6
"""Promises that are told apart, each twice as large as the one before."""


class FusedDrafter(Parts):
    """Merges what its parts guess into one tree with as many guesses as were asked for.

    After each guess the chance of the next is a mean of what the parts say that have come this way, weighted by how
    well each has foreseen the text so far (a mixture of experts with weights by likelihood, of whom not all speak at
    every token: Freund, Schapire, Singer, Warmuth 1997, "Using and combining predictors that specialize"). A token that
    two parts name is likelier than one that only one of them does. A part is asked where it is expected to promise so
    much more than those before it that its time is well spent, and the first one where it adds as much to the others;
    name them in order of cost.
    """

    summary = "several methods at once, the best guesses of all in one tree"

    def __init__(self, drafters: List[Drafter]) -> None:
        super().__init__(drafters)
        self._worth = [0.0] * len(self.parts)
        """What each part has gained in log-likelihood over all that spoke beside it, the past fading."""
        self._gains = [tuple([Hope() for _ in range(LEVELS)] for _ in range(2)) for _ in self.parts]
        """How much more each part promises than those before it, on average, by how much these promised.

        With texts that are drawn, and with the likeliest ones.
        """
        self._others = (Hope(), Hope())
        """What those after the first promise by themselves."""
        self._first = (Hope(), Hope())
        """What the first one adds to that."""

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_to_speak(batch, nodes)
        kinds = [sequence.params.greedy for sequence in batch.sequences]
        dues = [self._due(0, batch, nodes, [self._first[kind].tokens() for kind in kinds])]
        asked = [self._ask(0, batch, dues[0])]
        for part in range(1, len(self.parts)):
            rows = zip(batch.sequences, *asked, strict=True)
            before = [max(self._promise(at, s, tree, batch) for at, tree in enumerate(trees)) for s, *trees in rows]
            heard = [any(due[row] for due in dues) for row in range(len(batch))]
            hopes = [
                self._gains[part][kind][: _level(had) + 1] if others else [self._others[kind]]
                for kind, had, others in zip(kinds, before, heard, strict=True)
            ]
            dues.append(self._due(part, batch, nodes, list(map(_hoped, hopes))))
            asked.append(self._ask(part, batch, dues[-1]))
            for sequence, tree, hope, had, due in zip(batch.sequences, asked[-1], hopes, before, dues[-1], strict=True):
                if due:
                    hope[-1].learn(max(self._promise(part, sequence, tree, batch) - had, 0.0))
        rows = zip(*asked, strict=True)
        trees = [self._joined(row).cut(most, self._floor(batch)) for row, most in zip(rows, nodes, strict=True)]
        for row, (sequence, tree) in enumerate(zip(batch.sequences, trees, strict=True)):
            if dues[0][row]:
                others = {part: asked[part][row] for part, due in enumerate(dues) if part and due[row]}
                self._weigh_first(batch, sequence, others, tree)
        return Draft(trees if batch.trees else [tree.straight() for tree in trees])

    def judge(self, sequence: Sequence, trees: Mapping[int, Tree], said: List[int]) -> None:
        """A part gains by what it gave to a token over what the mean of all gave that said anything there.

        One that says nothing, or was wrong before, neither gains nor loses. Else whoever is right for long would pay
        for every further token.
        """
        super().judge(sequence, trees, said)
        if len(trees) < 2:
            return
        standing, gained = dict.fromkeys(trees, -1), dict.fromkeys(trees, 0.0)
        weights, offspring = self._weights, {part: tree.offspring() for part, tree in trees.items()}
        for token in said:
            children = {part: offspring[part].get(node, {}) for part, node in standing.items()}
            speaking = [part for part, found in children.items() if found]
            if not speaking:
                break
            shares = {part: _share(trees[part], standing[part], children[part].get(token)) for part in speaking}
            mean = sum(weights[part] * shares[part] for part in speaking) / sum(weights[part] for part in speaking)
            for part, share in shares.items():
                gained[part] += math.log(share / mean)
            standing = {part: children[part][token] for part in speaking if token in children[part]}
        for part, gain in gained.items():
            if finite(gain):
                self._worth[part] = FADE * self._worth[part] + gain

    def _weigh_first(self, batch: Batch, sequence: Sequence, others: Mapping[int, Tree], joined: Tree) -> None:
        """Learn what the first part added to what others promise; or saved, so sure that nobody else was asked."""
        kind = sequence.params.greedy
        promised = {0: 0.0} | {part: self._promise(part, sequence, tree, batch) for part, tree in others.items()}
        surest = max(promised, key=lambda part: promised[part])
        if others:
            without = promised[surest]
            self._others[kind].learn(without)
        else:
            without = max(self._others[kind].tokens() - batch.pace * sum(self._took[1:]), 0.0)
        self._first[kind].learn(max(self._promise(surest, sequence, joined, batch) - without, 0.0))

    @property
    def _weights(self) -> list[float]:
        """What each part's word counts."""
        best = max(self._worth)
        return [math.exp(max(worth - best, LEAST)) for worth in self._worth]

    def _joined(self, trees: List[Tree]) -> Tree:
        speaking = [tree for tree in trees if tree.tokens]
        return self._merged(trees) if len(speaking) > 1 else speaking[0] if speaking else Tree()

    def _merged(self, trees: List[Tree]) -> Tree:
        weights, merged = self._weights, Tree()
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


def _hoped(levels: List[Hope]) -> float:
    """What to expect at the last of these levels; where that was never tried, what the one before it says."""
    return reduce(lambda before, level: level.tokens(before), levels, EAGER)


def _level(promised: float) -> int:
    """0: up to 1 guess that comes true, 1: up to 3, 2: up to 7, and so on."""
    return min(math.frexp(1.0 + promised)[1], LEVELS) - 1


def _share(tree: Tree, parent: int, child: int | None) -> float:
    """The chance that a tree gives to a token after one of its guesses."""
    reached = tree.chances[parent] if parent >= 0 else 1.0
    return max(tree.chances[child] / max(reached, 1e-9) if child is not None else 0.0, UNSAID)
