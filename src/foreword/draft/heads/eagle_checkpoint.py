"""EAGLE-3 checkpoints: the layout of vLLM and SGLang, which Foreword uses too, and that
of speculators.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.draft.heads.export_layout import (
    FOLDER,
    SGLANG,
    SPECULATORS,
    VERSION,
    VLLM,
    ExportLayout,
    proposals,
    sglang,
    unsupported_engine,
    vllm,
)
from foreword.draft.heads.loading import checkpoint_of, saved
from foreword.errors import ModelError, words
from foreword.model.head_layers import SIDES, HFConfig, LlamaConfig
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint

ARCHITECTURE = "LlamaForCausalLMEagle3"
KIND, DRAFT_TOKENS = "eagle3", 5
"""Method name in other engines, and the draft tokens per round that their
configs get.
"""
UNSUPPORTED = ("norm_before_fc", "fc_norm")
"""Config flags of heads that Foreword cannot run."""
IDS = "eagle_aux_hidden_state_layer_ids"
OUTER = (
    "draft_vocab_size",
    "target_hidden_size",
    "tie_word_embeddings",
    "norm_before_residual",
    "norm_output",
    "torch_dtype",
)
"""Config keys that speculators keeps outside the layer config."""
EMBEDDINGS = "embed_tokens.weight"
TENSORS = (
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
    "{layer}.input_layernorm.weight",
    "{layer}.hidden_norm.weight",
    "{layer}.post_attention_layernorm.weight",
    "{layer}.self_attn.q_proj.weight",
    "{layer}.self_attn.k_proj.weight",
    "{layer}.self_attn.v_proj.weight",
    "{layer}.self_attn.o_proj.weight",
    "{layer}.mlp.gate_proj.weight",
    "{layer}.mlp.up_proj.weight",
    "{layer}.mlp.down_proj.weight",
)
"""Tensors that every engine requires."""


def default_states(layers: int) -> tuple[int, ...]:
    """Return the hidden states that engines use by default: early, middle, late
    (EAGLE-3's code).
    """
    return 2, layers // 2, layers - 3


def states_of(checkpoint: Checkpoint, layers: int) -> Checkpoint:
    """Return the checkpoint with default hidden states filled in where its config has
    none.

    `layers` is the target's layer count. Configs of other head kinds always list their
    states.
    """
    if ARCHITECTURE not in (
        checkpoint.config.get("architectures") or ()
    ) or checkpoint.config.get(IDS):
        return checkpoint
    return Checkpoint(
        checkpoint.source,
        {**checkpoint.config, IDS: list(default_states(layers))},
        checkpoint.tensors,
    )


def load(source: Source, target: HFConfig) -> EagleHead:
    """Load a head in float32 on the CPU.

    Raises InvalidRequest unless `source` is a path or hub id, ModelError where it is
    incomplete or for another target.
    """
    return _head(checkpoint_of(source), target)


def _head(checkpoint: Checkpoint, target: HFConfig) -> EagleHead:
    source, llama = checkpoint.source, _llama(checkpoint)
    about, name = target.get_text_config(), target.name_or_path or "the target"
    tensors = {_flat_name(key): tensor for key, tensor in checkpoint.tensors.items()}
    states = tuple(checkpoint.config.get(IDS) or default_states(layer_count(about)))
    fused = _tensor(checkpoint, tensors, "fc.weight").shape[1]
    if fused != len(states) * about.hidden_size:
        raise ModelError(
            f"cannot use {source} with {name}: it reads {fused} features, and the "
            f"target has {len(states)} times {about.hidden_size}. Choose a head "
            "trained for this target"
        )
    if llama.vocab_size != about.vocab_size:
        raise ModelError(
            f"cannot use {source} with {name}: it has a vocabulary of "
            f"{llama.vocab_size} tokens, and the target has {about.vocab_size}. Choose "
            "a head trained for this target"
        )
    embeds = "embed_tokens.weight" in tensors
    if not embeds and llama.hidden_size != about.hidden_size:
        raise ModelError(
            f"cannot use {source} with {name}: it has no embeddings of its own, and "
            f"its hidden size {llama.hidden_size} differs from the target's "
            f"{about.hidden_size}. Choose a head trained for this target"
        )
    draft_vocab = _tensor(checkpoint, tensors, "lm_head.weight").shape[0]
    config = EagleConfig(
        llama=llama,
        states=states,
        target_hidden=about.hidden_size,
        draft_vocab=draft_vocab,
        embeds=embeds,
        norm_before_residual=bool(checkpoint.config.get("norm_before_residual", False)),
        norm_output=bool(checkpoint.config.get("norm_output", False)),
    )
    if draft_vocab == llama.vocab_size:  # such a head may omit the trivial mapping
        offsets = torch.zeros(draft_vocab, dtype=torch.int64)
        every = torch.ones(draft_vocab, dtype=torch.bool)
        tensors: dict[str, Tensor] = {"d2t": offsets, "t2d": every, **tensors}
    head = Checkpoint(checkpoint.source, checkpoint.config, tensors).filled(
        partial(EagleHead, config)
    )
    if not bool(((head.tokens >= 0) & (head.tokens < llama.vocab_size)).all()):
        raise ModelError(
            f"cannot load {source}: d2t points outside the vocabulary of "
            f"{llama.vocab_size} tokens. Download it again"
        )
    return head.float()


def dump(head: EagleHead, dtype: torch.dtype, target: HFConfig) -> Checkpoint:
    """Return the head in the layout of vLLM and SGLang, with floating-point tensors in
    `dtype`.
    """
    config, llama = head.config, head.config.llama
    text = target.get_text_config()
    rope = dict(llama.rope_parameters or {})
    about: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": llama.hidden_size,
        "intermediate_size": llama.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": llama.num_attention_heads,
        "num_key_value_heads": llama.num_key_value_heads,
        "head_dim": llama.head_dim,
        "hidden_act": llama.hidden_act,
        "rms_norm_eps": llama.rms_norm_eps,
        "max_position_embeddings": llama.max_position_embeddings,
        # transformers 5 reads rope_parameters, older versions the other two.
        "rope_parameters": rope,
        "rope_theta": rope.get("rope_theta", 10000.0),
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
        "vocab_size": llama.vocab_size,
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "tie_word_embeddings": False,
        "attention_bias": llama.attention_bias,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
    }
    if config.states != default_states(layer_count(text)):
        # vLLM numbers states as transformers does; SGLang adds one to the numbers in
        # eagle_config.
        about |= {
            IDS: list(config.states),
            "eagle_config": {IDS: [state - 1 for state in config.states]},
        }
    return saved(head, about, dtype, "torch_dtype")


def pack(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return a head for another engine.

    Raises ModelError where the head is for another target, InvalidRequest where the
    engine does not support it.
    """
    head = _head(checkpoint, target)
    layout = dump(head, checkpoint.tensors["fc.weight"].dtype, target)
    if engine == SPECULATORS:
        layout = _speculators(layout, head, target)
    elif engine == SGLANG and head.config.norm_before_residual:
        raise unsupported_engine(
            f"{checkpoint.source}, which has norm_before_residual",
            engine,
            (VLLM, SPECULATORS),
        )
    first = "layers.0" if engine == SPECULATORS else "midlayer"
    start = {
        VLLM: vllm(KIND, DRAFT_TOKENS),
        SGLANG: sglang(KIND.upper()),
        SPECULATORS: ("vllm", "serve", FOLDER),
    }
    names = {name.format(layer=first) for name in TENSORS} | (
        {EMBEDDINGS} if head.embed_tokens is not None else set()
    )
    return ExportLayout(write=layout.write, names=frozenset(names), start=start[engine])


def _speculators(flat: Checkpoint, head: EagleHead, target: HFConfig) -> Checkpoint:
    """Return the head in the layout of the speculators library."""
    inner = {
        name: value
        for name, value in flat.config.items()
        if name not in ("architectures", *OUTER)
    }
    about = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": KIND,
        "speculators_version": VERSION,
        "speculators_config": proposals(KIND, DRAFT_TOKENS, target),
        "transformer_layer_config": inner,
        **{name: flat.config[name] for name in OUTER if name in flat.config},
        "norm_before_fc": False,
        "fc_norm": False,
        "embed_requires_grad": False,
        IDS: list(head.config.states),
    }
    tensors = {
        name.replace("midlayer.", "layers.0.", 1): tensor
        for name, tensor in flat.tensors.items()
    }
    return Checkpoint("", about, tensors)


def _llama(checkpoint: Checkpoint) -> LlamaConfig:
    config = checkpoint.config
    speculators = config.get("speculators_model_type") == KIND
    if not speculators and ARCHITECTURE not in (config.get("architectures") or ()):
        kind = (
            config.get("speculators_model_type")
            or config.get("architectures")
            or config.get("model_type")
        )
        raise ModelError(
            f"cannot load {checkpoint.source} as an EAGLE-3 head: its config names "
            f"{kind!r}, not {ARCHITECTURE!r}. Choose an EAGLE-3 head"
        )
    inner: Mapping[str, Any] = (
        config.get("transformer_layer_config", {}) if speculators else config
    )
    if inner.get("model_type", "llama") != "llama":
        raise ModelError(
            f"cannot load {checkpoint.source}: its layer type {inner['model_type']!r} "
            "is not supported. Choose a head with a llama layer"
        )
    unsupported = [name for name in UNSUPPORTED if config.get(name)]
    if unsupported or inner.get("num_hidden_layers", 1) != 1:
        raise ModelError(
            f"cannot load {checkpoint.source}: it uses "
            f"{', '.join(unsupported) or 'several layers'}, which is not supported. "
            "Choose another head"
        )
    sizes = {
        name: value
        for name, value in inner.items()
        if name not in ("architectures", "model_type", "torch_dtype")
    }
    checkpoint.check_sides({name: sizes.get(name) for name in SIDES})
    try:
        return LlamaConfig(**sizes)
    except Exception as error:
        raise ModelError(
            f"cannot load {checkpoint.source}: its config.json describes no layer: "
            f"{words(error)}. Correct config.json, or download both again"
        ) from error


def _flat_name(name: str) -> str:
    return (
        name.replace("layers.0.", "midlayer.", 1)
        if name.startswith("layers.0.")
        else name
    )


def _tensor(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors or tensors[name].dim() != 2:
        raise ModelError(
            f"cannot load {checkpoint.source} as an EAGLE-3 head: it lacks {name}, or "
            "it is not a matrix. Download it again, or choose another"
        )
    return tensors[name]
