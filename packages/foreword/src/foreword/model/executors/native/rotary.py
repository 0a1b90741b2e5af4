"""Rotary embeddings of a Hugging Face model as the C forward reads them: half-split
angles of each layer, and query factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model import architectures
from foreword.model.architectures import body
from foreword.model.executors.native.angles import Rotary
from foreword.model.executors.native.layout import parts_of
from foreword.model.executors.native.supported import ropes


def rotaries_of(model: PreTrainedModel) -> Sequence[Rotary | None]:
    """Return the rotary embedding of each layer; None = it has none."""
    inner = body(model)
    config = model.config.get_text_config()
    layers = parts_of(model)
    names = [name for name in ("rotary_emb", "pos_emb") if hasattr(inner, name)]
    kinds = [None] * len(layers)
    if not names:
        return kinds
    rotary = getattr(inner, names[0])
    if type(inner).__name__.startswith("Cohere"):
        rotary = partial(_half_split, rotary)
    if type(inner).__name__.startswith("GptOss"):
        rotary = partial(_doubled, rotary)
    sections = [rope.get("mrope_section") for rope in ropes(config)]
    if section := next(filter(None, sections), None):
        rotary = partial(_multimodal, rotary, section)
    if ropes(config) != [config.rope_parameters]:
        kinds = config.layer_types
    by_kind = {
        kind: rotary if kind is None else partial(rotary, layer_type=kind)
        for kind in set(kinds)
    }
    return [
        by_kind[kind] if architectures.turns(layer) else None
        for kind, layer in zip(kinds, layers, strict=True)
    ]


def _half_split(
    rotary: Rotary, like: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return interleaved angles (each twice, side by side) in the half-split layout of
    the other models.
    """
    cos, sin = (
        torch.cat([table[..., ::2], table[..., 1::2]], dim=-1)
        for table in rotary(like, positions)
    )
    return cos, sin


def _doubled(rotary: Rotary, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return angles that a model has once for both halves of a head."""
    cos, sin = rotary(like, positions)
    cos = torch.cat([cos, cos], dim=-1)
    sin = torch.cat([sin, sin], dim=-1)
    return cos, sin


def _multimodal(
    rotary: Rotary, section: list[int], like: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return multimodal angles (M-RoPE); a position of text is the same in all three
    directions.
    """
    tables = rotary(like, positions.expand(3, -1, -1))
    cos, sin = (joined(table, section) for table in tables)
    return cos, sin


def joined(
    table: Float[Tensor, "*grid 1 position dim"], section: list[int]
) -> Float[Tensor, "1 position dim"]:
    """Return M-RoPE angles: each section of a head's dimensions uses one axis (time,
    height or width).

    Some versions of transformers join them in the rotary embedding, others in
    attention.
    """
    if table.dim() == 3:
        return table
    parts = table.split(section * 2, dim=-1)
    return torch.cat([part[number % 3] for number, part in enumerate(parts)], dim=-1)


def query_scale(config: Any) -> Callable[[Tensor], Tensor] | None:
    """Return the position-dependent factor of queries (Llama 4); None if there is none.

    It grows with the logarithm of the number of whole contexts before the position.
    """
    for rope in ropes(config):
        if beta := rope.get("llama_4_scaling_beta"):
            length = rope["original_max_position_embeddings"]
            return lambda positions: (
                1 + beta * torch.log(1 + torch.floor(positions / length))
            )
    return None
