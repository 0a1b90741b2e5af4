"""A smaller language model with the target's tokenizer writes ahead (Leviathan et al. 2023; Chen et al. 2023).

Keeps its own memory of every sequence and knows how much of it is still true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import MODEL, Drafter, Source
from foreword.draft.drawn import DrawnTree
from foreword.draft.ranks import Ranks
from foreword.draft.tree import BREADTH, Confidence, Growth
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Mode, Model, Read, Tokenizer, check_same, load_tokenizer
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

CHUNK = 512
"""Tokens read at a time while catching up with a long text."""
ROOM = 256
"""Places kept beyond a text for guesses that may not stay."""


@dataclass(slots=True)
class _Memory:
    """What the draft model has read of one sequence: `length` committed tokens, then guesses that may be wrong."""

    length: int = 0
    guesses: dict[tuple[int, int], int] = field(default_factory=dict)
    """(place of the guess before, token) -> place among the guesses read; -1 stands for the end of the text."""

    def remember(self, tree: Tree) -> None:
        """These guesses were read after the text, in this order."""
        self.guesses = {pair: place for place, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}

    def settle(self, tokens: list[int]) -> list[int]:
        """Count the guesses that came true as read, and say where they lie, counted from the end of the text before.

        The last token of a text is always left to be read, for what it says comes next.
        """
        path: list[int] = []
        place = -1
        while self.length < len(tokens) - 1:
            place = self.guesses.get((place, tokens[self.length]), -2)
            if place < 0:
                break
            path.append(place)
            self.length += 1
        self.guesses = {}
        self.length = min(self.length, len(tokens) - 1)
        return path


class LanguageModelDrafter(Drafter):
    """Drafts with any causal model that shares the target's tokenizer."""

    summary = "a smaller model with the same tokenizer writes ahead"
    takes, needs, draws = MODEL, True, True

    def __init__(self, model: Model, vocab: int | None = None) -> None:
        """`vocab` is the target's, if larger: families pad their embeddings to different sizes, without new tokens."""
        self.model = model
        self.confidence = Confidence()
        self._ranks = Ranks()
        self._missing = (vocab or model.vocab) - model.vocab
        self._memories: dict[int, _Memory] = {}
        self._growths: dict[int, Growth] = {}

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> LanguageModelDrafter:
        if source is None:
            raise InvalidRequest("this method needs a draft model: give draft='folder or hub id'")
        if isinstance(source, str | Path):
            if tokenizer is not None:
                check_same(tokenizer, load_tokenizer(source))
            model = Model.load(source, dtype=target.dtype, device=str(target.device))
        else:
            model = source if isinstance(source, Model) else Model(source)
        if model.vocab > target.vocab:
            raise VocabularyMismatch(
                f"the draft model knows {model.vocab} tokens and the target only {target.vocab}; "
                "they must share one tokenizer, or use a drafter that needs no model"
            )
        return cls(model, target.vocab)

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        budget = [self._fit(s, n) for s, n in zip(batch.sequences, nodes, strict=True)]
        reads = {row: self._catch_up(batch.sequences[row]) for row, count in enumerate(budget) if count}
        if not batch.draws.wants_probs and self.model.mode is Mode.TREE:
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
        self.model.close(sequence.id)
        self._memories.pop(sequence.id, None)
        self._growths.pop(sequence.id, None)

    def _trees(self, batch: Batch, budget: List[int], reads: dict[int, Read]) -> Draft:
        """Coupled trees, a forward for each level; all sequences together."""
        breadth = BREADTH if batch.trees else 1
        growths = {
            row: Growth(batch.sequences[row], budget[row], batch.floor, self.confidence, breadth) for row in reads
        }
        pending = {row: read for row, read in reads.items() if not growths[row].at_once(batch, self.model, read)}
        while pending:
            parts = self._logits(list(pending.values())).split([read.keep for read in pending.values()])
            for row, logits in zip(pending, parts, strict=True):
                growths[row].extend(batch, logits)
            wanted = [(row, growths[row].next(reads[row].past + len(reads[row].tokens))) for row in pending]
            pending = {row: read for row, read in wanted if read is not None}
        for row, growth in growths.items():
            self._growths[reads[row].id] = growth
            self._memories[reads[row].id].remember(growth.tree.pruned(growth.read))
        return Draft([growths[row].done() if row in growths else Tree() for row in range(len(batch))])

    def _drawn(self, batch: Batch, budget: List[int], reads: dict[int, Read]) -> Draft:
        """Drawn trees, a forward for each level; chains where the model can read no others or nobody judges others."""
        trees = batch.draws.wants_probs and batch.trees and self.model.mode is Mode.TREE
        drawn = DrawnTree(batch, [self._ranks.shape(most) if trees else tuple(range(-1, most - 1)) for most in budget])
        ends = {row: read.past + len(read.tokens) for row, read in reads.items()}
        level: dict[int, list[int]] = {row: [-1] for row in reads}
        read: dict[int, list[int]] = {row: [] for row in reads}
        while reads:
            parts = self._logits(list(reads.values())).split([one.keep for one in reads.values()])
            for row, logits in zip(list(reads), parts, strict=True):
                fresh = [
                    new for node, last in zip(level[row], logits, strict=True) for new in drawn.draw(row, node, last)
                ]
                level[row] = [node for node in fresh if drawn.branches(row, node)]
                one, held = reads.pop(row), len(read[row])
                if level[row]:
                    read[row] += level[row]
                    tree = drawn.tree(row, read[row])
                    tokens, count = tree.tokens[held:], len(level[row])
                    reads[row] = (
                        Read(one.id, ends[row], tokens, tree.parents, count, held=held)
                        if trees
                        else Read(one.id, ends[row] + held, tokens)
                    )
        for row in ends:
            self._memories[batch.sequences[row].id].remember(drawn.tree(row, read[row]))
        return drawn.draft()

    def _logits(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        return F.pad(self.model.read(reads), (0, self._missing), value=-math.inf)

    def _fit(self, sequence: Sequence, nodes: int) -> int:
        return max(0, min(nodes, self.model.context - len(sequence.tokens)))

    def _catch_up(self, sequence: Sequence) -> Read:
        """Read what was committed since the last guess, but for the end, which the returned Read holds."""
        memory = self._memories.get(sequence.id)
        if memory is None:
            self.model.open(sequence.id, sequence.prompt + sequence.params.max_tokens + ROOM)
            memory = self._memories[sequence.id] = _Memory()
        start = memory.length
        path = memory.settle(sequence.tokens)
        if path != list(range(len(path))):
            self.model.move(sequence.id, [start + place for place in path], start)
        past = memory.length
        while len(sequence.tokens) - past > CHUNK:
            self.model.read([Read(sequence.id, past, sequence.tokens[past : past + CHUNK], keep=0)])
            past += CHUNK
        memory.length = len(sequence.tokens)
        return Read(sequence.id, past, sequence.tokens[past:])
