"""Drafter with an EAGLE-3 head that drafts all tokens in one forward (P-EAGLE, arXiv
2602.01469).

The forward reads the text, then masks beside one learnt hidden state: the last
committed token's row predicts the next token, and mask k the token k places later.
Keys and values of masks are dropped.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.heads.eagle import EagleDrafter, executor_for
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.reader import HeadDrafter, StateReader
from foreword.draft.pard import MaskBlocks
from foreword.draft.vocabulary import over_target_vocab
from foreword.model import Model, Read
from foreword.types import Batch, Request


class MaskedReader(StateReader):
    """A head that reads its learnt state beside masks, which are all rows but the first
    whose logits a read keeps.
    """

    def __init__(self, head: EagleHead, target: Model) -> None:
        assert head.mask_hidden is not None
        self._mask_state = head.mask_hidden.detach()[None]
        self._tokens = head.tokens
        self.device, self.vocab = target.device, target.vocab
        most = head.config.llama.max_position_embeddings
        executor = executor_for(head, target)
        super().__init__(executor, min(target.context, most))

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        states: list[Tensor] = []
        for read in reads:
            masks = max(0, read.keep - 1)
            count = len(read.tokens) - masks
            text = self.target_states.rows(read.id, read.past, count)
            beside = self._mask_state.expand(masks, -1)
            states.append(torch.cat([text, beside.to(text)]))
        logits, _ = self.executor.run(reads, states)
        return over_target_vocab(logits, self._tokens, self.vocab)


class ParallelDrafter(HeadDrafter):
    """Drafter that grows trees from the distributions of one forward per round."""

    about = EagleDrafter.about

    def __init__(self, head: EagleHead, target: Model) -> None:
        assert head.config.mask is not None
        reader = MaskedReader(head, target)
        super().__init__(reader, head.config.states)
        blocks = MaskBlocks(reader, head.config.mask)
        self.blocks = self.draft_model = blocks
        self.executor = reader.executor
        self.deep = head.config.draft_tokens

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
