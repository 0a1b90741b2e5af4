"""DFlash drafter and its checkpoints: a diffusion head predicts a block of independent
tokens (arXiv 2602.06036).

The head is in masked.py; block.py reads draft tokens from a block.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.heads.block import BlockDrafter, fitting, folder
from foreword.draft.heads.export_layout import (
    SPECULATORS,
    ExportLayout,
    unsupported_engine,
)
from foreword.draft.heads.masked import Layout, MaskedHead, filled, packed
from foreword.draft.heads.masked_runtime import MaskedBlocks
from foreword.errors import ModelError
from foreword.model import Model, Read, Tokenizer
from foreword.model.head_layers import HFConfig
from foreword.model.loading.checkpoint import Checkpoint
from foreword.registry import OWN_METHODS

ARCHITECTURE, METHOD = "DFlashDraftModel", "dflash"
"""Names in configs: in the flat layout, and in the layout of speculators."""


class DFlashHead(MaskedHead):
    """A head without extra parts: `fc`, `hidden_norm`, `layers.N` and `norm`."""

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> DFlashHead:
        """Load a flat or speculators checkpoint.

        Raises ModelError for another kind, or where a tensor is missing.
        """
        kinds = [
            *(checkpoint.config.get("architectures") or ()),
            checkpoint.config.get("speculators_model_type"),
        ]
        if not {ARCHITECTURE, METHOD} & set(kinds):
            raise ModelError(
                f"cannot load {checkpoint.source} as a {ARCHITECTURE}: its config "
                f"names {kinds}. Choose another head"
            )
        layout = Layout.of(checkpoint, sample_from_anchor=False)
        return filled(checkpoint, layout, partial(cls, layout))

    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """Return the head in the flat layout."""
        inner = {
            "mask_token_id": self.layout.mask,
            "target_layer_ids": self.layout.outputs,
        }
        config = {
            "architectures": [ARCHITECTURE],
            **self.layout.as_config(),
            "dflash_config": inner,
        }
        if self.layout.sample_from_anchor:
            config["sample_from_anchor"] = True
        tensors = {
            name: tensor.detach().to("cpu", dtype)
            for name, tensor in self.state_dict().items()
        }
        return Checkpoint(
            "", {**config, "dtype": str(dtype).removeprefix("torch.")}, tensors
        )


def pack(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return a head for another engine.

    Raises ModelError where the head is for another target, InvalidRequest where the
    engine does not support it.
    """
    head = DFlashHead.read(checkpoint)
    if head.layout.sample_from_anchor and engine != SPECULATORS:
        raise unsupported_engine(
            f"a head with sample_from_anchor ({checkpoint.source})",
            engine,
            (SPECULATORS,),
        )
    about = {"architectures": ["DFlashSpeculator"], "speculators_model_type": METHOD}
    flat = replace(
        head.dump(checkpoint.tensors["fc.weight"].dtype), source=checkpoint.source
    )
    return packed(head, flat, about, target, engine)


class DFlashBlocks(MaskedBlocks):
    """Block predictor whose distributions are independent of the draft tokens
    before.
    """

    def ahead(self, read: Read) -> Float[Tensor, "draft_tokens vocab"]:
        return self.block(read.id)


class DFlashDrafter(BlockDrafter):
    """Drafter that grows trees from the distributions of a block's tokens (as DDTree
    does, arXiv 2604.12989).
    """

    about = OWN_METHODS["dflash"]

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> DFlashDrafter:
        del tokenizer  # a head uses the target's tokenizer
        head = DFlashHead.read(folder(source))
        fitting(
            str(source),
            target.hf.config,
            vocab=head.layout.sizes.vocab_size,
            hidden=head.layout.sizes.hidden_size,
        )
        blocks = DFlashBlocks(head, target)
        blocks.quantize_int8()
        return cls(blocks, head.layout.states)
