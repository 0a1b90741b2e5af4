"""Guesses from a head that foresees a whole block of tokens in one forward a round, from the target's hidden states.

Knows when a block is wanted and how guesses are read out of it; knows nothing about what computes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.base import HEAD, Source
from foreword.draft.block_native import Bed, bedded
from foreword.draft.growing import GrowingDrafter
from foreword.draft.heard import Heard
from foreword.draft.tree import Foresees
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Mode, Model, Read
from foreword.model.checkpoint import Checkpoint
from foreword.model.linear import swap_in
from foreword.model.parts import HFConfig
from foreword.native.openmp import threads_for
from foreword.native.tree import Ask, Grown
from foreword.types import Batch, Sequence


@dataclass(frozen=True, slots=True)
class Wanted:
    """After what a block is wanted."""

    id: int
    anchor: int
    """The last committed token, which the target has not read yet."""
    states: Float[Tensor, "new features"]
    """What the target thought at the tokens before it that were not shown earlier."""


class Blocks(ABC):
    """What is asked for guesses: computes a block when its first guess is asked for, all that are wanted together.

    Where no guess depends on those before it, `ahead(read)` hands over the whole block (see draft/tree.py). Where there
    is a bed, whole trees grow in one call.
    """

    mode = Mode.TREE

    def __init__(self, head: nn.Module, target: Model, guesses: int) -> None:
        """`head` is moved to the target, and laid out; `guesses` = tokens that a block foresees."""
        self._threads = threads_for(head)
        nn.Module.to(head, target.device, target.dtype)
        self.target, self.guesses, self.context = target, guesses, target.context
        self.shown: dict[int, int] = {}
        """Tokens of each sequence whose states were shown."""
        self._wanted: dict[int, Wanted] = {}
        self._laws: dict[int, Float[Tensor, "guesses vocab"]] = {}
        self.lay_out(head.eval())
        self._bed = self.bed(head) if bedded(target) else None

    def lay_out(self, head: nn.Module) -> None:
        """Pack the head's linear layers where that is faster."""
        swap_in(head)

    def bed(self, head: nn.Module) -> Bed | None:
        """What grows trees at once, where the C side is at hand; None where it does not know what follows on what."""
        del head
        return Bed(self.target.vocab) if isinstance(self, Foresees) else None

    @abstractmethod
    def compute(self, wanted: List[Wanted]) -> Float[Tensor, "wanted guesses vocab"]:
        """The raw logits of every depth of these blocks. What is computed does not depend on the company."""

    def open(self, id: int, capacity: int) -> None:
        """Make room for a sequence of at most so many tokens."""
        self.shown[id] = 0

    def close(self, id: int) -> None:
        for held in (self.shown, self._wanted, self._laws):
            held.pop(id, None)

    def want(self, wanted: Wanted) -> None:
        """The next read of this sequence is answered from a new block."""
        self._wanted[wanted.id] = wanted

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        """What follows the text, or guesses after it: a row of the block for each token that is kept."""
        rows: list[Tensor] = []
        tokens: list[int] = []
        for read in reads:
            depths = [0] if read.parents is None else [depth + 1 for depth in read.depths[-read.keep :]]
            rows.append(self.block(read.id)[depths])
            tokens += read.tokens[-read.keep :]
        return self.after(torch.cat(rows), tokens)

    def grow(self, read: Read, ask: Ask) -> Grown | None:
        """A whole tree from a sequence's block; None where a tree takes a step for each level."""
        return None if self._bed is None else self._bed.grow(self.block(read.id), read.tokens[-1], ask)

    def after(self, laws: Float[Tensor, "rows vocab"], tokens: List[int]) -> Float[Tensor, "rows vocab"]:
        """What a row of the block says once the token before it is known; nothing else, unless a head knows better."""
        del tokens
        return laws

    def block(self, id: int) -> Float[Tensor, "guesses vocab"]:
        """The laws of a sequence's block, depth by depth."""
        if self._wanted:
            wanted = list(self._wanted.values())
            self._wanted = {}
            with self._threads():
                laws = self.compute(wanted)
            self._laws |= {one.id: laws[row] for row, one in enumerate(wanted)}
        return self._laws[id]


class BlockDrafter(GrowingDrafter):
    """Hears the target, and grows guesses from a block that a head computes once a round."""

    takes, needs = HEAD, True

    def __init__(self, blocks: Blocks, wants: tuple[int, ...]) -> None:
        """`wants` = hidden states of the target, as transformers numbers them. Raises ModelError for others."""
        blocks.target.hears(wants)
        super().__init__(blocks)
        self.blocks, self.wants, self.deep = blocks, wants, blocks.guesses
        self._heard = Heard()

    def hear(self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]) -> None:
        self._heard.add(sequence, start, hidden)

    def fit(self, batch: Batch, sequence: Sequence, nodes: int) -> int:
        return super().fit(batch, sequence, nodes) if self._heard.up_to_date(sequence) else 0

    def catch_up(self, sequence: Sequence) -> Read:
        one, end = sequence.id, len(sequence.tokens)
        if one not in self.blocks.shown:
            self.blocks.open(one, sequence.prompt + sequence.params.max_tokens)
        states = self._heard.since(sequence, self.blocks.shown[one])
        self._heard.since(sequence, end - 1)  # those are shown now
        self.blocks.shown[one] = end - 1
        self.blocks.want(Wanted(one, sequence.tokens[-1], states))
        return Read(one, end - 1, sequence.tokens[-1:])

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._heard.forget(sequence)


def folder(source: Source) -> Checkpoint:
    """What the user gave as a head. Raises InvalidRequest for a model in memory, ModelError for what is no head."""
    if not isinstance(source, str | Path):
        raise InvalidRequest(f"this method needs {HEAD}: give draft='folder or hub id'")
    return Checkpoint.read(source)


def fitting(source: str, target: HFConfig, *, hidden: int, vocab: int) -> None:
    """Raises ModelError where a head was made for a target of other sizes."""
    config = target.get_text_config()
    if hidden != config.hidden_size or vocab != config.vocab_size:
        raise ModelError(
            f"{source} is a head for a target with hidden size {hidden} and {vocab} tokens; "
            f"{target.name_or_path or 'the target'} has {config.hidden_size} and {config.vocab_size}. "
            "Give a head that was trained for this target"
        )
