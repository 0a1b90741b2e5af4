"""Configs of encoder-decoders that are drafts of larger ones."""

from __future__ import annotations

import copy

from transformers import PreTrainedConfig

from foreword.errors import InvalidRequest

LAYERS = ("num_decoder_layers", "decoder_layers")
ENCODER_LAYERS = ("num_layers", "encoder_layers")
HEADS = ("num_heads", "encoder_attention_heads", "decoder_attention_heads")
INNER = ("d_ff", "encoder_ffn_dim", "decoder_ffn_dim")
"""Config names of the sizes of encoder-decoders."""


def smaller(
    config: PreTrainedConfig, layers: int, encoder_layers: int, hidden: int | None
) -> PreTrainedConfig:
    """Return an encoder-decoder's config with fewer layers and, if given, another
    hidden size.

    Heads keep their size. Raises InvalidRequest when the sizes do not fit together.
    """
    result = copy.deepcopy(config)
    heads = [name for name in HEADS if hasattr(config, name)]
    before: int = config.hidden_size
    head = before // getattr(config, heads[0])
    hidden = before if hidden is None else hidden
    if layers < 1 or encoder_layers < 1 or hidden < head or hidden % head:
        raise InvalidRequest(
            f"cannot create a draft with {encoder_layers} and {layers} layers and "
            f"hidden size {hidden}: it needs one "
            f"layer of each kind or more, and a hidden size in multiples of {head}, "
            "the target's for one head"
        )
    sizes = (
        dict.fromkeys(LAYERS, layers)
        | dict.fromkeys(ENCODER_LAYERS, encoder_layers)
        | {"d_model": hidden}
    )
    sizes |= dict.fromkeys(heads, hidden // head)
    sizes |= {
        name: max(8, round(getattr(config, name, 0) * hidden / before / 8) * 8)
        for name in INNER
    }
    for name, size in sizes.items():
        if hasattr(config, name):
            setattr(result, name, size)
    return result
