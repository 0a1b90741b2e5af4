"""A smaller language model with the target's tokenizer writes ahead (Leviathan et al. 2023; Chen et al. 2023).

Keeps its own memory of every sequence and knows how much of it is still true; how guesses grow is in growing.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import MODEL, Source
from foreword.draft.growing import GrowingDrafter
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Read, Tokenizer, check_same, load_tokenizer
from foreword.types import Sequence, Tree

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


class LanguageModelDrafter(GrowingDrafter):
    """Drafts with any causal model that shares the target's tokenizer."""

    summary = "a smaller model with the same tokenizer writes ahead"
    takes, needs, learns = MODEL, True, True

    def __init__(self, model: Model, vocab: int | None = None) -> None:
        """`vocab` is the target's, if larger: families pad their embeddings to different sizes, without new tokens."""
        super().__init__(model)
        self.model = model
        self._missing = (vocab or model.vocab) - model.vocab
        self._memories: dict[int, _Memory] = {}

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> LanguageModelDrafter:
        if source is None:
            raise InvalidRequest("this method needs a draft model: give draft='folder or hub id'")
        if isinstance(source, str | Path):
            if tokenizer is not None:
                check_same(tokenizer, load_tokenizer(source, trust_remote_code=target.trust_remote_code))
            model = Model.load(
                source,
                dtype=target.dtype,
                device=str(target.device),
                trust_remote_code=target.trust_remote_code,
            )
        else:
            model = source if isinstance(source, Model) else Model(source)
        if model.vocab > target.vocab:
            raise VocabularyMismatch(
                f"the draft model knows {model.vocab} tokens and the target only {target.vocab}; "
                "they must share one tokenizer, or use a drafter that needs no model"
            )
        return cls(model, target.vocab)

    @property
    def pupil(self) -> Model | None:
        return self.model if self.learns else None

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._memories.pop(sequence.id, None)

    def remember(self, sequence: Sequence, tree: Tree) -> None:
        self._memories[sequence.id].remember(tree)

    def logits(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        return F.pad(self.model.read(reads), (0, self._missing), value=-math.inf)

    def catch_up(self, sequence: Sequence) -> Read:
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
