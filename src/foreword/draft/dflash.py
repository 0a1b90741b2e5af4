"""A block of tokens from one forward of a small diffusion head (DFlash, arXiv 2602.06036); none depends on another.

Knows the checkpoints of the method; the head itself is in masked.py, and how guesses are read from a block in block.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.block import BlockDrafter, fitting, folder
from foreword.draft.masked import Layout, MaskedHead, fill, packed
from foreword.draft.masked_blocks import MaskedBlocks
from foreword.draft.parcel import SPECULATORS, Parcel, unserved
from foreword.errors import ModelError
from foreword.model import Model, Read, Tokenizer
from foreword.model.checkpoint import Checkpoint
from foreword.model.parts import HFConfig

ARCHITECTURE, METHOD = "DFlashDraftModel", "dflash"
"""What configs call it: alone, and in the layout of speculators."""


class DFlashHead(MaskedHead):
    """A head with nothing besides: `fc`, `hidden_norm`, `layers.N` and `norm`."""

    @classmethod
    def read(cls, found: Checkpoint) -> DFlashHead:
        """From a checkpoint, flat or of speculators. Raises ModelError for another kind, or where a part is missing."""
        kinds = [*(found.config.get("architectures") or ()), found.config.get("speculators_model_type")]
        if not {ARCHITECTURE, METHOD} & set(kinds):
            raise ModelError(f"{found.source} does not hold a {ARCHITECTURE}, but {kinds}")
        head = cls(Layout.of(found.config, found.source, anchored=False))
        fill(head, found)
        return head

    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """The head in the flat layout."""
        inner = {"mask_token_id": self.layout.mask, "target_layer_ids": self.layout.outputs}
        config = {"architectures": [ARCHITECTURE], **self.layout.as_config(), "dflash_config": inner}
        if self.layout.anchored:
            config["sample_from_anchor"] = True
        tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in self.state_dict().items()}
        return Checkpoint("", {**config, "dtype": str(dtype).removeprefix("torch.")}, tensors)


def pack(found: Checkpoint, target: HFConfig, engine: str) -> Parcel:
    """A head for another engine. Raises ModelError for another target's, InvalidRequest for what it does not know."""
    head = DFlashHead.read(found)
    if head.layout.anchored and engine != SPECULATORS:
        raise unserved(f"a head whose first row guesses ({found.source})", engine, (SPECULATORS,))
    about = {"architectures": ["DFlashSpeculator"], "speculators_model_type": METHOD}
    flat = replace(head.dump(found.tensors["fc.weight"].dtype), source=found.source)
    return packed(head, flat, about, target, engine)


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
        fitting(str(source), target.hf.config, vocab=head.layout.sizes.vocab_size, hidden=head.layout.sizes.hidden_size)
        blocks = DFlashBlocks(head, target)
        blocks.lighten()
        return cls(blocks, head.layout.states)
