"""Blocks of tokens that are predicted in one forward, and the base drafter for heads
that predict one from the target's hidden states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.draft.heads.block_native import NativeBlockTrees, supports_native_trees
from foreword.draft.heads.hidden_states import TargetStates
from foreword.draft.heads.loading import Readable, load_head
from foreword.draft.tree.coupled import PredictsBlocks
from foreword.draft.tree.drafter import ModelDrafter
from foreword.model import Mode, Model, Read, Tokenizer
from foreword.model.executors.torch.packed_linear import swap_in
from foreword.native.openmp import threads_for
from foreword.types import Batch, Request
from foreword.types.growth import GrownTree, TreeRequest


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """Pending request for a block after a sequence."""

    id: int
    anchor: int
    """The last committed token, which the target has not read yet."""
    states: Float[Tensor, "new features"]
    """The target's hidden states at the tokens before it that the head has not seen
    yet.
    """


Threads = Callable[[], AbstractContextManager[None]]
"""Context of a computation, with the threads that it uses."""
Pending = TypeVar("Pending", BlockRequest, Read)
"""Request for a block: of a head, or of a draft model."""


class BlockPredictor(ABC, Generic[Pending]):
    """Draft model that computes blocks lazily: the first read of a round computes all
    pending requests together.

    If no draft token depends on those before it, `ahead(read)` returns the whole block
    (tree/coupled.py). If there is a tree grower, it grows whole trees in one call.
    """

    mode = Mode.TREE

    def __init__(self, context: int) -> None:
        self.context = context
        """Tokens. Longest text that it can read."""
        self._pending: dict[int, Pending] = {}
        self._blocks: dict[int, Float[Tensor, "draft_tokens vocab"]] = {}
        self._grower: NativeBlockTrees | None = None
        self._threads: Threads = nullcontext

    @abstractmethod
    def compute(
        self, requests: Sequence[Pending]
    ) -> Iterable[Float[Tensor, "draft_tokens vocab"]]:
        """Return the raw logits of every depth of these blocks, independent of the
        other blocks in the batch.
        """

    def close(self, id: int) -> None:
        """Forget a sequence."""
        for state in (self._pending, self._blocks):
            state.pop(id, None)

    def request(self, request: Pending) -> None:
        """Have the next read of this sequence compute a new block."""
        self._pending[request.id] = request

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Return logits after the sequence or its draft tokens: one row of the block
        for each token in `keep`.
        """
        rows: list[Tensor] = []
        tokens: list[int] = []
        for read in reads:
            depths = [0]
            if read.parents is not None:
                depths = [depth + 1 for depth in read.depths[-read.keep :]]
            rows.append(self.block(read.id)[depths])
            tokens += read.tokens[-read.keep :]
        return self.after(torch.cat(rows), tokens)

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        """Grow a whole tree from a sequence's block; return None where trees grow level
        by level.
        """
        return (
            None
            if self._grower is None
            else self._grower.grow(self.block(read.id), read.tokens[-1], ask)
        )

    def after(
        self, distributions: Float[Tensor, "rows vocab"], tokens: Sequence[int]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of block rows given the tokens before them; unchanged
        unless a head depends on these.
        """
        del tokens
        return distributions

    def block(self, id: int) -> Float[Tensor, "draft_tokens vocab"]:
        """Return the logits of a sequence's block, one row for each depth."""
        if self._pending:
            requests = list(self._pending.values())
            self._pending = {}
            with self._threads():
                blocks = self.compute(requests)
            for one, distributions in zip(requests, blocks, strict=True):
                self._blocks[one.id] = distributions
        return self._blocks[id]


class HeadBlocks(BlockPredictor[BlockRequest]):
    """Block predictor with a head that reads the target's hidden states."""

    hidden_layers: tuple[int, ...] = ()
    """Target hidden states that the head reads, numbered as in transformers."""

    def __init__(self, head: nn.Module, target: Model, draft_tokens: int) -> None:
        """Move `head` to the target and pack it; `draft_tokens` = tokens that a block
        predicts.
        """
        super().__init__(target.context)
        self._threads = threads_for(head)
        nn.Module.to(head, target.device, target.dtype)
        self.target = target
        self.draft_tokens = draft_tokens
        self.seen: dict[int, int] = {}
        """Tokens of each sequence whose states the head has seen."""
        self.lay_out(head.eval())
        if supports_native_trees(target):
            self._grower = self.tree_grower(head)

    def lay_out(self, head: nn.Module) -> None:
        """Pack the head's linear layers where that is faster."""
        swap_in(head)

    def tree_grower(self, head: nn.Module) -> NativeBlockTrees | None:
        """Return a grower of whole trees in C; None where C does not implement how
        tokens depend on each other.
        """
        del head
        return (
            NativeBlockTrees(self.target.vocab)
            if isinstance(self, PredictsBlocks)
            else None
        )

    @abstractmethod
    def compute(
        self, requests: Sequence[BlockRequest]
    ) -> Float[Tensor, "requests draft_tokens vocab"]: ...

    def open(self, id: int, capacity: int) -> None:
        """Reserve room for a sequence of at most `capacity` tokens."""
        self.seen[id] = 0

    def close(self, id: int) -> None:
        super().close(id)
        self.seen.pop(id, None)


class BlockDrafter(ModelDrafter):
    """Drafter that reads the target's hidden states and grows trees from one block per
    round.
    """

    HEAD: ClassVar[type[Readable]]
    """What a checkpoint is read as."""
    BLOCKS: ClassVar[Callable[[Any, Model], HeadBlocks]]
    """What computes the blocks of such a head."""

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> BlockDrafter:
        del tokenizer  # a head uses the target's tokenizer
        head = load_head(source, target, cls.HEAD.read)
        blocks = cls.BLOCKS(head, target)
        return cls(blocks, blocks.hidden_layers)

    def __init__(self, blocks: HeadBlocks, hidden_layers: tuple[int, ...]) -> None:
        """Raises ModelError where the target lacks one of `hidden_layers`, numbered as
        in transformers.
        """
        blocks.target.check_hidden_states(hidden_layers)
        super().__init__(blocks)
        self.blocks = blocks
        self.hidden_layers = hidden_layers
        self.deep = blocks.draft_tokens
        self._target_states = TargetStates()

    def on_hidden_states(
        self, sequence: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        self._target_states.add(sequence, start, hidden)

    def fit(self, batch: Batch, sequence: Request, nodes: int) -> int:
        return (
            super().fit(batch, sequence, nodes)
            if self._target_states.up_to_date(sequence)
            else 0
        )

    def prefill(self, sequence: Request) -> Read:
        one, end = sequence.id, len(sequence.tokens)
        if one not in self.blocks.seen:
            longest = sequence.prompt + sequence.params.max_tokens
            self.blocks.open(one, longest)
        states = self._target_states.since(sequence, self.blocks.seen[one])
        # The head sees these now.
        self._target_states.since(sequence, end - 1)
        self.blocks.seen[one] = end - 1
        self.blocks.request(BlockRequest(one, sequence.tokens[-1], states))
        return Read(one, end - 1, sequence.tokens[-1:])

    def release(self, sequence: Request) -> None:
        super().release(sequence)
        self._target_states.forget(sequence)
