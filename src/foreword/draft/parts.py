"""Drafters as parts of another one: what each guesses, as trees in which every guess says its chance.

Knows drafters and outcomes; knows nothing about how any of them guesses, nor by which name.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Drafter
from foreword.draft.evidence import finite, steadied
from foreword.draft.making import Making
from foreword.draft.trust import Earned, Trust
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

HOPE = 0.5
"""The chance of a guess once those before it came true, for a drafter that says none, before any was judged."""
EAGER = 4.0
"""What a part is expected to promise, or to add, before it was ever asked: guesses that come true."""
FADE = 0.95
"""Weight of the past in what it is expected to, each time that it was asked."""
SHARE = 0.02
"""Share of the time that may go to parts that do not seem worth theirs: texts change."""
RAREST = 4
"""How many times its time is saved up for a part of which little or nothing is expected, at most."""


class Hope:
    """What to expect of a part: a mean whose past fades, and which begins with what was believed beforehand."""

    __slots__ = ("_belief", "_seen", "_weight")

    def __init__(self) -> None:
        self._seen, self._weight, self._belief = 0.0, 0.0, 1.0

    def tokens(self, before: float = EAGER) -> float:
        """So many, if `before` is what to believe of a part that was never asked; that fades as well."""
        return (self._seen + self._belief * before) / (self._weight + self._belief)

    def learn(self, tokens: float) -> None:
        """It was asked, and promised, or added, so much."""
        if not finite(tokens):
            return
        self._seen, self._weight = FADE * self._seen + tokens, FADE * self._weight + 1
        self._belief *= FADE


class Parts(Drafter):
    """Asks several drafters, and lets each learn from what became of a round, whoever guessed in it.

    A drafter that does not say how likely its guesses are is believed as often as it was right, depth by depth.
    Subclasses decide whom to ask and what to make of the answers.
    """

    def __init__(self, drafters: List[Drafter]) -> None:
        """Raises InvalidRequest where there are fewer than two."""
        if len(drafters) < 2:
            raise InvalidRequest(f"several drafters are needed to join, at least two, got {len(drafters)}")
        self.parts = tuple(drafters)
        self.wants = tuple(sorted({layer for drafter in self.parts for layer in drafter.wants}))
        self._trust = Trust()
        self._mute = [False] * len(self.parts)
        """Which parts do not say how likely their guesses are."""
        self._trees: dict[int, dict[int, Tree]] = {}
        """Sequence id -> part -> what it guessed this round."""
        self._took = [0.0] * len(self.parts)
        """Seconds that each part needs to guess, the whole batch together."""
        self._making = [Making() for _ in self.parts]
        """The same, by how many guesses it makes."""
        self._met: list[set[int]] = [set() for _ in self.parts]
        """Sequences that each part guessed for in the last round; with others it must catch up first."""
        self._asked: list[set[int]] = [set() for _ in self.parts]
        """Those of this round."""
        self._earned = [(Earned(), Earned()) for _ in self.parts]
        """With texts that are drawn, and with the likeliest ones, which repeat themselves and are foreseen further."""
        self._scoring = Making()
        """Seconds of a round without its guessing, by how many guesses it scores."""
        self._spent = 0.0
        """Seconds of guessing in this round."""
        self._scored: int | None = None
        """Guesses that were scored in it, where it did nothing else."""
        self._spare = 0.0
        """Seconds left of that share."""
        self._tried = 0.0
        """A part is being asked that does not seem worth its time: how many times that is taken off what is left."""

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        if all(sequence.rounds for sequence in batch.sequences):  # else prompts are read in this round, too
            self._scored = sum(map(len, draft.trees))
        for sequence, tokens in zip(batch.sequences, verdict.said(draft), strict=True):
            self.judge(sequence, self._trees.pop(sequence.id, {}), tokens)
        for drafter in self.parts:
            drafter.observe(batch, draft, verdict, scores)

    def hear(self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]) -> None:
        states = dict(zip(self.wants, hidden.chunk(len(self.wants), -1), strict=True))
        for drafter in self.parts:
            if drafter.wants:
                drafter.hear(sequence, start, torch.cat([states[layer] for layer in drafter.wants], -1))

    def rest(self, took: float) -> None:
        self._spare = min(self._spare + SHARE * steadied(took, 0.0), RAREST * max(self._took))
        if self._scored is not None:
            self._scoring.learn(self._scored, took - self._spent)
        self._met, self._asked = self._asked, [set() for _ in self.parts]
        self._spent, self._scored = 0.0, None
        for drafter in self.parts:
            drafter.rest(took)

    @property
    def pupil(self) -> Model | None:
        return next((drafter.pupil for drafter in self.parts if drafter.learns), None)

    def release(self, sequence: Sequence) -> None:
        self._trees.pop(sequence.id, None)
        for ids in (*self._met, *self._asked):
            ids.discard(sequence.id)
        for drafter in self.parts:
            drafter.release(sequence)

    def judge(self, sequence: Sequence, trees: Mapping[int, Tree], said: List[int]) -> None:
        """Learn how often each part is right: the target wrote `said` where they had guessed these trees."""
        for part, tree in trees.items():
            earned = self._earned[part][sequence.params.greedy]
            earned.promise(sum(tree.chances))
            earned.keep(self._judge(part, tree, said))

    def _judge(self, part: int, tree: Tree, said: List[int]) -> int:
        """How many of its guesses came true, one after the other."""
        node, offspring = -1, tree.offspring()
        for depth, token in enumerate(said):
            children = offspring.get(node)
            if not children:
                return depth
            if self._mute[part]:
                self._trust.learn((part, depth), token in children)
            if token not in children:
                return depth
            node = children[token]
        return len(said)

    def _due(self, part: int, batch: Batch, nodes: List[int], gains: List[float]) -> List[int]:
        """How many guesses to ask of a part that is expected to add so many tokens to each text.

        None where they take longer to make than text of that length takes to be written; but now and then all, lest
        nobody notices that they have become better. The less is expected, the longer that is put off.
        """
        wanted = [most if gain > 0 else 0 for most, gain in zip(nodes, gains, strict=True)]
        hoped = sum(gain for most, gain in zip(wanted, gains, strict=True) if most)
        needed = len(batch) * batch.pace * self._took[part]
        if hoped >= needed:
            return wanted
        times = min(needed / max(hoped, 1e-9), RAREST)
        if self._spare >= times * self._took[part]:
            self._tried = times
            return nodes
        return [0] * len(nodes)

    def _promise(self, part: int, sequence: Sequence, tree: Tree, batch: Batch) -> float:
        """Tokens that a tree is expected to add, less what its guesses cost to score; to make them is weighed apart."""
        share, toll = self._earned[part][sequence.params.greedy].share, self._floor(batch)
        return sum(max(share * chance - toll, 0.0) for chance in tree.chances)

    def _floor(self, batch: Batch, part: int | None = None) -> float:
        """The chance at which a guess earns half of its scoring and, where it is yet to be made, its making."""
        return batch.pace * (0.5 * self._scoring.each + (0.0 if part is None else self._making[part].each))

    def _ask(self, part: int, batch: Batch, nodes: List[int]) -> list[Tree]:
        """What one part guesses for every sequence, with chances."""
        if not any(nodes):
            return [Tree() for _ in nodes]
        trees = []
        for sequence, tree in zip(batch.sequences, self._timed(part, batch, nodes).trees, strict=True):
            if tree.tokens and not tree.chances:
                self._mute[part] = True
                tree = Tree(tree.tokens, tree.parents, self._believed(part, tree))
            if tree.tokens:
                self._trees.setdefault(sequence.id, {})[part] = tree
            trees.append(tree)
        return trees

    def _timed(self, part: int, batch: Batch, nodes: List[int]) -> Draft:
        """What it proposes; its time is learnt, but not that of catching up with what was written meanwhile."""
        ids = {sequence.id for sequence, most in zip(batch.sequences, nodes, strict=True) if most}
        start, self._asked[part] = perf_counter(), ids
        draft = self.parts[part].propose(replace(batch, floor=self._floor(batch, part)), nodes)
        took = perf_counter() - start
        self._spent += took
        self._tried, self._spare = 0.0, self._spare - self._tried * took
        if ids <= self._met[part] or took < self._took[part]:
            usual = self._took[part]
            self._took[part] += (0.1 if usual else 1.0) * (steadied(took, usual) - usual)
            self._making[part].learn(sum(map(len, draft.trees)), took)
        return draft

    def _believed(self, part: int, tree: Tree) -> list[float]:
        depths, chances = [-1], [1.0]
        for parent in tree.parents:
            depths.append(depths[parent + 1] + 1)
            chances.append(chances[parent + 1] * self._trust.chance((part, depths[-1]), HOPE))
        return chances[1:]

    def _first_to_speak(self, batch: Batch, nodes: List[int]) -> Draft:
        """What the first part that has anything to say guesses: under rules that compare laws, guesses do not mix."""
        draft = self.parts[0].propose(batch, nodes)
        for drafter in self.parts[1:]:
            if draft.nodes:
                break
            draft = drafter.propose(batch, nodes)
        return draft
