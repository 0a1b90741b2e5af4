"""EAGLE-3 heads as files: the layout of vLLM and SGLang, which is ours too, and that of the speculators library.

Knows names and shapes; knows nothing about what a head computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foreword.draft.eagle_head import EagleConfig, EagleHead
from foreword.draft.parcel import FOLDER, SGLANG, SPECULATORS, VERSION, VLLM, Parcel, proposals, sglang, unserved, vllm
from foreword.errors import ModelError
from foreword.model.checkpoint import Checkpoint
from foreword.model.parts import HFConfig, LlamaConfig

ARCHITECTURE = "LlamaForCausalLMEagle3"
KIND, GUESSES = "eagle3", 5
"""What other engines call it, and in how many steps they are told to guess."""
UNKNOWN = ("norm_before_fc", "fc_norm")
"""What some heads do and this one does not."""
IDS = "eagle_aux_hidden_state_layer_ids"
OUTER = (
    "draft_vocab_size",
    "target_hidden_size",
    "tie_word_embeddings",
    "norm_before_residual",
    "norm_output",
    "torch_dtype",
)
"""What speculators' layout says beside the sizes of the layer, not among them."""
EMBEDDINGS = "embed_tokens.weight"
TENSORS = (
    "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d",
    *("{layer}." + norm + ".weight" for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
    *("{layer}.self_attn." + part + "_proj.weight" for part in "qkvo"),
    *("{layer}.mlp." + part + "_proj.weight" for part in ("gate", "up", "down")),
)  # fmt: skip
"""What every reader looks for."""


def usual_states(layers: int) -> tuple[int, ...]:
    """The hidden states that every engine takes where a head does not say: early, middle, late (EAGLE-3's code)."""
    return 2, layers // 2, layers - 3


def outspoken(found: Checkpoint, layers: int) -> Checkpoint:
    """The same checkpoint, with the hidden states said that are meant where none are; `layers` are the target's.

    Other kinds of heads always say them.
    """
    if ARCHITECTURE not in (found.config.get("architectures") or ()) or found.config.get(IDS):
        return found
    return Checkpoint(found.source, {**found.config, IDS: list(usual_states(layers))}, found.tensors)


def load(source: str | Path, target: HFConfig) -> EagleHead:
    """A head for this target, float32 on the CPU. Raises ModelError where it was made for another, or is incomplete."""
    return _made(Checkpoint.read(source), target)


def _made(found: Checkpoint, target: HFConfig) -> EagleHead:
    source, llama = found.source, _llama(found)
    about, name = target.get_text_config(), target.name_or_path or "the target"
    tensors = {_ours(key): tensor for key, tensor in found.tensors.items()}
    states = tuple(found.config.get(IDS) or usual_states(about.num_hidden_layers))
    fused = _tensor(found, tensors, "fc.weight").shape[1]
    if fused != len(states) * about.hidden_size:
        raise ModelError(
            f"{source} reads {fused} numbers of its target and {name} gives {len(states)} times "
            f"{about.hidden_size}; it was trained for another model"
        )
    if llama.vocab_size != about.vocab_size:
        raise ModelError(
            f"{source} was trained for a vocabulary of {llama.vocab_size} tokens and {name} has "
            f"{about.vocab_size}; it was trained for another model"
        )
    embeds = "embed_tokens.weight" in tensors
    if not embeds and llama.hidden_size != about.hidden_size:
        raise ModelError(
            f"{source} has no embeddings of its own and cannot use those of {name}: its hidden size is "
            f"{llama.hidden_size}, the target's {about.hidden_size}"
        )
    spoken = _tensor(found, tensors, "lm_head.weight").shape[0]
    head = EagleHead(
        EagleConfig(
            llama=llama, states=states, target_hidden=about.hidden_size, draft_vocab=spoken, embeds=embeds,
            norm_before_residual=bool(found.config.get("norm_before_residual", False)),
            norm_output=bool(found.config.get("norm_output", False)),
        )
    )  # fmt: skip
    if spoken == llama.vocab_size:  # such a head may leave out what says nothing
        tensors: dict[str, Tensor] = {"d2t": head.d2t, "t2d": head.t2d, **tensors}
    Checkpoint(found.source, found.config, tensors).fill(head)
    if not bool(((head.tokens >= 0) & (head.tokens < llama.vocab_size)).all()):
        raise ModelError(f"{source}: d2t points outside the vocabulary of {llama.vocab_size} tokens; it is damaged")
    return head.float()


def dump(head: EagleHead, dtype: torch.dtype, target: HFConfig) -> Checkpoint:
    """The head in the layout that vLLM and SGLang read, in the numbers of its target's checkpoint."""
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
        # transformers 5 knows rope_parameters alone, older readers the other two.
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
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if config.states != usual_states(text.num_hidden_layers):
        # vLLM reads the first as transformers numbers states, SGLang adds one to what it finds in the second.
        about |= {IDS: list(config.states), "eagle_config": {IDS: [state - 1 for state in config.states]}}
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in head.state_dict().items()
    }
    return Checkpoint("", about, tensors)


def pack(found: Checkpoint, target: HFConfig, engine: str) -> Parcel:
    """A head for another engine. Raises ModelError for another target's, InvalidRequest for what it does not know."""
    head = _made(found, target)
    made = dump(head, found.tensors["fc.weight"].dtype, target)
    if engine == SPECULATORS:
        made = _speculators(made, head, target)
    elif engine == SGLANG and head.config.norm_before_residual:
        raise unserved(
            f"{found.source}, whose residual begins normed (norm_before_residual)", engine, (VLLM, SPECULATORS)
        )
    first = "layers.0" if engine == SPECULATORS else "midlayer"
    start = {VLLM: vllm(KIND, GUESSES), SGLANG: sglang(KIND.upper()), SPECULATORS: ("vllm", "serve", FOLDER)}
    names = {name.format(layer=first) for name in TENSORS} | ({EMBEDDINGS} if head.embed_tokens is not None else set())
    return Parcel(write=made.write, names=frozenset(names), start=start[engine])


def _speculators(flat: Checkpoint, head: EagleHead, target: HFConfig) -> Checkpoint:
    """The layout of the speculators library."""
    inner = {name: value for name, value in flat.config.items() if name not in ("architectures", *OUTER)}
    about = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": KIND,
        "speculators_version": VERSION,
        "speculators_config": proposals(KIND, GUESSES, target),
        "transformer_layer_config": inner,
        **{name: flat.config[name] for name in OUTER if name in flat.config},
        "norm_before_fc": False,
        "fc_norm": False,
        "embed_requires_grad": False,
        IDS: list(head.config.states),
    }
    tensors = {name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in flat.tensors.items()}
    return Checkpoint("", about, tensors)


def _llama(found: Checkpoint) -> LlamaConfig:
    config = found.config
    speculators = config.get("speculators_model_type") == KIND
    if not speculators and ARCHITECTURE not in (config.get("architectures") or ()):
        said = config.get("speculators_model_type") or config.get("architectures") or config.get("model_type")
        raise ModelError(f"{found.source} is no EAGLE-3 head: its config says {said!r}, not {ARCHITECTURE!r}")
    inner: Mapping[str, Any] = config.get("transformer_layer_config", {}) if speculators else config
    if inner.get("model_type", "llama") != "llama":
        raise ModelError(f"{found.source} has a layer of the kind {inner['model_type']!r}; only llama's is known here")
    asked = [name for name in UNKNOWN if config.get(name)]
    if asked or inner.get("num_hidden_layers", 1) != 1:
        raise ModelError(f"{found.source} asks for {', '.join(asked) or 'several layers'}, which is not known here")
    known = {name: value for name, value in inner.items() if name not in ("architectures", "model_type", "torch_dtype")}
    return LlamaConfig(**known)


def _ours(name: str) -> str:
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _tensor(found: Checkpoint, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise ModelError(f"{found.source} lacks {name}; it is incomplete, or no EAGLE-3 head")
    return tensors[name]
