"""Builds the config of a GGUF file, by the family of its architecture.

Names of fields: ggml-org/llama.cpp, gguf-py/gguf/constants.py.
"""

from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig

from foreword.errors import ModelError
from foreword.model.architectures import head_dim
from foreword.model.quantized.gguf_file import ARCHITECTURES, GgufFile

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "expert_used_count": "num_experts_per_tok",
    "expert_count": "num_experts",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
"""Names of fields, and of entries of a config."""
OTHERWISE = {
    "lfm2": {"rms_norm_eps": "norm_eps"},
    "gpt-oss": {"num_experts": "num_local_experts"},
}
"""Entries that the config of a family calls otherwise."""
ASSUMED = {
    "qwen3moe": {"norm_topk_prob": True},
    "lfm2": {"block_auto_adjust_ff_dim": False},
}
"""Entries that llama.cpp assumes, and transformers does not."""
EVERY = 4
"""Layers. The last of so many attends in Qwen3.5, where a file does not say it."""


def family_config(file: GgufFile) -> PreTrainedConfig:
    """Return the config of a file without its rotary positions and tokens.

    Raises ModelError for a setting that the model of transformers does not have.
    """
    field = file.field
    architecture = file.architecture
    called = OTHERWISE.get(architecture, {})
    assumed = ASSUMED.get(architecture, {})
    entries: dict[str, Any] = {
        "num_hidden_layers": layers(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **assumed,
    }
    for theirs, ours in SIZES.items():
        if (value := field(f"{{}}.{theirs}")) is not None:
            entries[called.get(ours, ours)] = value
    if architecture == "llama":  # it rotates whole heads
        entries.setdefault("head_dim", field("{}.rope.dimension_count"))
    heads = field("{}.attention.head_count_kv")
    most = max(heads) if isinstance(heads, list) else heads
    entries["num_key_value_heads"] = most
    if architecture == "lfm2":
        if field("{}.attention.sliding_window"):
            raise ModelError(
                f"cannot read {file.source}: its sliding window is not supported with "
                "this architecture. Use the same model in safetensors"
            )
        entries["layer_types"] = [
            "full_attention" if count else "conv" for count in heads
        ]
    if architecture in ("qwen35", "qwen35moe"):
        size = field("{}.ssm.inner_size")
        heads = entries["linear_num_value_heads"]
        entries["linear_value_head_dim"] = size // heads
        entries["layer_types"] = [
            "linear_attention" if recurrent else "full_attention"
            for recurrent in _recurrent(file)
        ]
    return AutoConfig.for_model(ARCHITECTURES[architecture], **entries)


def layers(file: GgufFile) -> int:
    """Return the number of layers of the language model; layers for multi-token
    prediction follow and are not counted.
    """
    return file.field("{}.block_count") - (file.field("{}.nextn_predict_layers") or 0)


def _recurrent(file: GgufFile) -> list[bool]:
    count = layers(file)
    flags = file.field("{}.attention.recurrent_layers")
    every = file.field("{}.full_attention_interval") or EVERY
    if isinstance(flags, list):
        return flags[:count]
    return [number % every != 0 for number in range(1, 1 + count)]


FIELDS = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""Fields of some families, and their names in a config, where it has them."""
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Fields of the tokens that end a text, a turn and a message."""
BY_HEADS = {"gemma2": 46, "gemma3": 62}
"""Layers of the models of a family that scale queries by their hidden size over their
heads (llama.cpp's rule).
"""
LOW = 1.0
HIGH = 4.0
ORIGINAL = 8192
"""Bounds and original context length of Llama 3's frequencies, which no file holds; the
same in all its versions.
"""
TOLERANCE = 1e-4
"""Relative. Largest difference between the frequencies of a file and of a config."""


def gguf_config(file: GgufFile) -> PreTrainedConfig:
    """Return the config of a file.

    Raises ModelError for a setting, or a kind of rotary positions, that is not
    supported.
    """
    field = file.field
    config = family_config(file)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config.architectures = [kind.__name__]
    config.dtype = torch.bfloat16
    config.vocab_size = file.tensors["token_embd.weight"].shape[1]
    ends = [field(f"tokenizer.ggml.{name}") for name in ENDS]
    known = dict.fromkeys(end for end in ends if end is not None)
    config.eos_token_id = list(known) or None
    config.bos_token_id = field("tokenizer.ggml.bos_token_id")
    config.pad_token_id = field("tokenizer.ggml.padding_token_id")
    for theirs, ours in FIELDS.items():
        value = field(f"{{}}.{theirs}")
        if value is not None and hasattr(config, ours):
            setattr(config, ours, value or None)
    if hasattr(config, "query_pre_attn_scalar"):
        scalar = config.head_dim
        if config.num_hidden_layers == BY_HEADS.get(file.architecture):
            scalar = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = scalar
    rope: dict[str, Any] = config.rope_parameters
    rope.get("full_attention", rope).update(_rope(file, config))
    return config


def _rope(
    file: GgufFile,
    config: PreTrainedConfig,
) -> dict[str, Any]:
    """Return a file's settings of rotary positions, under the names of transformers."""
    field = file.field
    kind = field("{}.rope.scaling.type") or "none"
    factor = field("{}.rope.scaling.factor")
    base = field("{}.rope.freq_base")
    read: dict[str, Any] = {} if base is None else {"rope_theta": base}
    size = head_dim(config)
    rotated = field("{}.rope.dimension_count") or size
    if rotated < size or "partial_rotary_factor" in config.rope_parameters:
        read["partial_rotary_factor"] = rotated / size
    if "rope_freqs.weight" in file.tensors:
        return read | _llama3(file, base or 10000.0)
    original = field("{}.rope.scaling.original_context_length")
    if "rope_factors_long.weight" in file.tensors:
        return read | {
            "rope_type": "longrope",
            "long_factor": file.values("rope_factors_long.weight"),
            "short_factor": file.values("rope_factors_short.weight"),
            "original_max_position_embeddings": original,
            "attention_factor": field("{}.rope.scaling.attn_factor"),
        }
    if kind == "linear":
        return read | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        for name in ("beta_fast", "beta_slow"):
            value = field(f"{{}}.rope.scaling.yarn_{name}")
            if value is not None:
                read[name] = value
        return read | {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    if kind != "none":
        raise _unsupported(file, f"of the kind {kind!r}")
    return read


def _llama3(file: GgufFile, base: float) -> dict[str, Any]:
    """Return the parameters of Llama 3 that give the frequencies of a file, each
    divided by a number it holds.
    """
    freqs = torch.tensor(file.values("rope_freqs.weight"))
    exponents = torch.arange(len(freqs)) / len(freqs)
    lengths = 2 * torch.pi * base**exponents
    factor = float(freqs.max())
    smooth = ((ORIGINAL / lengths - LOW) / (HIGH - LOW)).clamp(0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not torch.allclose(expected, freqs, rtol=TOLERANCE):
        raise _unsupported(file, "with other frequencies than Llama 3's")
    about = {
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL,
    }
    return {"rope_type": "llama3", "factor": factor, **about}


def _unsupported(file: GgufFile, what: str) -> ModelError:
    return ModelError(
        f"cannot read {file.source}: it has rotary positions {what}, which are not "
        "supported. Use the same model in safetensors"
    )
