"""Inflation of a Llama: a model with the answers of a small one and the cost of a large
one, to measure speed with.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
)

from foreword.errors import ModelError


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama. The vocabulary stays that of the inflated model."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    @property
    def group(self) -> int:
        """Query heads that read one kv head."""
        return self.heads // self.kv_heads


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "llama-110m",
            hidden=768,
            layers=12,
            heads=12,
            kv_heads=12,
            head_dim=64,
            intermediate=2048,
        ),
        Shape(
            "llama-350m",
            hidden=1024,
            layers=24,
            heads=16,
            kv_heads=8,
            head_dim=64,
            intermediate=2816,
        ),
        Shape(
            "llama-1b",
            hidden=2048,
            layers=16,
            heads=32,
            kv_heads=8,
            head_dim=64,
            intermediate=8192,
        ),
        Shape(
            "llama-8b",
            hidden=4096,
            layers=32,
            heads=64,
            kv_heads=16,
            head_dim=64,
            intermediate=14336,
        ),
    )
}
"""In place of heads of 128 these shapes have twice as many of 64: matrices and cache
keep their sizes.
"""


def inflate(
    model: LlamaForCausalLM, shape: Shape, *, seed: int = 0, context: int = 0
) -> LlamaForCausalLM:
    """Enlarge `model` to `shape` without changing what it computes.

    Matrices that read the residual stream (q, k, v, gate, up) are padded with random
    numbers. Matrices that write to it (embedding, o, down) are padded with zeros, and
    layers are added whose o and down are zero, as in Net2Net (Chen, Goodfellow, Shlens
    2015) and LLaMA Pro's block expansion (Wu et al. 2024). So the added hidden channels
    are exactly 0, and RMSNorm over D channels instead of d is undone by weight * sqrt(d
    / D) and eps * d / D.

    Logits are equal up to rounding in float32. In bfloat16 the norm weights are exact
    only where D / d is a power of 4; elsewhere near-ties differ about as often as
    between bfloat16 and float32. The added layers, all at the end, add 0: never use the
    result to measure a method that skips layers or exits early.

    Args:
        model: the small model, without biases; it is only read.
        shape: at least as large as the model in every direction, with the same
            head_dim.
        seed: seed of the random padding, on which no logit depends.
        context: minimum context in tokens. Beyond the model's own the output is
            meaningless, but its cost is valid.

    Returns: a new model in the dtype, on the device and in the mode of `model`, the
    vocabulary and any tying unchanged. The only large allocation is that of its own
    weights.

    Raises ModelError when the model has biases or does not fit into the shape.
    """
    small = shape_of(model.config)
    _check(model.config, small, shape)
    large = _random(model, shape, seed, context)
    with torch.no_grad():
        _write(large.model.embed_tokens, model.model.embed_tokens.weight)
        _scale(large.model.norm, model.model.norm)
        if not model.config.tie_word_embeddings:
            large.lm_head.weight[:, : small.hidden] = model.lm_head.weight
        for new, old in zip_longest(_layers(large), _layers(model)):
            _fill_layer(new, old, small, shape)
    return large


def query_slots(
    small: Shape, large: Shape
) -> tuple[Int[Tensor, "small_heads"], Int[Tensor, "copies"]]:
    """Return where the heads of `small` go; kv head j serves the query heads j * group
    to (j + 1) * group - 1.

    A kv head is copied as often as its query heads need when the new groups are smaller
    than the old ones.

    Returns: for each old query head its new index; for each new kv head, from 0 on, the
    old one it copies (both int64).
    """
    copies = math.ceil(small.group / large.group)
    heads = torch.arange(small.heads)
    kv, index = heads // small.group, heads % small.group
    slots = (kv * copies + index // large.group) * large.group + index % large.group
    return slots, torch.arange(small.kv_heads).repeat_interleave(copies)


def shape_of(config: LlamaConfig) -> Shape:
    """Return the sizes of a config, with its defaults for missing ones."""
    return Shape(
        name="small",
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
    )


def _layers(model: LlamaForCausalLM) -> list[LlamaDecoderLayer]:
    return [cast(LlamaDecoderLayer, layer) for layer in model.model.layers]


def _check(config: LlamaConfig, small: Shape, large: Shape) -> None:
    if config.attention_bias or config.mlp_bias:
        raise ModelError(
            "cannot inflate a Llama with biases: use a checkpoint without "
            "attention_bias and mlp_bias"
        )
    reason = next(_misfits(small, large), None)
    if reason is not None:
        raise ModelError(f"cannot inflate to {large.name}: {reason}")


def _misfits(small: Shape, large: Shape) -> Iterator[str]:
    """Yield why a model of one shape does not fit into another."""
    if small.head_dim != large.head_dim:
        yield (
            f"head_dim must stay {small.head_dim}, got {large.head_dim}. Change the "
            "heads instead"
        )
    if large.heads % large.kv_heads:
        yield (
            f"heads ({large.heads}) must be a multiple of kv_heads ({large.kv_heads})"
        )
    if large.hidden % large.heads:
        yield f"hidden ({large.hidden}) must be a multiple of heads ({large.heads})"
    for size in ("hidden", "layers", "intermediate"):
        least, new = getattr(small, size), getattr(large, size)
        if new < least:
            yield f"{size} must be at least {least}, got {new}"
    needed = len(query_slots(small, large)[1])
    if large.kv_heads < needed:
        yield (
            f"kv_heads must be at least {needed} with this many heads, got "
            f"{large.kv_heads}"
        )


def _random(
    model: LlamaForCausalLM, shape: Shape, seed: int, context: int
) -> LlamaForCausalLM:
    """Return a randomly initialised model of the new shape; random state is kept."""
    config = copy.deepcopy(model.config)
    config.hidden_size = shape.hidden
    config.intermediate_size = shape.intermediate
    config.head_dim = shape.head_dim
    config.num_hidden_layers, config.num_attention_heads = shape.layers, shape.heads
    config.num_key_value_heads = shape.kv_heads
    config.max_position_embeddings = max(config.max_position_embeddings, context)
    config.rms_norm_eps = (
        model.config.rms_norm_eps * model.config.hidden_size / shape.hidden
    )
    config.inflated = True  # a loader lets its zeros pass
    elsewhere = [model.device] if model.device.type == "cuda" else []
    # built on its device, never on the CPU
    with torch.random.fork_rng(devices=elsewhere), model.device:
        torch.default_generator.manual_seed(seed)
        for device in elsewhere:
            torch.cuda.default_generators[device.index].manual_seed(seed)
        large = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    large.generation_config = copy.deepcopy(model.generation_config)
    return large.train(model.training)


def _fill_layer(
    new: LlamaDecoderLayer, old: LlamaDecoderLayer | None, small: Shape, large: Shape
) -> None:
    """Copy `old` into the corner of `new`; None = a layer at full cost that adds 0."""
    if old is None:
        nn.init.zeros_(new.self_attn.o_proj.weight)
        nn.init.zeros_(new.mlp.down_proj.weight)
        return
    _scale(new.input_layernorm, old.input_layernorm)
    _scale(new.post_attention_layernorm, old.post_attention_layernorm)
    _fill_attention(new.self_attn, old.self_attn, small, large)
    _fill_mlp(new.mlp, old.mlp)


def _fill_attention(
    new: LlamaAttention, old: LlamaAttention, small: Shape, large: Shape
) -> None:
    slots, sources = query_slots(small, large)
    query = rows_of(slots, small.head_dim).to(old.q_proj.weight.device)
    source = rows_of(sources, small.head_dim).to(query.device)
    new.q_proj.weight[query, : small.hidden] = old.q_proj.weight
    new.k_proj.weight[: len(source), : small.hidden] = old.k_proj.weight[source]
    new.v_proj.weight[: len(source), : small.hidden] = old.v_proj.weight[source]
    nn.init.zeros_(new.o_proj.weight)
    new.o_proj.weight[: small.hidden, query] = old.o_proj.weight


def _fill_mlp(new: LlamaMLP, old: LlamaMLP) -> None:
    inner, hidden = old.gate_proj.weight.shape
    new.gate_proj.weight[:inner, :hidden] = old.gate_proj.weight
    new.up_proj.weight[:inner, :hidden] = old.up_proj.weight
    _write(new.down_proj, old.down_proj.weight)


def _write(new: nn.Linear | nn.Embedding, old: Tensor) -> None:
    """Fill `new` with zeros and copy `old` into its upper left corner."""
    nn.init.zeros_(new.weight)
    new.weight[: old.shape[0], : old.shape[1]] = old


def _scale(new: LlamaRMSNorm, old: LlamaRMSNorm) -> None:
    """Undo that added zero channels shrink the root mean square by sqrt(d / D)."""
    channels = len(old.weight)
    factor = math.sqrt(channels / len(new.weight))
    new.weight[:channels] = (old.weight.float() * factor).to(new.weight.dtype)


def rows_of(heads: Int[Tensor, "head"], head_dim: int) -> Int[Tensor, "row"]:
    """Return the indices of these heads' rows in a projection, in order of heads."""
    return (heads[:, None] * head_dim + torch.arange(head_dim)).flatten()
