"""DFlash drafter and its checkpoints: a diffusion head predicts a block of independent
tokens (arXiv 2602.06036).

The head is in masked.py; block.py reads draft tokens from a block.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.heads.block import BlockDrafter
from foreword.draft.heads.loading import saved
from foreword.draft.heads.masked import MaskedHead
from foreword.draft.heads.masked_runtime import MaskedBlocks
from foreword.model import Model, Read, Tokenizer
from foreword.model.loading.checkpoint import Checkpoint
from foreword.model.loading.hub import kinds
from foreword.registry import OWN_METHODS


class DFlashHead(MaskedHead):
    """A head without extra parts: `fc`, `hidden_norm`, `layers.N` and `norm`."""

    METHOD = "dflash"
    ARCHITECTURES = ("DFlashDraftModel",)
    SPECULATOR = "DFlashSpeculator"
    FIRST_ROW = False

    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """Return the head in the flat layout."""
        config = {
            "architectures": [self.ARCHITECTURES[0]],
            **self.layout.as_config(),
            "dflash_config": {
                "mask_token_id": self.layout.mask,
                "target_layer_ids": self.layout.outputs,
            },
        }
        if self.layout.sample_from_anchor:
            config["sample_from_anchor"] = True
        return saved(self, config, dtype)


class DFlashBlocks(MaskedBlocks):
    """Block predictor whose distributions ignore the draft tokens before."""

    def ahead(self, read: Read) -> Float[Tensor, "draft_tokens vocab"]:
        return self.block(read.id)


class DFlashDrafter(BlockDrafter):
    """Drafter that grows trees from the distributions of a block's tokens (as DDTree
    does, arXiv 2604.12989).
    """

    about = OWN_METHODS["dflash"]
    HEAD = DFlashHead
    BLOCKS = DFlashBlocks

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> BlockDrafter:
        """Load a head of DFlash, or of DFlash 2."""
        declared = kinds(source) if isinstance(source, str | Path) else ()
        if not {"dflash2", "DFlash2DraftModel"} & set(declared):
            return super().load(source, target, tokenizer)
        from foreword.draft.heads.dflash_2 import DFlash2Drafter

        return DFlash2Drafter.load(source, target, tokenizer)
