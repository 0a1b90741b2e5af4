"""Loads EAGLE-3 heads, published ones too: their config and tensors under the names
used here.

vLLM, SGLang, SpecForge and Model-Optimizer share a layout.
The original code (SafeAILab/EAGLE) has it without its architecture,
and speculators nests the config of the layer.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.draft.heads.loading import (
    TRAINING_ONLY,
    check_kind,
    check_sizes,
    check_tokens,
    checkpoint_of,
)
from foreword.errors import ModelError, words
from foreword.model.head_layers import (
    SIDES,
    HFConfig,
    LlamaConfig,
    rope,
)
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword.model.loading.hub import MASK_TOKENS

ARCHITECTURE = "LlamaForCausalLMEagle3"
ORIGINAL, DRAFT_VOCAB = "LlamaForCausalLM", "draft_vocab_size"
"""Architecture of the original code's heads, and the key that marks a head."""
KIND, PARALLEL = "eagle3", "peagle"
"""Names of the method in other engines, and of its kind with one forward per draft."""
PARALLEL_KIND, MASK_STATE = "PEagleDraftModel", "mask_hidden"
"""Architecture of such a head, and the tensor that only it has."""
DEPTHS = 8
"""Draft tokens of such a head whose config names none (default of speculators)."""
LAYER_TYPES = ("llama", "qwen3")
"""Decoder layers of heads; qwen3 is llama with norms over queries and keys."""
LAYERS = "num_hidden_layers"
IDS, ENGINE = "eagle_aux_hidden_state_layer_ids", "eagle_config"
EMBEDDINGS, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
COMPUTED = "rotary_emb.inv_freq"
"""End of the name of a table that is computed from the config."""
SLIDING = "sliding_attention"


def states_of(checkpoint: Checkpoint, layers: int) -> Checkpoint:
    """Return the checkpoint with default hidden states filled in where its config has
    none.

    `layers` is the target's layer count. Configs of other head kinds always list their
    states.
    """
    config = dict(checkpoint.config)
    if ARCHITECTURE in (config.get("architectures") or ()):
        config[IDS] = list(_states(checkpoint, layers))
    return replace(checkpoint, config=config)


def load(source: Source, target: HFConfig) -> EagleHead:
    """Load a head in float32 on the CPU.

    Raises InvalidRequest unless `source` is a path or hub id, ModelError where it is
    incomplete or for another target.
    """
    return read(checkpoint_of(source), target)


def read(checkpoint: Checkpoint, target: HFConfig) -> EagleHead:
    """Return the head of a checkpoint, as `load` does."""
    llama, about = _layer_config(checkpoint), target.get_text_config()
    tensors = _named(checkpoint, llama.vocab_size)
    checkpoint = replace(checkpoint, tensors=tensors)
    parallel = MASK_STATE in tensors
    config = EagleConfig(
        llama=llama,
        mask=_mask_token(checkpoint, llama.vocab_size) if parallel else None,
        draft_tokens=_depths(checkpoint) if parallel else 0,
        layers=_layer(checkpoint).get(LAYERS, 1),
        states=_states(checkpoint, layer_count(about)),
        target_hidden=about.hidden_size,
        draft_vocab=len(_matrix(checkpoint, LM_HEAD)),
        embeds=EMBEDDINGS in tensors,
        head_norms=_has_head_norms(checkpoint),
        window=_window(checkpoint),
        **_flags(checkpoint),
    )
    _check_target(checkpoint, config, target)
    head = checkpoint.filled(partial(EagleHead, config))
    check_tokens(checkpoint.source, head.tokens, llama.vocab_size)
    return head.float()


def _check_target(
    checkpoint: Checkpoint,
    config: EagleConfig,
    target: HFConfig,
) -> None:
    """Raise ModelError where a head was trained for a target of other sizes, or where
    its LM head is not of the size that config.json names.
    """
    llama, about = config.llama, target.get_text_config()
    source, count = checkpoint.source, len(config.states)
    fused = _matrix(checkpoint, "fc.weight").shape[1]
    features = fused, count * about.hidden_size
    sizes = {
        f"the size of {count} hidden states": features,
        "vocab_size": (llama.vocab_size, about.vocab_size),
    }
    if not config.embeds:  # it reads the target's embeddings
        sizes["hidden_size"] = (llama.hidden_size, about.hidden_size)
    check_sizes(source, target, sizes)
    listed = checkpoint.config.get(DRAFT_VOCAB)
    if listed not in (None, config.draft_vocab):
        raise ModelError(
            f"cannot load {source}: {DRAFT_VOCAB} in its config.json is "
            f"{listed}, and its {LM_HEAD} has {config.draft_vocab} rows. "
            "Correct config.json, or download both again"
        )


def _is_speculators(checkpoint: Checkpoint) -> bool:
    """Return whether a config has the layout of speculators."""
    return checkpoint.config.get("speculators_model_type") in (KIND, PARALLEL)


def _mask_token(
    checkpoint: Checkpoint,
    vocab: int,
) -> int:
    """Return the mask token of P-EAGLE. Raises ModelError without a valid one."""
    keys = ("mask_token_id", *MASK_TOKENS)
    masks = (checkpoint.config.get(key) for key in keys)
    mask = next((mask for mask in masks if mask is not None), None)
    if type(mask) is not int or not 0 <= mask < vocab:
        raise ModelError(
            f"cannot load {checkpoint.source}: it has "
            f"{MASK_STATE}, but its mask token ({', '.join(keys)}) is {mask!r}. "
            f"Name one of its {vocab} tokens"
        )
    return mask


def _depths(checkpoint: Checkpoint) -> int:
    """Return the draft tokens of one forward of P-EAGLE."""
    about = checkpoint.config.get("speculators_config") or {}
    proposals = about.get("proposal_methods") or [{}]
    count = proposals[0].get("speculative_tokens")
    return count if type(count) is int and count > 0 else DEPTHS


def _is_original(checkpoint: Checkpoint) -> bool:
    """Return whether a config is of a head of the original code."""
    config = checkpoint.config
    kinds = config.get("architectures") or ()
    return ORIGINAL in kinds and bool(config.get(DRAFT_VOCAB))


def default_states(layers: int) -> tuple[int, ...]:
    """Return the default hidden states: early, middle, late (EAGLE-3's code)."""
    return 2, layers // 2, layers - 3


def _states(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
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
    whole = isinstance(numbers, list) and all(type(number) is int for number in numbers)
    if not whole:
        raise ModelError(
            f"cannot load {checkpoint.source}: {IDS} in its config.json "
            f"is {numbers!r}, not a list of layers. Correct config.json"
        )
    return tuple(number + shift for number in numbers)


def _flags(checkpoint: Checkpoint) -> dict[str, bool]:
    """Return a head's norms by config key. Raises ModelError if two contradict."""
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


def _layer_config(checkpoint: Checkpoint) -> LlamaConfig:
    """Return the config of a head's layer.

    Its vocabulary is the target's. Raises ModelError for another kind
    of head, or a layer that is not supported.
    """
    if not _is_original(checkpoint):
        kinds = (ARCHITECTURE, PARALLEL_KIND, PARALLEL)
        check_kind(checkpoint, kinds, KIND)
    config, source = _layer(checkpoint), checkpoint.source
    kind = config.get("model_type", LAYER_TYPES[0])
    if kind not in LAYER_TYPES:
        raise ModelError(
            f"cannot load {source}: "
            f"its layer type {kind!r} is not supported. "
            f"Choose a head with a layer of {' or '.join(LAYER_TYPES)}"
        )
    layers, most = config.get(LAYERS, 1), len(checkpoint.tensors)
    checkpoint.check_most(LAYERS, layers, most, "the number of its tensors")
    if layers != 1 and MASK_STATE not in checkpoint.tensors:
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


def _window(checkpoint: Checkpoint) -> int | None:
    """Return the tokens that the layer attends to; None for all."""
    config = _layer(checkpoint)
    kinds, size = config.get("layer_types"), config.get("sliding_window")
    if len(set(kinds or ())) > 1:
        raise ModelError(
            f"cannot load {checkpoint.source}: "
            f"only some of its layers have a sliding window ({kinds}), "
            "which is not supported. Choose another head"
        )
    slides = SLIDING in kinds if kinds else config.get("use_sliding_window")
    return size if slides and type(size) is int else None


def _named(checkpoint: Checkpoint, vocab: int) -> dict[str, Tensor]:
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
    if MASK_STATE in tensors:
        tensors[MASK_STATE] = tensors[MASK_STATE].flatten()
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


def _has_head_norms(checkpoint: Checkpoint) -> bool:
    """Return whether queries and keys are normed.

    The tensors say so; in the layout of speculators, the type of the layer
    does too.
    """
    qwen = _layer(checkpoint).get("model_type") == LAYER_TYPES[1]
    held = "midlayer.self_attn.q_norm.weight" in checkpoint.tensors
    return held or (_is_speculators(checkpoint) and qwen)


def _layer(checkpoint: Checkpoint) -> Mapping[str, Any]:
    config = checkpoint.config
    if not _is_speculators(checkpoint):
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


def _matrix(checkpoint: Checkpoint, name: str) -> Tensor:
    tensor = checkpoint.tensors.get(name)
    if tensor is None or tensor.dim() != 2:
        raise ModelError(
            f"cannot load {checkpoint.source} as an EAGLE-3 head: it lacks {name}, or "
            "it is not a matrix. Download it again, or choose another"
        )
    return tensor
