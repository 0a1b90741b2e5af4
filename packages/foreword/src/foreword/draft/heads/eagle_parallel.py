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

from foreword.draft.heads.block import MaskBlockDrafter, MaskBlocks
from foreword.draft.heads.eagle import EagleDrafter, executor_for
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.reader import HeadDrafter, StateReader
from foreword.draft.vocabulary import over_target_vocab
from foreword.model import Model, Read


class MaskedReader(StateReader):
    """A head that reads its learnt state beside masks, which are all rows but the first
    whose logits a read keeps.
    """

    def __init__(
        self,
        head: EagleHead,
        target: Model,
    ) -> None:
        assert head.mask_hidden is not None
        self._mask_state = head.mask_hidden.detach()[None]
        self._tokens = head.tokens
        self.device, self.vocab = target.device, target.vocab
        positions = head.config.llama.max_position_embeddings
        context = min(target.context, positions)
        super().__init__(executor_for(head, target), context)

    def read(
        self,
        reads: Sequence[Read],
    ) -> Float[Tensor, "kept vocab"]:
        states = [self._states_of(read) for read in reads]
        logits, _ = self.executor.run(reads, states)
        return over_target_vocab(logits, self._tokens, self.vocab)

    def _states_of(
        self,
        read: Read,
    ) -> Float[Tensor, "tokens features"]:
        masks = max(0, read.keep - 1)
        count = len(read.tokens) - masks
        states = self.target_states
        text = states.rows(read.id, read.past, count)
        rest = self._mask_state.expand(masks, -1)
        return torch.cat([text, rest.to(text)])


class ParallelDrafter(MaskBlockDrafter, HeadDrafter):
    """Drafter that grows trees from the distributions of one forward per round."""

    about = EagleDrafter.about

    def __init__(
        self,
        head: EagleHead,
        target: Model,
    ) -> None:
        config = head.config
        assert config.mask is not None
        reader = MaskedReader(head, target)
        super().__init__(reader, config.states)
        self.blocks = MaskBlocks(reader, config.mask)
        self.draft_model = self.blocks
        self.executor = reader.executor
        self.deep = config.draft_tokens
