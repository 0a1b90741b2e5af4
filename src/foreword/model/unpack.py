"""Puts packed weights back into the Hugging Face model they came from, whose own were dropped to hold them only once.

Knows the layout of panels (native/llama.c) and of Llama-like models; knows nothing about forwards.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

import torch
from jaxtyping import BFloat16, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.model import experts, names
from foreword.model.listen import layers_of
from foreword.model.panels import LANES, MATRICES, PANEL
from foreword.native import llama


def unpacked(packed: BFloat16[Tensor, "outputs depth"]) -> BFloat16[Tensor, "outputs depth"]:
    """From panels [depth / 2][32][2], the last of which may be of 16, to rows."""
    depth, panels = packed.shape[1], packed.split(PANEL)
    return torch.cat([panel.view(depth // 2, len(panel), 2).transpose(0, 1).flatten(1) for panel in panels])


def restore(hf: PreTrainedModel, described: llama.Model, held: List[Tensor]) -> None:
    """Give every linear layer of `hf` its weight again, from the packed ones in `held` that `described` points to; and
    embeddings that were read from them."""
    at = {tensor.data_ptr(): tensor for tensor in held}
    for layer, packed in zip(layers_of(hf), described.layer[: described.layers], strict=True):
        weights = {name: unpacked(at[getattr(packed, name)]) for name in MATRICES}
        if packed.router:
            router = unpacked(at[packed.router])
            experts.restore(layer, weights.pop("gate_up"), weights.pop("down"), router)
        elif not described.plain:
            pairs = weights["gate_up"].view(-1, 2, LANES, described.hidden)  # half of a panel each
            weights["gate_up"] = pairs.transpose(0, 1).reshape(-1, described.hidden)
        if (order := names.order(layer)) is not None:
            weights["qkv"] = weights["qkv"][order.argsort()]
        parts = names.linears(layer)
        for name, weight in weights.items():
            _fill(parts[name], weight)
    head = unpacked(at[described.head])[: described.vocab]
    words: Any = hf.get_input_embeddings()
    tied = not described.embedding or words.weight is names.mouth(hf).weight
    if not described.embedding:  # it was both
        words.weight = _still(head)
    names.mouth(hf).weight = words.weight if tied else _still(head)


def looked_up(
    packed: BFloat16[Tensor, "outputs depth"], outputs: Int[Tensor, "*rows"]
) -> BFloat16[Tensor, "*rows depth"]:
    """Some rows of a packed matrix. Plain definition of `packed_row` in llama.c."""
    whole, depth = len(packed) // PANEL * PANEL, packed.shape[1]
    panels = packed[:whole].view(-1, depth // 2, PANEL, 2)
    rest = packed[whole:].view(depth // 2, -1, 2)
    asked = outputs.flatten()
    found = packed.new_empty(len(asked), depth // 2, 2)
    early = asked < whole
    found[early] = panels[asked[early] // PANEL, :, asked[early] % PANEL]
    found[~early] = rest[:, asked[~early] - whole].transpose(0, 1)
    return found.view(*outputs.shape, depth)


def _fill(layers: List[nn.Module], rows: Tensor) -> None:
    for layer, weight in zip(layers, rows.split([names.shape(layer)[0] for layer in layers]), strict=True):
        names.fill(layer, weight)


def _still(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight, requires_grad=False)
