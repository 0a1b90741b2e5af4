"""Attention function that Hugging Face models call: it reads and writes our pool under
a plan.

A model's own code is not changed.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from transformers import AttentionInterface

from foreword.errors import ModelError
from foreword.model.executors.torch.kv_pool import taken
from foreword.model.executors.torch.plan import Block, Plan
from foreword.model.kv.reads import Span

NAME = "foreword"
ROWS = 16
"""Query rows are padded to a multiple: a row's bits then ignore the batch."""
KEYS = 128
"""Keys in one product of weights and values; over more, the order of sums varies."""


UNPLANNED = (
    "cannot run this model directly: Foreword loaded it, and it reads through a pool. "
    "Use foreword.LLM, or call model.set_attn_implementation('sdpa') first"
)


def attend(
    module: nn.Module,
    query: Float[Tensor, "1 heads rows dim"],
    key: Float[Tensor, "1 kv_heads keys dim"],
    value: Float[Tensor, "1 kv_heads keys value_dim"],
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    plan: Plan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> tuple[Float[Tensor, "1 rows heads value_dim"], None]:
    """Compute attention of one layer in one packed forward, in the signature of
    transformers' AttentionInterface.

    Writes the new keys and values into the pool, then attends span by span, so that a
    sequence's result never depends on the other sequences. Cross-attention
    (`Plan.cross`) attends to the keys of the source of each span. Rows that belong to
    no span (padding of the forward) return zero. Raises ModelError without a plan.
    """
    if plan is None:
        raise ModelError(UNPLANNED)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    heads, kv_heads = query.shape[1], key.shape[1]
    if source := layer < len(plan.cross) and key is plan.cross[layer]:
        keys, values = plan.pool.layer(layer)
        seen = _Seen(heads // kv_heads, source=True)
    else:
        plan.windows[layer] = sliding_window
        new_keys = key[0].transpose(0, 1)
        new_values = value[0].transpose(0, 1)
        keys, values = plan.pool.write(layer, new_keys, new_values, plan.rows)
        table = None if position_bias is None else bias_table(plan, module, layer)
        seen = _Seen(heads // kv_heads, sliding_window, table)
    out = value.new_zeros(1, query.shape[2], heads, value.shape[-1])
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    for span in plan.spans:
        k, v = (_keys_of(plan, span, part, source=source) for part in (keys, values))
        for block in plan.blocks_of(span, source=source):
            if block.path is not None:
                stop = block.root + len(block.path)
                k[0, :, block.root : stop], v[0, :, block.root : stop] = (
                    part[block.path].transpose(0, 1) for part in (keys, values)
                )
            rows, count = block.rows, block.count
            q = _fold(query[0, :, rows], kv_heads)
            mask = _mask(plan, span, block, seen)
            folded = _fold_sinks(sinks, q, count)
            result = _attended(q, k, v, mask, scale, softcap=softcap, sinks=folded)
            out[0, rows] = _unfold(result, heads, count)
    return out, None


AttentionInterface.register(NAME, attend)


def _keys_of(
    plan: Plan, span: Span, rows: Float[Tensor, "pool heads dim"], *, source: bool
) -> Float[Tensor, "1 heads keys dim"]:
    """Return the padded keys or values of a span, or of its source: a copy where the
    keys of a tree's branches are to be put at their positions.
    """
    index = plan.place(span, source=source)
    moved = plan.blocks_of(span, source=source)[0].path is not None
    keys = taken(rows, index)
    if moved and isinstance(index, slice):
        keys = keys.clone()
    return keys.transpose(0, 1)[None]


def _fold(
    query: Float[Tensor, "heads rows dim"], kv_heads: int
) -> Float[Tensor, "1 kv_heads padded dim"]:
    """Stack the query heads of a key head as rows of one product, padded to ROWS."""
    heads, rows, dim = query.shape
    folded = query.reshape(1, kv_heads, heads // kv_heads * rows, dim)
    return F.pad(folded, (0, 0, 0, -folded.shape[2] % ROWS))


def _unfold(
    result: Float[Tensor, "1 kv_heads padded dim"], heads: int, rows: int
) -> Float[Tensor, "rows heads dim"]:
    groups = heads // result.shape[1]
    return result[0, :, : groups * rows].reshape(heads, rows, -1).transpose(0, 1)


def _fold_sinks(
    sinks: Tensor | None, query: Float[Tensor, "1 kv_heads padded dim"], rows: int
) -> Float[Tensor, "kv_heads padded"] | None:
    if sinks is None:
        return None
    folded = sinks.reshape(query.shape[1], -1).repeat_interleave(rows, dim=1)
    return F.pad(folded, (0, query.shape[2] - folded.shape[1]))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Properties of a layer that decide its mask: part of the key of cached masks."""

    groups: int
    """Query heads per key head."""
    window: int | None = None
    table: int | None = None
    """Layer whose table of position biases is added; None = there is none."""
    source: bool = False
    """Whether the keys belong to the source."""


def _mask(
    plan: Plan, span: Span, block: Block, seen: _Seen
) -> Shaped[Tensor, "1 groups padded keys"]:
    """Return the folded, padded mask of a block, cached per forward and kind of layer
    and shared by the layers.

    It is boolean, or what is added to the scores.
    """
    folded = plan.masks.get((block.first, seen))
    if folded is None:
        where = block.position, block.count
        device = plan.rows.device
        if seen.source and span.source is not None:
            mask = span.source.visible(block.count, device)
        else:
            mask = span.visible(*where, seen.window, device)
        if seen.table is None:
            mask = mask.repeat(seen.groups, 1)
            folded = F.pad(mask, (0, 0, 0, -mask.shape[0] % ROWS), value=True)[
                None, None
            ]
        else:
            distances = span.distances(*where, device).clamp(min=0)
            bias = plan.biases[seen.table][:, distances]
            bias = bias.masked_fill(~mask, float("-inf"))
            folded = _fold(bias, bias.shape[0] // seen.groups)
        plan.masks[block.first, seen] = folded
    return folded


def bias_table(plan: Plan, module: Any, layer: int) -> int:
    """Return the layer whose table of biases this one uses: its own, or that of the
    last one before that has one.

    The biases of all distances of a forward are computed by the module's own code, up
    to a multiple of what the processor computes at once, so that their bits do not
    depend on the longest text.
    """
    if (
        getattr(module, "relative_attention_bias", None) is not None
        and layer not in plan.biases
    ):
        most = max(span.padded for span in plan.spans)
        biases = module.compute_bias(
            1, most, device=plan.rows.device, past_seen_tokens=most - 1
        )
        plan.biases[layer] = biases[0, :, 0].flip(-1)
    if not plan.biases:
        raise ModelError(
            f"cannot compute the position biases of layer {layer}: it has no table of "
            "them"
        )
    return max(plan.biases)


def _attended(
    query: Float[Tensor, "1 kv_heads padded dim"],
    key: Float[Tensor, "1 kv_heads keys dim"],
    value: Float[Tensor, "1 kv_heads keys value_dim"],
    mask: Shaped[Tensor, "1 groups padded keys"],
    scale: float,
    *,
    softcap: float | None,
    sinks: Float[Tensor, "kv_heads padded"] | None,
) -> Float[Tensor, "1 kv_heads padded value_dim"]:
    """Compute attention by torch's fused kernel, or without for scores it lacks."""
    if softcap is None and sinks is None and key.shape[-1] == value.shape[-1]:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale
        )
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    else:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[None, :, :, None]], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]].to(value.dtype)
    parts = zip(weights.split(KEYS, dim=-1), value.split(KEYS, dim=-2), strict=True)
    result = torch.zeros((), dtype=torch.float32)
    for part_weights, part_value in parts:
        result = result + (part_weights @ part_value).float()
    return result.to(value.dtype)
