"""Config of a GGUF file by the family of its architecture.

Names of fields: ggml-org/llama.cpp, gguf-py/gguf/constants.py.
"""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from foreword.errors import ModelError
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
