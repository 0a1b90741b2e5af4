"""Drafters as parts of another one: what each guesses, as trees in which every guess says its chance.

Knows drafters and outcomes; knows nothing about how any of them guesses, nor by which name.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Drafter
from foreword.draft.trust import Trust
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

HOPE = 0.5
"""The chance of a guess once those before it came true, for a drafter that says none, before any was judged."""


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
        self._trees: dict[int, dict[int, Tree]] = {}
        """Sequence id -> part -> what it guessed this round."""

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        for sequence, tokens in zip(batch.sequences, verdict.said(draft), strict=True):
            self.judge(self._trees.pop(sequence.id, {}), tokens)
        for drafter in self.parts:
            drafter.observe(batch, draft, verdict, scores)

    def hear(self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]) -> None:
        states = dict(zip(self.wants, hidden.chunk(len(self.wants), -1), strict=True))
        for drafter in self.parts:
            if drafter.wants:
                drafter.hear(sequence, start, torch.cat([states[layer] for layer in drafter.wants], -1))

    def rest(self, took: float) -> None:
        for drafter in self.parts:
            drafter.rest(took)

    @property
    def pupil(self) -> Model | None:
        return next((drafter.pupil for drafter in self.parts if drafter.learns), None)

    def release(self, sequence: Sequence) -> None:
        self._trees.pop(sequence.id, None)
        for drafter in self.parts:
            drafter.release(sequence)

    def judge(self, trees: Mapping[int, Tree], said: List[int]) -> None:
        """Learn how often each part is right: the target wrote `said` where they had guessed these trees."""
        for part, tree in trees.items():
            self._judge(part, tree, said)

    def _judge(self, part: int, tree: Tree, said: List[int]) -> None:
        node = -1
        for depth, token in enumerate(said):
            children = tree.children(node)
            if not children:
                return
            self._trust.learn((part, depth), token in children)
            if token not in children:
                return
            node = children[token]

    def _ask(self, part: int, batch: Batch, nodes: List[int]) -> list[Tree]:
        """What one part guesses for every sequence, with chances."""
        draft = self.parts[part].propose(batch, nodes)
        trees = []
        for sequence, guessed in zip(batch.sequences, draft.trees, strict=True):
            tree = guessed if guessed.chances else Tree(guessed.tokens, guessed.parents, self._believed(part, guessed))
            if tree.tokens:
                self._trees.setdefault(sequence.id, {})[part] = tree
            trees.append(tree)
        return trees

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
