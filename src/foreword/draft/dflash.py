"""A block of tokens from one forward of a small diffusion head (DFlash, arXiv 2602.06036); none depends on another.

Knows the checkpoints of the method; the head itself is in masked.py, and how guesses are read from a block in block.py.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.block import BlockDrafter, fitting, folder
from foreword.draft.masked import Layout, MaskedBlocks, MaskedHead, fill
from foreword.errors import ModelError
from foreword.model import Model, Read, Tokenizer
from foreword.model.checkpoint import Checkpoint

ARCHITECTURE, SPECULATORS = "DFlashDraftModel", "dflash"


class DFlashHead(MaskedHead):
    """A head with nothing besides: `fc`, `hidden_norm`, `layers.N` and `norm`."""

    @classmethod
    def read(cls, found: Checkpoint) -> DFlashHead:
        """From a checkpoint, flat or of speculators. Raises ModelError for another kind, or where a part is missing."""
        kinds = [*(found.config.get("architectures") or ()), found.config.get("speculators_model_type")]
        if not {ARCHITECTURE, SPECULATORS} & set(kinds):
            raise ModelError(f"{found.source} does not hold a {ARCHITECTURE}, but {kinds}")
        head = cls(Layout.of(found.config, found.source, anchored=False))
        fill(head, found)
        return head

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Save in the flat layout."""
        inner = {"mask_token_id": self.layout.mask, "target_layer_ids": self.layout.outputs}
        config = {"architectures": [ARCHITECTURE], **self.layout.as_config(), "dflash_config": inner}
        if self.layout.anchored:
            config["sample_from_anchor"] = True
        tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in self.state_dict().items()}
        Checkpoint(str(folder), {**config, "dtype": str(dtype).removeprefix("torch.")}, tensors).write(folder)


class DFlashBlocks(MaskedBlocks):
    """Blocks whose laws are known for all depths at once."""

    def ahead(self, read: Read) -> Float[Tensor, "guesses vocab"]:
        return self.block(read.id)


class DFlashDrafter(BlockDrafter):
    """Grows trees from the laws that a head has of every token of a block (as DDTree does, arXiv 2604.12989)."""

    summary = "a diffusion head foresees a block of tokens at once"

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> DFlashDrafter:
        del tokenizer  # a head has none of its own
        head = DFlashHead.read(folder(source))
        fitting(str(source), target, vocab=head.layout.sizes.vocab_size, hidden=head.layout.sizes.hidden_size)
        return cls(DFlashBlocks(head, target), head.layout.states)
