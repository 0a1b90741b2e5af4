"""A tiny model of each GGUF family: architecture, config, the file's fields."""

import math

import numpy as np
import torch
import transformers as hf

from foreword.model.architectures import loader
from tiny_sizes import sizes

SIZES = sizes(64, 128, 4, 2, 2, vocab_size=96, max_position_embeddings=256)
HEAD = dict(head_dim=32)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
TEXT = torch.randint(96, (1, 200), generator=torch.Generator().manual_seed(5))
SPAN = torch.arange(16)
SHORT, LONG = (1.0 + SPAN / 32).tolist(), (2.0 + SPAN / 8).tolist()
LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3["original_max_position_embeddings"] = 8192
GEMMA = dict(query_pre_attn_scalar=32, sliding_window=16)
GEMMA_FIELDS = dict(attention__key_length=32, attention__sliding_window=16)
CAPS = dict(attn_logit_softcapping=20.0, final_logit_softcapping=10.0)
EXPERT_FIELDS = dict(expert_count=4, expert_used_count=2, expert_feed_forward_length=64)


def rope_of(kind: str, base: float = 10000.0, **more: object) -> dict[str, object]:
    return {"rope_type": kind, "rope_theta": base, **more}


def rope(kind: str, **more: object) -> dict[str, object]:
    """Return the option that gives a model rotary positions of a kind."""
    return dict(rope_parameters=rope_of(kind, **more))


def scaling(kind: str, factor: float, **more: object) -> dict[str, object]:
    """Return the fields of a file for positions that are scaled."""
    fields = {"type": kind, "factor": factor, **more}
    return {f"rope__scaling__{name}": value for name, value in fields.items()}


def frequencies(base: float, count: int, factor: float) -> np.ndarray:
    """What Llama 3's frequencies are divided by, as llama.cpp's converter writes."""
    lengths = 2 * math.pi * base ** (np.arange(count) / count)
    smooth = np.clip((8192 / lengths - 1) / 3, 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


FAMILIES: dict[str, tuple[str, hf.PreTrainedConfig, dict[str, object]]] = {
    "llama": ("llama", hf.LlamaConfig(**SIZES, **HEAD), dict(rope__dimension_count=32)),
    "llama, tied": (
        "llama",
        hf.LlamaConfig(**SIZES, **HEAD, tie_word_embeddings=True),
        dict(rope__dimension_count=32),
    ),
    "llama 3": (
        "llama",
        hf.LlamaConfig(**SIZES, **HEAD, **rope("llama3", factor=8.0, **LLAMA3)),
        dict(rope__dimension_count=32, rope_freqs=frequencies(10000.0, 16, 8.0)),
    ),
    "llama, linear": (
        "llama",
        hf.LlamaConfig(**SIZES, **HEAD, **rope("linear", factor=4.0)),
        dict(rope__dimension_count=32) | scaling("linear", 4.0),
    ),
    "qwen2": ("qwen2", hf.Qwen2Config(**SIZES), {}),
    "qwen2, yarn": (
        "qwen2",
        hf.Qwen2Config(
            **SIZES, **rope("yarn", factor=4.0, original_max_position_embeddings=64)
        ),
        scaling("yarn", 4.0, original_context_length=64),
    ),
    "qwen3": ("qwen3", hf.Qwen3Config(**SIZES, **HEAD), dict(attention__key_length=32)),
    "gemma2": (
        "gemma2",
        hf.Gemma2Config(**SIZES, **HEAD, **GEMMA, **CAPS),
        GEMMA_FIELDS | CAPS,
    ),
    "gemma3": (
        "gemma3",
        hf.Gemma3TextConfig(
            # the last one attends to the whole text
            **SIZES | dict(num_hidden_layers=6),
            **HEAD,
            **GEMMA,
            rope_parameters={
                "full_attention": rope_of("linear", 1e6, factor=8.0),
                "sliding_attention": rope_of("default"),
            },
        ),
        GEMMA_FIELDS | scaling("linear", 8.0),
    ),
    "phi3": (
        "phi3",
        hf.Phi3Config(**SIZES, pad_token_id=0, sliding_window=16),
        dict(attention__sliding_window=16),
    ),
    "phi3, partial": (
        "phi3",
        hf.Phi3Config(
            **SIZES, pad_token_id=0, **rope("default", partial_rotary_factor=0.75)
        ),
        dict(attention__sliding_window=0, rope__dimension_count=12),
    ),
    "phi3, long": (
        "phi3",
        hf.Phi3Config(
            **SIZES | dict(hidden_size=128),
            pad_token_id=0,
            sliding_window=None,
            original_max_position_embeddings=64,
            **rope(
                "longrope",
                short_factor=SHORT,
                long_factor=LONG,
                original_max_position_embeddings=64,
                partial_rotary_factor=1.0,
            ),
        ),
        dict(
            attention__sliding_window=0,
            rope__scaling__original_context_length=64,
            rope__scaling__attn_factor=math.sqrt(1 + math.log(4) / math.log(64)),
            rope_factors_long=np.array(LONG, dtype=np.float32),
            rope_factors_short=np.array(SHORT, dtype=np.float32),
        ),
    ),
    "qwen2moe": (
        "qwen2moe",
        hf.Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=96),
        EXPERT_FIELDS | dict(expert_shared_feed_forward_length=96),
    ),
    "qwen3moe": (
        "qwen3moe",
        hf.Qwen3MoeConfig(**SIZES, **HEAD, **EXPERTS, norm_topk_prob=True),
        EXPERT_FIELDS | dict(attention__key_length=32),
    ),
}


@torch.no_grad()
def random(config: hf.PreTrainedConfig) -> hf.PreTrainedModel:
    torch.manual_seed(1)
    model = loader(config).from_config(config).float().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(std=0.2)
        else:
            weight.add_(torch.randn_like(weight) * 0.1)
    return model
