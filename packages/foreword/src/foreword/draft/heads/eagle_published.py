"""Published EAGLE-3 heads: their config and tensors under the names used here.

vLLM, SGLang, SpecForge and Model-Optimizer share a layout.
The original code (SafeAILab/EAGLE) has it without its architecture,
and speculators nests the config of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from foreword.draft.heads.loading import TRAINING_ONLY
from foreword.errors import ModelError, words
from foreword.model.head_layers import SIDES, LlamaConfig, rope
from foreword.model.loading.checkpoint import Checkpoint
from foreword.registry import HEAD_METHODS

ARCHITECTURE = "LlamaForCausalLMEagle3"
ORIGINAL, DRAFT_VOCAB = "LlamaForCausalLM", "draft_vocab_size"
"""Architecture of the original code's heads, and the key that tells them
from language models.
"""
KIND = "eagle3"
"""Name of the method in other engines."""
LAYER_TYPES = ("llama", "qwen3")
"""Decoder layers that heads may have; qwen3 is llama with norms over
queries and keys.
"""
IDS, ENGINE = "eagle_aux_hidden_state_layer_ids", "eagle_config"
EMBEDDINGS, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
COMPUTED = "rotary_emb.inv_freq"
"""End of the name of a table that is computed from the config."""
SLIDING = "sliding_attention"


def is_speculators(checkpoint: Checkpoint) -> bool:
    """Return whether a config has the layout of speculators."""
    return checkpoint.config.get("speculators_model_type") == KIND


def default_states(layers: int) -> tuple[int, ...]:
    """Return the hidden states that engines use by default: early, middle, late
    (EAGLE-3's code).
    """
    return 2, layers // 2, layers - 3


def states(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the hidden states that a head reads, as transformers numbers them.

    `layers` is the target's layer count.
    `eagle_config` numbers layers; their outputs are the next hidden states.
    Raises ModelError where these are not whole numbers.
    """
    config = checkpoint.config
    listed = config.get(IDS)
    nested = (config.get(ENGINE) or {}).get(IDS)
    shift = 0 if listed else 1
    numbers = listed or nested
    if not numbers:
        return default_states(layers)
    if not isinstance(numbers, list) or any(type(one) is not int for one in numbers):
        raise ModelError(
            f"cannot load {checkpoint.source}: {IDS} in its config.json "
            f"is {numbers!r}, not a list of layers. Correct config.json"
        )
    return tuple(number + shift for number in numbers)


def flags(checkpoint: Checkpoint) -> dict[str, bool]:
    """Return which norms a head has, by config key.

    Raises ModelError where two of them exclude each other.
    """
    nested = checkpoint.config.get(ENGINE) or {}
    config = {**nested, **checkpoint.config}
    norms = {name: bool(config.get(name, False)) for name in FLAGS}
    if norms["norm_before_fc"] and norms["fc_norm"]:
        raise ModelError(
            f"cannot load {checkpoint.source}: its config.json sets "
            "norm_before_fc and fc_norm, which exclude each other. "
            "Keep the one that the head has"
        )
    return norms


def layer_config(checkpoint: Checkpoint) -> LlamaConfig:
    """Return the config of a head's layer.

    Its vocabulary is the target's. Raises ModelError for another kind
    of head, or a layer that is not supported.
    """
    _check_kind(checkpoint)
    config = _layer(checkpoint)
    source = checkpoint.source
    kind = config.get("model_type", LAYER_TYPES[0])
    if kind not in LAYER_TYPES:
        raise ModelError(
            f"cannot load {source}: "
            f"its layer type {kind!r} is not supported. "
            f"Choose a head with a layer of {' or '.join(LAYER_TYPES)}"
        )
    layers = config.get("num_hidden_layers", 1)
    if layers != 1:
        raise ModelError(
            f"cannot load {source}: it has {layers} layers "
            "(num_hidden_layers in its config.json), and heads with "
            "several layers are not supported. "
            "Choose a head with one layer"
        )
    sizes = {
        name: value
        for name, value in config.items()
        if name not in ("architectures", "model_type", "torch_dtype")
        and not name.startswith("rope_")
    }
    checkpoint.check_sides({name: sizes.get(name) for name in SIDES})
    try:
        return LlamaConfig(**sizes, rope_parameters=rope(config, source))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"cannot load {source}: its config.json describes no layer: "
            f"{words(error)}. "
            "Correct config.json, or download both again"
        ) from error


def window(checkpoint: Checkpoint) -> int | None:
    """Return the tokens that the layer attends to; None for all."""
    config = _layer(checkpoint)
    kinds, size = config.get("layer_types"), config.get("sliding_window")
    slides = SLIDING in kinds if kinds else config.get("use_sliding_window")
    return size if slides and type(size) is int else None


def named(checkpoint: Checkpoint, vocab: int) -> dict[str, Tensor]:
    """Return the tensors of a head under the names used here.

    Parts that a layout leaves out are added: maps of a whole vocabulary,
    an LM head tied to the embeddings.
    `vocab` is the number of the target's tokens.
    """
    tensors = {
        _name(name): tensor
        for name, tensor in checkpoint.tensors.items()
        if not name.endswith(COMPUTED) and name not in TRAINING_ONLY
    }
    tied = checkpoint.config.get("tie_word_embeddings")
    if tied and LM_HEAD not in tensors and EMBEDDINGS in tensors:
        tensors[LM_HEAD] = tensors[EMBEDDINGS]
    head = tensors.get(LM_HEAD)
    if head is not None and len(head) == vocab:
        offsets = torch.zeros(vocab, dtype=torch.int64)
        every = torch.ones(vocab, dtype=torch.bool)
        tensors = {"d2t": offsets, "t2d": every, **tensors}
    if "t2d" not in tensors and "d2t" in tensors:
        tensors["t2d"] = _mask(tensors["d2t"], vocab)
    return tensors


def has_head_norms(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether queries and keys are normed.

    The tensors say so; in the layout of speculators, the type of the layer
    does too.
    """
    qwen = _layer(checkpoint).get("model_type") == LAYER_TYPES[1]
    held = "midlayer.self_attn.q_norm.weight" in tensors
    return held or (is_speculators(checkpoint) and qwen)


def _check_kind(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    architectures = config.get("architectures") or ()
    if is_speculators(checkpoint) or ARCHITECTURE in architectures:
        return
    if ORIGINAL in architectures and config.get(DRAFT_VOCAB):
        return
    kind = (
        config.get("speculators_model_type")
        or config.get("architectures")
        or config.get("model_type")
    )
    known = ", ".join(one for one in HEAD_METHODS if "_" not in one)
    raise ModelError(
        f"cannot load {checkpoint.source} as an EAGLE-3 head: "
        f"its config names {kind!r}, not {ARCHITECTURE!r}. "
        "Choose an EAGLE-3 head, or the method of another known kind: "
        f"{known}"
    )


def _layer(checkpoint: Checkpoint) -> Mapping[str, Any]:
    config = checkpoint.config
    if not is_speculators(checkpoint):
        return config
    return config.get("transformer_layer_config") or {}


def _name(name: str) -> str:
    name = name.removeprefix("model.")
    return (
        name.replace("layers.0.", "midlayer.", 1)
        if name.startswith("layers.0.")
        else name
    )


def _mask(offsets: Tensor, vocab: int) -> Tensor:
    """Return the mask of the target's tokens that offsets name.

    Ids outside the vocabulary are ignored here,
    and refused later.
    """
    tokens = torch.arange(len(offsets)) + offsets
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[tokens[(tokens >= 0) & (tokens < vocab)]] = True
    return mask
