"""A smaller language model with the target's tokenizer writes a chain ahead (Leviathan et al. 2023; Chen et al. 2023).

Keeps its own memory of every sequence and knows how much of it is still true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F

from foreword.draft.base import Chain, Drafter, Source
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Read, Tokenizer, check_same, load_tokenizer
from foreword.types import Batch, Draft, Sequence

CHUNK = 512
"""Tokens read at a time while catching up with a long text."""


@dataclass(slots=True)
class _Memory:
    """What the draft model has read of one sequence: `length` committed tokens, then guesses that may be wrong."""

    capacity: int
    length: int = 0
    guesses: tuple[int, ...] = ()

    def settle(self, tokens: list[int]) -> int:
        """Count the guesses that came true as read; returns the number of tokens of the text that are held."""
        for guess in self.guesses:
            if self.length >= len(tokens) - 1 or tokens[self.length] != guess:
                break
            self.length += 1
        self.guesses = ()
        self.length = min(self.length, len(tokens) - 1)  # the last token is always read, for what it says comes next
        return self.length


class LanguageModelDrafter(Drafter):
    """Drafts with any causal model that shares the target's tokenizer."""

    summary = "a smaller model with the same tokenizer writes ahead"

    def __init__(self, model: Model, vocab: int | None = None) -> None:
        """`vocab` is the target's, if larger: families pad their embeddings to different sizes, without new tokens."""
        self.model = model
        self._missing = (vocab or model.vocab) - model.vocab
        self._memories: dict[int, _Memory] = {}

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
        chain = Chain(batch)
        budget = [self._fit(s, n) for s, n in zip(batch.sequences, nodes, strict=True)]
        reads = {row: self._catch_up(batch.sequences[row]) for row, count in enumerate(budget) if count}
        for row, read in list(reads.items()):
            if chain.foresee(row, self.model, read, budget[row]):
                self._memories[read.id].guesses = chain.guesses(row)[:-1]
                del reads[row]
        for depth in range(max((budget[row] for row in reads), default=0)):
            reads = {row: read for row, read in reads.items() if depth < budget[row]}
            logits = F.pad(self.model.read(list(reads.values())), (0, self._missing), value=-math.inf)
            for row, scores in zip(list(reads), logits, strict=True):
                read, token = reads[row], chain.draw(row, scores)
                reads[row] = Read(read.id, read.past + len(read.tokens), [token])
                if depth + 1 < budget[row]:
                    self._memories[read.id].guesses += (token,)
        return chain.draft()

    def release(self, sequence: Sequence) -> None:
        self.model.close(sequence.id)
        self._memories.pop(sequence.id, None)

    def _fit(self, sequence: Sequence, nodes: int) -> int:
        return max(0, min(nodes, self.model.context - len(sequence.tokens)))

    def _catch_up(self, sequence: Sequence) -> Read:
        """Read what was committed since the last guess, but for the end, which the returned Read holds."""
        memory = self._memories.get(sequence.id)
        if memory is None:
            memory = _Memory(capacity=sequence.prompt + sequence.params.max_tokens + 1)
            self.model.open(sequence.id, memory.capacity)
            self._memories[sequence.id] = memory
        past = memory.settle(sequence.tokens)
        while len(sequence.tokens) - past > CHUNK:
            self.model.read([Read(sequence.id, past, sequence.tokens[past : past + CHUNK], keep=0)])
            past += CHUNK
        memory.length = len(sequence.tokens)
        return Read(sequence.id, past, sequence.tokens[past:])
