"""Blocks of tokens that are predicted in one forward, and the drafter whose head
predicts one from the target's hidden states.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.draft.heads.block_native import NativeBlockTrees, supports_native_trees
from foreword.draft.heads.loading import TrainedHead, check_fits, checkpoint_of
from foreword.draft.heads.reader import HeadDrafter, HeadReader
from foreword.draft.tree.drafter import ModelDrafter
from foreword.model import Mode, Model, Read, Tokenizer
from foreword.native.openmp import threads_for
from foreword.types import Batch, Request
from foreword.types.growth import GrownTree, TreeRequest


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """Block that the next read computes after a text."""

    id: int
    anchor: int
    """The last committed token, which the target has not read yet."""
    states: Float[Tensor, "new features"]
    """The target's hidden states at earlier tokens that the head has not seen."""
    start: int = 0
    """Index of the first of these tokens."""

    @property
    def end(self) -> int:
        """Position of the anchor."""
        return self.start + len(self.states)


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
        self, pending: Sequence[Pending]
    ) -> Iterable[Float[Tensor, "draft_tokens vocab"]]:
        """Return the raw logits of every depth of these blocks, independent of the
        other blocks in the batch.
        """

    def close(self, id: int) -> None:
        """Forget a request."""
        self._pending.pop(id, None)
        self._blocks.pop(id, None)

    def queue(self, pending: Pending) -> None:
        """Have the next read of this request compute a new block."""
        self._pending[pending.id] = pending

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Return logits after the text or its draft tokens: one row of the block
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
        """Grow a tree from a request's block; None where trees grow level by level."""
        if self._grower is None:
            return None
        return self._grower.grow(self.block(read.id), read.tokens[-1], ask)

    def after(
        self, distributions: Float[Tensor, "rows vocab"], tokens: Sequence[int]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of block rows given the tokens before them; unchanged
        unless a head depends on these.
        """
        del tokens
        return distributions

    def block(self, id: int) -> Float[Tensor, "draft_tokens vocab"]:
        """Return the logits of a request's block, one row for each depth."""
        if self._pending:
            pending = list(self._pending.values())
            self._pending = {}
            with self._threads():
                blocks = self.compute(pending)
            for request, distributions in zip(pending, blocks, strict=True):
                self._blocks[request.id] = distributions
        return self._blocks[id]


class HeadBlocks(BlockPredictor[BlockRequest], HeadReader):
    """Block predictor with a head that reads the target's hidden states."""

    hidden_layers: tuple[int, ...] = ()
    """Target hidden states that the head reads, numbered as in transformers."""

    def __init__(
        self,
        head: nn.Module,
        target: Model,
        draft_tokens: int,
    ) -> None:
        """Move `head` to the target; `draft_tokens` = tokens that a block predicts."""
        HeadReader.__init__(self, target.context)
        super().__init__(target.context)
        self._threads = threads_for(head)
        nn.Module.to(head.eval(), target.device, target.dtype)
        self.target = target
        self.draft_tokens = draft_tokens
        if supports_native_trees(target) and hasattr(self, "ahead"):
            self._grower = NativeBlockTrees(target.vocab)

    def quantize(self) -> None:
        """Use int8 where that is faster; draft tokens may then differ slightly."""

    def close(self, id: int) -> None:
        super().close(id)
        HeadReader.close(self, id)

    def extend(self, request: Request) -> Read:
        name, end = request.id, len(request.tokens) - 1
        if name not in self._read:
            self.open(name, request.prompt + request.params.max_tokens)
        start = self._read[name]
        states = self.target_states.rows(name, start, end - start)
        self.target_states.drop(name, end)
        self._read[name] = end
        self.queue(BlockRequest(name, request.tokens[-1], states, start))
        return Read(name, end, request.tokens[-1:])


class MaskBlocks(BlockPredictor[Read]):
    """Blocks of a draft model: the logits of the last token and of masks after it."""

    def __init__(self, model: Any, mask: int, missing: int = 0) -> None:
        """`model`: a Model, or a head that reads masks. `mask`: id of the mask token.
        `missing`: tokens that only the target has.
        """
        super().__init__(model.context)
        self.model = model
        self.mask = mask
        self._missing = missing
        if supports_native_trees(model):
            self._grower = NativeBlockTrees(model.vocab)

    def masked(self, read: Read, count: int) -> Read:
        """Return a read of the end of a text with masks after it, which keeps the
        logits of so many draft tokens.
        """
        masks = [self.mask] * (count - 1)
        tokens = read.tokens + masks
        return replace(read, tokens=tokens, keep=count)

    def compute(self, pending: Sequence[Read]) -> tuple[Tensor, ...]:
        counts = [one.keep for one in pending]
        return self.model.read(pending).split(counts)

    def ahead(self, read: Read) -> Float[Tensor, "draft_tokens vocab"]:
        block = self.block(read.id)
        missing = (0, self._missing)
        return F.pad(block, missing, value=-math.inf)

    def close(self, id: int) -> None:
        super().close(id)
        self.model.close(id)


class MaskBlockDrafter(ModelDrafter):
    """Drafter that grows trees from the blocks of masks."""

    blocks: MaskBlocks

    def begin(
        self, batch: Batch, budget: Sequence[int], reads: dict[int, Read]
    ) -> None:
        for row, read in reads.items():
            deep = self.reach(batch, batch.requests[row])
            count = min(budget[row], deep)
            self.blocks.queue(self.blocks.masked(read, count))

    def rereads(self, request: Request) -> bool:
        """Return False: a text without masks says nothing of what masks predict."""
        del request
        return False


class BlockDrafter(HeadDrafter):
    """Drafter that grows trees from one block per round."""

    HEAD: ClassVar[type[TrainedHead]]
    """What a checkpoint is read as."""
    BLOCKS: ClassVar[Callable[[Any, Model], HeadBlocks]]
    """What computes the blocks of such a head."""

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "BlockDrafter":
        del tokenizer  # a head uses the target's tokenizer
        head = cls.HEAD.read(checkpoint_of(source))
        check_fits(str(source), head, target.hf.config)
        drafter = cls(cls.BLOCKS(head, target))
        drafter.blocks.quantize()
        return drafter

    def __init__(self, blocks: HeadBlocks) -> None:
        """Raises ModelError where the target lacks a hidden state that is read."""
        blocks.target.check_hidden_states(blocks.hidden_layers)
        super().__init__(blocks, blocks.hidden_layers)
        self.blocks = blocks
        self.deep = blocks.draft_tokens
