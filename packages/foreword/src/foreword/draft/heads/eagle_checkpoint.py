"""EAGLE-3 checkpoints as they are written: in the layout of vLLM and SGLang, which
Foreword uses too, or that of speculators.

`eagle_published.py` reads them.
"""

from typing import Any

import torch

from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.draft.heads.eagle_published import (
    ARCHITECTURE,
    EMBEDDINGS,
    ENGINE,
    FLAGS,
    IDS,
    KIND,
    LAYER_TYPES,
    SLIDING,
    default_states,
    read,
)
from foreword.draft.heads.export_layout import (
    LAYER_TENSORS,
    SGLANG,
    SPECULATORS,
    VERSION,
    VLLM,
    ExportLayout,
    command,
    proposals,
    unsupported_engine,
)
from foreword.draft.heads.loading import head_dtype, saved
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
    "{layer}.hidden_norm.weight",
    *(f"{{layer}}.{name}" for name in LAYER_TENSORS),
)
"""Tensors that every engine requires."""
HEAD_NORMS = tuple(f"{{layer}}.self_attn.{part}_norm.weight" for part in "qk")


def dump(head: EagleHead, dtype: torch.dtype, target: HFConfig) -> Checkpoint:
    """Return the head in the layout of vLLM and SGLang, floating point in `dtype`."""
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
    head = read(checkpoint, target)
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
    if config.mask is not None:
        features, others = {"a mask token (P-EAGLE)": True}, ()
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
