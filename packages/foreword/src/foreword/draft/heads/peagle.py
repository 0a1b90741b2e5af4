"""Drafter with an EAGLE-3 head that drafts all tokens in one forward (P-EAGLE, arXiv
2602.01469).

The forward reads the text, then masks beside one learnt hidden state: the last
committed token's row predicts the next token, and mask k the token k places later.
Keys and values of masks are dropped.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.heads.block import BlockDrafter, BlockPredictor
from foreword.draft.heads.block_native import NativeBlockTrees, supports_native_trees
from foreword.draft.heads.eagle import executor_for
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.reader import StateReader
from foreword.draft.vocabulary import over_target_vocab
from foreword.model import Model, Read
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Request


class ParallelBlocks(BlockPredictor[Read], StateReader):
    """Blocks of a head: the logits of the last token and of masks after it."""

    def __init__(self, head: EagleHead, target: Model) -> None:
        assert head.mask_hidden is not None
        self._mask_states = head.mask_hidden.detach()[None]
        self._tokens = head.tokens
        self.hidden_layers = head.config.states
        self.draft_tokens = head.config.draft_tokens
        self.target = target
        context = min(target.context, head.config.llama.max_position_embeddings)
        StateReader.__init__(self, executor_for(head, target), context)
        BlockPredictor.__init__(self, context)
        if supports_native_trees(target):
            self._grower = NativeBlockTrees(target.vocab)

    def store(self, read: Read) -> None:
        self.executor.run([read], [self._beside(read)])

    def compute(self, pending: Sequence[Read]) -> tuple[Tensor, ...]:
        counts = [read.keep for read in pending]
        states: list[Tensor] = []
        for read in pending:
            texts = replace(read, tokens=read.tokens[: 1 - read.keep or None])
            own = self._beside(texts)
            masks = self._mask_states.to(own).expand(read.keep - 1, -1)
            states.append(torch.cat([own, masks]))
        logits, _ = self.executor.run(pending, states)
        return over_target_vocab(logits, self._tokens, self.target.vocab).split(counts)

    def ahead(self, read: Read) -> Float[Tensor, "draft_tokens vocab"]:
        return self.block(read.id)

    def close(self, id: int) -> None:
        BlockPredictor.close(self, id)
        StateReader.close(self, id)


class ParallelDrafter(BlockDrafter):
    """Drafter that grows trees from the distributions of one forward per round."""

    about = OWN_METHODS["eagle"]

    def __init__(self, head: EagleHead, target: Model) -> None:
        self._mask = head.config.mask
        blocks = ParallelBlocks(head, target)
        super().__init__(blocks)
        self.executor = blocks.executor

    def begin(
        self, batch: Batch, budget: Sequence[int], reads: dict[int, Read]
    ) -> None:
        for row, read in reads.items():
            count = min(budget[row], self.reach(batch, batch.requests[row]))
            tokens = [*read.tokens, *[self._mask] * (count - 1)]
            self.blocks.queue(replace(read, tokens=tokens, keep=count))

    def rereads(self, request: Request) -> bool:
        """Return False: a text without masks says nothing of what masks predict."""
        del request
        return False
