"""Encoder-decoders as drafts in training: their config, and their logits of blocks of records."""

from __future__ import annotations

import copy
from collections.abc import Sequence as List

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig

from foreword.errors import InvalidRequest
from foreword.train.data.packing import Block, Piece

LAYERS, ENCODER_LAYERS = ("num_decoder_layers", "decoder_layers"), ("num_layers", "encoder_layers")
HEADS = ("num_heads", "encoder_attention_heads", "decoder_attention_heads")
INNER = ("d_ff", "encoder_ffn_dim", "decoder_ffn_dim")
"""Config names of the sizes of encoder-decoders."""


def smaller(config: PreTrainedConfig, layers: int, encoder_layers: int, hidden: int | None) -> PreTrainedConfig:
    """Return an encoder-decoder's config with fewer layers and, if given, another hidden size.

    Heads keep their size. Raises InvalidRequest when the sizes do not fit together.
    """
    result = copy.deepcopy(config)
    heads = [name for name in HEADS if hasattr(config, name)]
    before: int = config.hidden_size
    head = before // getattr(config, heads[0])
    hidden = before if hidden is None else hidden
    if layers < 1 or encoder_layers < 1 or hidden < head or hidden % head:
        raise InvalidRequest(
            f"cannot create a draft with {encoder_layers} and {layers} layers and hidden size {hidden}: it needs one "
            f"layer of each kind or more, and a hidden size in multiples of {head}, the target's for one head"
        )
    sizes = dict.fromkeys(LAYERS, layers) | dict.fromkeys(ENCODER_LAYERS, encoder_layers) | {"d_model": hidden}
    sizes |= dict.fromkeys(heads, hidden // head)
    sizes |= {name: max(8, round(getattr(config, name, 0) * hidden / before / 8) * 8) for name in INNER}
    for name, size in sizes.items():
        if hasattr(config, name):
            setattr(result, name, size)
    return result


def logits(models: List[nn.Module], block: Block, start: int) -> list[Float[Tensor, "learnt vocab"]]:
    """Return each model's logits where a learnt token comes next, of pieces from a PairEncoder.

    `start` is the number of tokens that the decoder reads before an answer. Gradients are the caller's choice.
    """
    pieces = [piece for row in zip(block.tokens, block.positions, block.learnt, strict=True) for piece in _cut(row)]
    ends = [piece.learnt.index(True) - start for piece in pieces]
    device = block.tokens.device
    sources = _padded([piece.tokens[:end] for piece, end in zip(pieces, ends, strict=True)], device)
    seen = _padded([[1] * end for end in ends], device)
    texts = _padded([piece.tokens[end:-1] for piece, end in zip(pieces, ends, strict=True)], device)
    learnt = _padded([piece.learnt[end + 1 :] for piece, end in zip(pieces, ends, strict=True)], device).bool()
    inputs = {"input_ids": sources, "attention_mask": seen, "decoder_input_ids": texts, "use_cache": False}
    return [model(**inputs).logits[learnt] for model in models]


def _cut(row: tuple[Tensor, Tensor, Tensor]) -> list[Piece]:
    return Block(*row).pieces


def _padded(rows: List[List[int]], device: torch.device) -> Tensor:
    return pad_sequence([torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True).to(device)
