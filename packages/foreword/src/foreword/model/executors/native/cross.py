"""The layers of an encoder-decoder's decoder under the names of architectures.py, as
the C forward reads them.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from foreword.model.architectures import ATTENTION, has

OUTPUT = {"o": "o_proj", "out_proj": "out_proj"}
"""The output projection of an attention module -> its name here."""


class DecoderLayer(nn.Module):
    """The modules of a decoder layer, without the projections of the source, which the
    model's own code computes.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        if has(layer, ATTENTION[0]):
            names = ("self_attn", "encoder_attn")
            attention, cross = (getattr(layer, name) for name in names)
            norms = [getattr(layer, f"{name}_layer_norm") for name in (*names, "final")]
            mlp = layer
        else:  # as T5: a list of sublayers
            first, second, last = layer.layer
            attention = first.SelfAttention
            cross = second.EncDecAttention
            mlp = last.DenseReluDense
            norms = [sublayer.layer_norm for sublayer in layer.layer]
        self.self_attn = _attention(attention, "qkv")
        self.encoder_attn = _attention(cross, "q")
        (
            self.self_attn_layer_norm,
            self.encoder_attn_layer_norm,
            self.final_layer_norm,
        ) = norms
        self.mlp = _mlp(mlp)
        self.source = tuple(_projection(cross, letter) for letter in "kv")
        """Layers that compute the keys and the values of a source; in a tuple, so that
        torch does not register them as parts of this module.
        """
        self.compute_bias = (
            attention.compute_bias
            if has(attention, "relative_attention_bias")
            else None
        )
        """Computes the position biases of its own attention; None = it shares the
        biases of the layer before, or has none.
        """


def _attention(module: Any, letters: str) -> nn.Module:
    layer: Any = nn.Module()
    for letter in letters:
        setattr(layer, f"{letter}_proj", _projection(module, letter))
    for theirs, ours in OUTPUT.items():
        if has(module, theirs):
            setattr(layer, ours, getattr(module, theirs))
    layer.scaling = module.scaling
    layer.is_sliding = False
    layer.use_rope = False
    return layer


def _projection(module: Any, letter: str) -> Any:
    return (
        getattr(module, letter)
        if hasattr(module, letter)
        else getattr(module, f"{letter}_proj")
    )


def _mlp(module: Any) -> nn.Module:
    layer: Any = nn.Module()
    if has(module, "wi_0"):
        layer.gate_proj = module.wi_0
        layer.up_proj = module.wi_1
        layer.down_proj = module.wo
    else:
        layer.up_proj, layer.down_proj = (
            (module.wi, module.wo) if has(module, "wi") else (module.fc1, module.fc2)
        )
    return layer
