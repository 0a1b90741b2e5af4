"""Grows guesses level by level from a model that is asked what follows: coupled trees, or drawn ones.

Knows trees and how to ask; knows nothing about what the model reads, or how it remembers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as List
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Drafter
from foreword.draft.confidence import Confidence
from foreword.draft.drawn import DrawnTree
from foreword.draft.ranks import Ranks
from foreword.draft.static import spread
from foreword.draft.tree import BREADTH, DEEP, Foresees, Grows, Growth
from foreword.model import Mode, Read
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict


@runtime_checkable
class Asked(Protocol):
    """What is asked for guesses: a model, or a part that was trained to guess for one."""

    @property
    def mode(self) -> Mode: ...

    @property
    def context(self) -> int: ...

    def close(self, id: int) -> None: ...

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]: ...


class GrowingDrafter(Drafter):
    """Asks for the laws of what follows a text, then of what follows each promising guess, and so on."""

    draws = True
    deep: int = DEEP
    """Guesses are asked for at most so far ahead."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        # Asked once: to compare with a protocol takes Python 3.11 some 20 µs.
        self._grows = asked if isinstance(asked, Grows) else None
        self._foresees = asked if isinstance(asked, Foresees) else None
        self.confidence = Confidence()
        self._ranks = Ranks()
        self._growths: dict[int, Growth] = {}

    @abstractmethod
    def catch_up(self, sequence: Sequence) -> Read:
        """What must be read to know a text; its end is left to be read, for what it says comes next."""

    def remember(self, sequence: Sequence, tree: Tree) -> None:
        """These guesses were read after the text, in this order."""

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        budget = [self.fit(batch, s, n) for s, n in zip(batch.sequences, nodes, strict=True)]
        reads = {row: self.catch_up(batch.sequences[row]) for row, count in enumerate(budget) if count}
        if not batch.draws.wants_probs and self.asked.mode is Mode.TREE and batch.stops is None:
            return self._trees(batch, budget, reads)
        return self._drawn(batch, budget, reads)

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Learn how far to trust the model from what became of its guesses."""
        if batch.draws.wants_probs:
            self._ranks.learn(draft, verdict)
        for sequence, said in zip(batch.sequences, verdict.said(draft), strict=True):
            growth = self._growths.pop(sequence.id, None)
            if growth is not None:
                growth.learn(said)

    def release(self, sequence: Sequence) -> None:
        self.asked.close(sequence.id)
        self._growths.pop(sequence.id, None)

    def reach(self, batch: Batch, sequence: Sequence) -> int:
        """How deep guesses can be made that are of use: who is asked has a context of its own."""
        return max(0, min(batch.reach(sequence), self.deep, self.asked.context - len(sequence.tokens)))

    def fit(self, batch: Batch, sequence: Sequence, nodes: int) -> int:
        """Guesses to make at most."""
        return nodes if self.reach(batch, sequence) else 0

    def logits(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        """Raw logits of what follows, in the target's vocabulary."""
        return self.asked.read(reads)

    def _trees(self, batch: Batch, budget: List[int], reads: dict[int, Read]) -> Draft:
        """Coupled trees, a forward for each level; all sequences together."""
        breadth = BREADTH if batch.trees else 1
        growths = {
            row: Growth(one, budget[row], batch.floor, self.confidence, breadth, self.reach(batch, one))
            for row, one in enumerate(batch.sequences)
            if row in reads
        }
        pending = {row: read for row, read in reads.items() if not self._at_once(batch, growths[row], read)}
        while pending:
            parts = self.logits(list(pending.values())).split([read.keep for read in pending.values()])
            for row, logits in zip(pending, parts, strict=True):
                growths[row].extend(batch, logits)
            wanted = [(row, growths[row].next(reads[row].past + len(reads[row].tokens))) for row in pending]
            pending = {row: read for row, read in wanted if read is not None}
        for row, growth in growths.items():
            self._growths[reads[row].id] = growth
            self.remember(batch.sequences[row], growth.known)
        return Draft([growths[row].tree if row in growths else Tree() for row in range(len(batch))])

    def _at_once(self, batch: Batch, growth: Growth, read: Read) -> bool:
        """Grow the whole tree in one call, where who is asked can; False: level by level then."""
        if not growth.sequence.params.plain:
            return False
        if self._grows is not None and growth.at_once(batch, self._grows, read):
            return True
        if self._foresees is not None:
            growth.foreseen(batch, self._foresees, read)
        return self._foresees is not None

    def _drawn(self, batch: Batch, budget: List[int], reads: dict[int, Read]) -> Draft:
        """Drawn trees, a forward for each level; chains where the model can read no others or nobody judges others."""
        held = self.asked.mode is Mode.TREE  # what it reads after a text can be told apart from the text
        trees = held and batch.trees and batch.draws.wants_probs
        depths = [self.reach(batch, sequence) for sequence in batch.sequences]
        shapes = [
            self._ranks.shape(most, deep) if trees else spread([1] * min(most, deep))
            for most, deep in zip(budget, depths, strict=True)
        ]
        drawn = DrawnTree(batch, shapes)
        ends = {row: read.past + len(read.tokens) for row, read in reads.items()}
        level: dict[int, list[int]] = {row: [-1] for row in reads}
        read: dict[int, list[int]] = {row: [] for row in reads}
        while reads:
            parts = self.logits(list(reads.values())).split([one.keep for one in reads.values()])
            for row, logits in zip(list(reads), parts, strict=True):
                fresh = [
                    new for node, last in zip(level[row], logits, strict=True) for new in drawn.draw(row, node, last)
                ]
                level[row] = [node for node in fresh if drawn.branches(row, node)]
                one, before = reads.pop(row), len(read[row])
                if level[row]:
                    read[row] += level[row]
                    tree = drawn.tree(row, read[row])
                    tokens, count = tree.tokens[before:], len(level[row])
                    reads[row] = (
                        Read(one.id, ends[row], tokens, tree.parents, count, held=before)
                        if held
                        else Read(one.id, ends[row] + before, tokens)
                    )
        for row in ends:
            self.remember(batch.sequences[row], drawn.tree(row, read[row]))
        return drawn.draft()
