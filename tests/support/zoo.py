"""Tiny random models of every kind that transformers loads as a causal model."""

import copy
import re
import warnings
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

VOCAB, LAYERS = 320, 4
_NAMES: tuple[tuple[float, str], ...] = (
    (VOCAB, "vocab_size vocab_size_per_layer_input"),
    (64, "hidden_size embedding_size n_embd d_model emb_dim word_embed_proj_dim"),
    (64, "attention_hidden_size lru_width"),
    (96, "intermediate_size n_inner d_inner ffn_dim dff ffn_hidden_size"),
    (96, "encoder_ffn_dim decoder_ffn_dim"),
    (LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers"),
    (LAYERS, "num_decoder_layers encoder_layers num_encoder_layers"),
    (4, "num_attention_heads n_head n_heads num_heads attention_heads"),
    (4, "encoder_attention_heads decoder_attention_heads num_decoder_attention_heads"),
    (2, "num_key_value_heads"),
    (16, "head_dim d_head hidden_size_per_layer_input attention_chunk_size"),
    (8, "rotary_dim"),
    (512, "max_position_embeddings n_positions n_ctx max_seq_len"),
    (12, "sliding_window attention_window_size"),
    (0.15, "initializer_range"),
    (0, "pad_token_id num_kv_shared_layers"),
    (1, "bos_token_id decoder_start_token_id"),
    (2, "eos_token_id"),
    # mixtures of experts
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (2, "num_experts_per_tok experts_per_token moe_topk moe_k"),
    (1, "n_shared_experts num_shared_experts moe_num_shared_experts"),
    (1, "n_group topk_group"),
    (1, "first_k_dense_replace num_dense_layers expert_layer_offset"),
    (2, "expert_layer_period"),
    (32, "moe_intermediate_size shared_expert_intermediate_size"),
    (32, "shared_intermediate_size expert_ffn_hidden_size"),
    # latent attention
    (24, "q_lora_rank"),
    (16, "kv_lora_rank qk_nope_head_dim v_head_dim index_head_dim"),
    (8, "qk_rope_head_dim index_topk"),
    (2, "index_n_heads"),
    # layers with a state
    (8, "state_size mamba_d_state mamba_n_heads mamba_num_heads ssm_state_size"),
    (8, "mamba_dt_rank chunk_size mamba_chunk_size"),
    (16, "mamba_d_head mamba_head_dim linear_key_head_dim linear_value_head_dim"),
    (2, "mamba_n_groups n_groups mamba_expand linear_num_key_heads attn_layer_period"),
    (4, "mamba_d_conv linear_num_value_heads"),
    (128, "mamba_d_ssm"),
    (1, "attn_layer_offset"),
)
"""A size, and what configs call it; encoders are causal only with is_decoder=True."""
SIZES: dict[str, Any] = {name: size for size, names in _NAMES for name in names.split()}
"""Set where a config has such a setting."""
_GLOBAL_LOCAL = [[["global", "local"], LAYERS // 2]]
_XLSTM = dict(hidden_size=64, num_heads=4, num_blocks=LAYERS, chunk_size=8)
_INDEXER = dict(n_heads=2, kv_heads=1, head_dim=16, budget=16, compress_ratio=4)
OWN: dict[str, dict[str, Any]] = {
    "gpt_neo": dict(attention_types=_GLOBAL_LOCAL, window_size=12),
    "mamba": dict(expand=2, time_step_rank=8),
    "falcon_mamba": dict(expand=2, time_step_rank=8),
    "mamba2": dict(num_heads=8, head_dim=16, expand=2),
    "rwkv": dict(attention_hidden_size=64, context_length=512),
    "dbrx": dict(
        ffn_config=dict(ffn_hidden_size=96, moe_num_experts=4, moe_top_k=2),
        attn_config=dict(kv_n_heads=2, rope_theta=10000.0, clip_qkv=8.0),
    ),
    "xlstm": dict(_XLSTM, mode="inference", qk_dim_factor=1.0),
    "zamba": dict(attention_hidden_size=128, mamba_dt_rank=8),
    "zamba2": dict(attention_hidden_size=128, n_mamba_heads=8),
    "qwen4_exp_text": dict(
        {f"indexer_{name}": size for name, size in _INDEXER.items()},
        ngram_vocab_size_base=1000,
    ),
    "granitemoehybrid": dict(layer_types=["mamba", "attention"] * 2),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 2),
    "longcat_flash": dict(head_dim=8),
    "zaya": dict(num_experts_per_tok=1),
    "gemma3n_text": dict(
        activation_sparsity_pattern=[0.0] * LAYERS, laurel_rank=8, intermediate_size=96
    ),
    "bamba": dict(attn_layer_indices=[1, 3]),
    "lfm2": dict(block_auto_adjust_ff_dim=False),
}
"""Settings of one kind."""
MOST = 15_000_000
"""Parameters; a kind that has more with these sizes has sizes of its own."""
EXPERTS = {name for name in SIZES if "experts" in name or name.startswith("moe_")}
"""Settings that only mixtures of experts have."""
STATES = {"linear_attention", "conv", "mamba", "recurrent", "conv_L_cache"}
"""Types of layers that keep a state, and a setting of such layers."""
LENGTHY = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")
LENGTHY += ("hybrid_override_pattern",)


def kinds() -> list[str]:
    """Return every model type of transformers' own, each class once."""
    found: dict[str, str] = {}
    for config in hf.MODEL_FOR_CAUSAL_LM_MAPPING:
        if not config.__module__.startswith("transformers.models."):
            continue
        model = hf.MODEL_FOR_CAUSAL_LM_MAPPING[config]
        for one in model if isinstance(model, tuple) else (model,):
            found.setdefault(one.__name__, config.model_type)
    return sorted(set(found.values()))


def same_class(kind: str) -> list[str]:
    """Return the other model types of the class that a kind stands for."""
    found = [
        config.model_type
        for config, model in _mapping().items()
        if model.__name__ == _mapping()[_config(kind)].__name__
    ]
    return sorted({*found} - {kind})


def family(kind: str) -> str:
    """Return how a kind is run: seq2seq, encoder, recurrent, experts or dense."""
    config = _config(kind)
    default = config()
    text = default.get_text_config()
    if getattr(default, "is_encoder_decoder", False):
        return "seq2seq"
    if config in hf.MODEL_FOR_MASKED_LM_MAPPING:
        return "encoder"
    words = {*re.findall(r"\w+", str(text.to_dict())), *type(text).attribute_map}
    if _mapping()[config]._is_stateful or STATES & words:
        return "recurrent"
    return "experts" if EXPERTS & words else "dense"


def _mapping() -> dict[type[PreTrainedConfig], type[PreTrainedModel]]:
    """Return the class of each config of transformers' own, the first of several."""
    found = hf.MODEL_FOR_CAUSAL_LM_MAPPING.items()
    return {
        config: model[0] if isinstance(model, tuple) else model
        for config, model in found
        if config.__module__.startswith("transformers.models.")
    }


def _config(kind: str) -> type[PreTrainedConfig]:
    return next(config for config in _mapping() if config.model_type == kind)


def config_of(kind: str) -> PreTrainedConfig:
    """A small config of this kind, or whatever the config raises."""
    default = _config(kind)()
    with_text = default.get_text_config()
    return _shrunk(type(with_text), OWN.get(kind) or OWN.get(with_text.model_type, {}))


def _shrunk(kind: type[PreTrainedConfig], own: dict[str, Any]) -> PreTrainedConfig:
    default = kind()
    known = set(default.to_dict()) | set(kind.attribute_map)
    sizes = {name: value for name, value in SIZES.items() if name in known}
    if "qk_rope_head_dim" in sizes:
        sizes.pop("head_dim", None)  # it follows from these
        sizes["num_key_value_heads"] = 4
    for short, long in kind.attribute_map.items():  # one name for one setting
        if short in sizes and long in sizes:
            del sizes[short]
    fixed = any(
        isinstance(getattr(kind, name, None), property) or name in own
        for name in LENGTHY
    )
    for name in () if fixed else LENGTHY:
        pattern = getattr(default, name, None)
        if name in known and isinstance(pattern, list) and pattern:
            sizes[name] = _sample(pattern)
    return kind(**(sizes | own))


def _sample(pattern: list[Any]) -> list[Any]:
    """So many layers that every sort of them is there."""
    sorts = list(dict.fromkeys(pattern))
    return (sorts * LAYERS)[:LAYERS] if len(sorts) <= LAYERS else sorts[:LAYERS]


def build(kind: str) -> PreTrainedModel:
    """A model of this kind: float32, CPU, eval mode; every part changes its scores."""
    config = config_of(kind)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(3)
        with torch.device("meta"):
            weightless = hf.AutoModelForCausalLM.from_config(config)
            count = sum(part.numel() for part in weightless.parameters())
        if count > MOST:
            raise ValueError(f"{count:,} parameters even with the small sizes")
        model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        matter(model)
    for settings in (model.config, model.generation_config):
        if settings is not None:
            settings.eos_token_id = None
    return model


def matter(model: PreTrainedModel) -> None:
    """Random weights under which states, experts and everything else matter."""
    with torch.no_grad():
        for name, held in model.named_parameters():
            if held.dim() == 1 or "norm" in name:
                held.add_(torch.randn_like(held), alpha=0.1)
            elif held.dim() >= 2 and held.std() < 0.05:
                nn.init.normal_(held, std=0.1)


def twin(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same in another dtype."""
    return copy.deepcopy(model).to(dtype).eval()
