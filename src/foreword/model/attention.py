"""The attention function that Hugging Face models call: reads and writes our pool under the plan of this forward.

Knows tensors and plans; knows nothing about drafting or rules. A model's own code is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface

from foreword.errors import ModelError
from foreword.model.plan import Plan, Span

NAME = "foreword"
ROWS = 16
"""Query rows are padded to multiples of this: with whole pages of keys, a row's bits do not depend on its company."""
KEYS = 128
"""Keys in one product of weights and values: of more, libraries sum in an order that depends on the number of rows."""
BLOCK = 96
"""Query positions per call; torch's CPU kernel changes its tiling, and so its rounding, at 192 rows."""


def attend(
    module: nn.Module,
    query: Float[Tensor, "1 heads rows dim"],
    key: Float[Tensor, "1 kv_heads rows dim"],
    value: Float[Tensor, "1 kv_heads rows value_dim"],
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    plan: Plan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Float[Tensor, "1 rows heads value_dim"], None]:
    """Attention of one layer for one packed forward, in the signature of transformers' AttentionInterface.

    Writes the new keys and values into the pool, then attends span by span, so that a sequence's result never depends
    on the sequences beside it. Rows that belong to no span (padding of the forward) give zero.
    """
    if plan is None:
        raise ModelError(
            "this model was loaded by Foreword and reads through its pool; use foreword.LLM, or call "
            "model.set_attn_implementation('sdpa') before using it elsewhere"
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    plan.asked[layer] = sliding_window
    keys, values = plan.pool.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), plan.rows)
    heads, kv_heads = query.shape[1], key.shape[1]
    out = value.new_zeros(1, query.shape[2], heads, value.shape[-1])
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    fused = softcap is None and sinks is None and key.shape[-1] == value.shape[-1]
    for span in plan.spans:
        held = slice(span.extent.start, span.extent.start + span.padded)
        k, v = keys[held].transpose(0, 1)[None], values[held].transpose(0, 1)[None]
        for start in range(span.start, span.stop, BLOCK):
            stop = min(start + BLOCK, span.stop)
            q = _fold(query[0, :, start:stop], kv_heads)
            mask = _mask(plan, span, (start, stop), sliding_window, heads // kv_heads)
            if fused:
                result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            else:
                result = _eager(q, k, v, mask, scale, _Extras(softcap, _fold_sinks(sinks, q, stop - start)))
            out[0, start:stop] = _unfold(result, heads, stop - start)
    return out, None


AttentionInterface.register(NAME, attend)


def _fold(query: Float[Tensor, "heads rows dim"], kv_heads: int) -> Float[Tensor, "1 kv_heads padded dim"]:
    """Query heads that share a key head become rows of one product; rows are padded to a multiple of ROWS."""
    heads, rows, dim = query.shape
    folded = query.reshape(1, kv_heads, heads // kv_heads * rows, dim)
    return F.pad(folded, (0, 0, 0, -folded.shape[2] % ROWS))


def _unfold(result: Float[Tensor, "1 kv_heads padded dim"], heads: int, rows: int) -> Float[Tensor, "rows heads dim"]:
    groups = heads // result.shape[1]
    return result[0, :, : groups * rows].reshape(heads, rows, -1).transpose(0, 1)


def _fold_sinks(
    sinks: Tensor | None, query: Float[Tensor, "1 kv_heads padded dim"], rows: int
) -> Float[Tensor, "kv_heads padded"] | None:
    if sinks is None:
        return None
    folded = sinks.reshape(query.shape[1], -1).repeat_interleave(rows, dim=1)
    return F.pad(folded, (0, query.shape[2] - folded.shape[1]))


def _mask(
    plan: Plan, span: Span, block: tuple[int, int], window: int | None, groups: int
) -> Bool[Tensor, "1 1 padded keys"]:
    """The folded, padded mask of a block; made once per forward and window, shared by the layers."""
    found = plan.masks.get((block[0], window, groups))
    if found is None:
        mask = span.visible(window, plan.rows.device)[block[0] - span.start : block[1] - span.start].repeat(groups, 1)
        found = F.pad(mask, (0, 0, 0, -mask.shape[0] % ROWS), value=True)[None, None]
        plan.masks[block[0], window, groups] = found
    return found


@dataclass(frozen=True, slots=True)
class _Extras:
    """What some models add to attention."""

    softcap: float | None
    sinks: Float[Tensor, "kv_heads padded"] | None


def _eager(
    query: Float[Tensor, "1 kv_heads padded dim"],
    key: Float[Tensor, "1 kv_heads keys dim"],
    value: Float[Tensor, "1 kv_heads keys value_dim"],
    mask: Bool[Tensor, "1 1 padded keys"],
    scale: float,
    extras: _Extras,
) -> Float[Tensor, "1 kv_heads padded value_dim"]:
    """Attention written out, for what torch's fused kernel cannot do: soft-capped scores, sinks, another value size."""
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if extras.softcap is not None:
        scores = extras.softcap * torch.tanh(scores / extras.softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if extras.sinks is not None:
        scores = torch.cat([scores, extras.sinks.float()[None, :, :, None]], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]].to(value.dtype)
    parts = (w @ v for w, v in zip(weights.split(KEYS, dim=-1), value.split(KEYS, dim=-2), strict=True))
    return sum((part.float() for part in parts), torch.zeros(())).to(value.dtype)
