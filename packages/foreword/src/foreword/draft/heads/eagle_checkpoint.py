"""EAGLE-3 checkpoints as they are read, and as they are written: in the layout of vLLM
and SGLang, which Foreword uses too, or that of speculators.

`eagle_published.py` has the layouts that are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.draft.heads.eagle_published import (
    ARCHITECTURE,
    DRAFT_VOCAB,
    EMBEDDINGS,
    ENGINE,
    FLAGS,
    IDS,
    KIND,
    LAYER_TYPES,
    LM_HEAD,
    SLIDING,
    default_states,
    flags,
    has_head_norms,
    layer_config,
    named,
    states,
    window,
)
from foreword.draft.heads.export_layout import (
    SGLANG,
    SPECULATORS,
    VERSION,
    VLLM,
    ExportLayout,
    command,
    proposals,
    unsupported_engine,
)
from foreword.draft.heads.loading import check_tokens, checkpoint_of, head_dtype, saved
from foreword.errors import ModelError
from foreword.model.head_layers import HFConfig, as_config
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint

DRAFT_TOKENS = 5
"""Draft tokens per round that configs for other engines get."""
OUTER = (
    "draft_vocab_size",
    "target_hidden_size",
    "tie_word_embeddings",
    *FLAGS,
    "torch_dtype",
)
"""Config keys that speculators keeps outside the layer config."""
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
HEAD_NORMS = tuple(f"{{layer}}.self_attn.{part}_norm.weight" for part in "qk")


def states_of(checkpoint: Checkpoint, layers: int) -> Checkpoint:
    """Return the checkpoint with default hidden states filled in where its config has
    none.

    `layers` is the target's layer count. Configs of other head kinds always list their
    states.
    """
    if ARCHITECTURE not in (checkpoint.config.get("architectures") or ()):
        return checkpoint
    return Checkpoint(
        checkpoint.source,
        {**checkpoint.config, IDS: list(states(checkpoint, layers))},
        checkpoint.tensors,
    )


def load(source: Source, target: HFConfig) -> EagleHead:
    """Load a head in float32 on the CPU.

    Raises InvalidRequest unless `source` is a path or hub id, ModelError where it is
    incomplete or for another target.
    """
    return _head(checkpoint_of(source), target)


def _head(checkpoint: Checkpoint, target: HFConfig) -> EagleHead:
    llama, about = layer_config(checkpoint), target.get_text_config()
    tensors = named(checkpoint, llama.vocab_size)
    config = EagleConfig(
        llama=llama,
        states=states(checkpoint, layer_count(about)),
        target_hidden=about.hidden_size,
        draft_vocab=_matrix(checkpoint, tensors, LM_HEAD).shape[0],
        embeds=EMBEDDINGS in tensors,
        head_norms=has_head_norms(checkpoint, tensors),
        window=window(checkpoint),
        **flags(checkpoint),
    )
    fused = _matrix(checkpoint, tensors, "fc.weight").shape[1]
    _check_target(checkpoint.source, config, fused, target)
    _check_vocabulary(checkpoint, config)
    head = Checkpoint(checkpoint.source, checkpoint.config, tensors).filled(
        partial(EagleHead, config)
    )
    check_tokens(checkpoint.source, head.tokens, llama.vocab_size)
    return head.float()


def _check_target(
    source: str, config: EagleConfig, fused: int, target: HFConfig
) -> None:
    """Raise ModelError where a head was trained for a target of other sizes; `fused`
    is the number of features that it reads.
    """
    llama, about = config.llama, target.get_text_config()
    name, fix = target.name_or_path or "the target", "Choose a head trained for it"
    if fused != len(config.states) * about.hidden_size:
        raise ModelError(
            f"cannot use {source} with {name}: it reads {fused} features, and the "
            f"target has {len(config.states)} times {about.hidden_size}. {fix}"
        )
    if llama.vocab_size != about.vocab_size:
        raise ModelError(
            f"cannot use {source} with {name}: it has a vocabulary of "
            f"{llama.vocab_size} tokens, and the target has {about.vocab_size}. {fix}"
        )
    if not config.embeds and llama.hidden_size != about.hidden_size:
        raise ModelError(
            f"cannot use {source} with {name}: it has no embeddings of its own, and "
            f"its hidden size {llama.hidden_size} differs from the target's "
            f"{about.hidden_size}. {fix}"
        )


def _check_vocabulary(checkpoint: Checkpoint, config: EagleConfig) -> None:
    """Raise ModelError where the LM head is not of the size that config.json names."""
    listed = checkpoint.config.get(DRAFT_VOCAB)
    if listed not in (None, config.draft_vocab):
        raise ModelError(
            f"cannot load {checkpoint.source}: {DRAFT_VOCAB} in its config.json is "
            f"{listed}, and its {LM_HEAD} has {config.draft_vocab} rows. Correct "
            "config.json, or download both again"
        )


def dump(head: EagleHead, dtype: torch.dtype, target: HFConfig) -> Checkpoint:
    """Return the head in the layout of vLLM and SGLang, with floating-point tensors in
    `dtype`.
    """
    config = head.config
    text = target.get_text_config()
    about: dict[str, Any] = {
        **as_config(config.llama),
        "architectures": [ARCHITECTURE],
        "model_type": LAYER_TYPES[config.head_norms],
        "num_hidden_layers": 1,
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "tie_word_embeddings": False,
        **{name: getattr(config, name) for name in FLAGS},
    }
    if about["rope_scaling"]:
        about["rope_scaling"] = about["rope_parameters"]
    if config.window is not None:
        about |= {"layer_types": [SLIDING], "sliding_window": config.window}
    if config.states != default_states(layer_count(text)):
        # vLLM numbers states as transformers does; SGLang adds one to the numbers in
        # eagle_config.
        about |= {
            IDS: list(config.states),
            ENGINE: {IDS: [state - 1 for state in config.states]},
        }
    return saved(head, about, dtype, "torch_dtype")


def pack(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return a head for another engine.

    Raises ModelError where the head is for another target, InvalidRequest where the
    engine does not support it.
    """
    head = _head(checkpoint, target)
    _check_engine(checkpoint.source, head.config, engine)
    layout = dump(head, head_dtype(checkpoint), target)
    if engine == SPECULATORS:
        layout = _speculators(layout, head, target)
    first = "layers.0" if engine == SPECULATORS else "midlayer"
    start = command(engine, KIND, DRAFT_TOKENS)
    names = {name.format(layer=first) for name in (*TENSORS, *_parts(head.config))}
    return ExportLayout(write=layout.write, names=frozenset(names), start=start)


def _parts(config: EagleConfig) -> list[str]:
    """Return the tensors that a head has beside TENSORS."""
    norms = [f"fc_norm.{place}.weight" for place in range(len(config.states))]
    biases = [f"{{layer}}.self_attn.{part}_proj.bias" for part in "qkvo"]
    linear = [f"{{layer}}.mlp.{part}_proj.bias" for part in ("gate", "up", "down")]
    return [
        *([EMBEDDINGS] if config.embeds else ()),
        *(["input_norm.weight"] if config.norm_before_fc else ()),
        *(norms if config.fc_norm else ()),
        *(HEAD_NORMS if config.head_norms else ()),
        *(biases if config.llama.attention_bias else ()),
        *(linear if config.llama.mlp_bias else ()),
    ]


def _check_engine(source: str, config: EagleConfig, engine: str) -> None:
    """Raise InvalidRequest where an engine would compute something else."""
    qwen = {"norms over queries and keys": config.head_norms}
    window = {"a sliding window": config.window is not None}
    flags = {name: getattr(config, name) for name in FLAGS[:3]}
    biases = {"biases": config.llama.attention_bias or config.llama.mlp_bias}
    lacks = {
        VLLM: (qwen | window, (SPECULATORS,)),
        SGLANG: (flags | qwen | window | biases, (VLLM, SPECULATORS)),
    }
    features, others = lacks.get(engine, ({}, ()))
    if present := [name for name, has in features.items() if has]:
        raise unsupported_engine(f"{source}, which has {present[0]}", engine, others)


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
        "embed_requires_grad": False,
        IDS: list(head.config.states),
    }
    tensors = {
        name.replace("midlayer.", "layers.0.", 1): tensor
        for name, tensor in flat.tensors.items()
    }
    return Checkpoint("", about, tensors)


def _matrix(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors or tensors[name].dim() != 2:
        raise ModelError(
            f"cannot load {checkpoint.source} as an EAGLE-3 head: it lacks {name}, or "
            "it is not a matrix. Download it again, or choose another"
        )
    return tensors[name]
