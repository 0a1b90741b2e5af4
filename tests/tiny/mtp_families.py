"""Tiny checkpoints of every family with multi-token prediction, tensors named as in
public ones. Layers of prediction pass the embedding on, so that they agree with the
target.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from foreword.draft.mtp.mtp_layouts import DEEPSEEK, ERNIE, MIMO, QWEN, Layout
from foreword.model.loading.ahead import layers_ahead
from tiny_sizes import (
    FULL,
    LINEAR,
    NO_ENDS,
    SLIDING,
    experts,
    latent,
    linear,
    routed,
    sizes,
)

VOCAB, HIDDEN, LAYERS = 256, 64, 3
PROMPTS = tuple(
    torch.randint(
        0, VOCAB, (length,), generator=torch.Generator().manual_seed(length)
    ).tolist()
    for length in (3, 11, 40)
)
Named = Callable[[int, str], str]
"""(layer, our name of its tensor) -> the published name."""
COMMON: dict[str, Any] = sizes(HIDDEN, 96, 4, 2, LAYERS, **NO_ENDS) | dict(
    vocab_size=VOCAB,
    moe_intermediate_size=32,
    head_dim=16,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)


@dataclass(frozen=True)
class Family:
    """A family: how its config differs from `COMMON`, and how it names its layers."""

    kind: str
    layout: Layout
    named: Named
    config: dict[str, Any]
    count: int = 1
    dtype: str = "float32"


def _deepseek(layer: int, name: str) -> str:
    name = name.removeprefix("mtp_block.")
    name = name.replace("post_norm", "shared_head.norm")
    return f"model.layers.{LAYERS + layer}.{name}"


def _qwen(layer: int, name: str) -> str:
    parts = {
        "eh_proj.weight": "mtp.fc.weight",
        "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
        "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
        "post_norm.weight": "mtp.norm.weight",
    }
    inner = name.removeprefix("mtp_block.")
    return parts.get(name, f"mtp.layers.{layer}.{inner}")


def _mimo(layer: int, name: str) -> str:
    name = name.replace("mtp_block.post_attention_layernorm", "pre_mlp_layernorm")
    name = name.replace("post_norm", "final_layernorm").removeprefix("mtp_block.")
    return f"model.mtp.layers.{layer}.{name}"


def _ernie(layer: int, name: str) -> str:
    parts = {
        "eh_proj.weight": f"model.mtp_linear_proj.{layer}.weight",
        "enorm.weight": f"model.mtp_emb_norm.{layer}.weight",
        "hnorm.weight": f"model.mtp_hidden_norm.{layer}.weight",
    }
    inner = name.removeprefix("mtp_block.")
    return parts.get(name, f"model.mtp_block.{layer}.{inner}")


AHEAD = dict(num_nextn_predict_layers=1)
DELTA_NET = linear(8, 16, layer_types=[LINEAR, LINEAR, FULL])
DELTA_NET["mtp_num_hidden_layers"] = 1
FAMILIES = {
    "llama": Family("llama", DEEPSEEK, _deepseek, AHEAD),
    "glm": Family("glm4_moe", DEEPSEEK, _deepseek, routed(**AHEAD)),
    "deepseek": Family(
        "deepseek_v3",
        DEEPSEEK,
        _deepseek,
        latent(head_dim=8, n_group=1, num_nextn_predict_layers=2),
        count=2,
    ),
    "qwen3.5": Family("qwen3_5_text", QWEN, _qwen, DELTA_NET, dtype="bfloat16"),
    "qwen3.5-moe": Family(
        "qwen3_5_moe_text",
        QWEN,
        _qwen,
        experts(**DELTA_NET, shared_expert_intermediate_size=32),
        dtype="bfloat16",
    ),
    "mellum": Family(
        "mellum",
        QWEN,
        _qwen,
        experts(**AHEAD, sliding_window=16, layer_types=[SLIDING, SLIDING, FULL]),
    ),
    "ernie": Family(
        "ernie4_5_moe",
        ERNIE,
        _ernie,
        dict(AHEAD, moe_num_experts=4, moe_k=2, moe_layer_start_index=1),
    ),
    "mimo": Family(
        "mimo_v2_flash",
        MIMO,
        _mimo,
        dict(
            n_routed_experts=4,
            num_experts_per_tok=2,
            head_dim=24,
            v_head_dim=16,
            sliding_window=16,
        ),
        count=3,
    ),
}


def target_of(family: Family) -> PreTrainedModel:
    """Return a target whose likeliest token follows from the last one."""
    kinds = AutoConfig.for_model(family.kind, **{**COMMON, **family.config})
    model = AutoModelForCausalLM.from_config(kinds).float().eval()
    with torch.no_grad():
        _weaken(model)
        model.get_input_embeddings().weight.normal_(std=1.0)
        model.get_output_embeddings().weight.normal_(std=1.0)
    return model


def write(family: Family, folder: Path) -> Path:
    """Write a checkpoint with the target and its layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = target_of(family)
        model.save_pretrained(folder)
        file = folder / "model.safetensors"
        layers = _layers(model, family)
        named = {
            family.named(int(number), name): one.clone()
            for (number, name), one in layers.items()
        }
        save_file({**load_file(file), **named}, file, {"format": "pt"})
    return folder


def _layers(model: PreTrainedModel, family: Family) -> dict[tuple[str, str], Tensor]:
    """Return tensors of layers that pass the token's embedding on, by layer."""
    mtp = layers_ahead(model, family.layout.kinds, family.count)
    layers = mtp.layers.to_empty(device="cpu").float()
    with torch.no_grad():
        for part in layers.modules():
            for name, one in part.named_parameters(recurse=False):
                neutral = getattr(model.model.norm, "weight", one)
                one.fill_(float(neutral.flatten()[0]) if one.dim() == 1 else 0)
                del name
            for one in part.buffers(recurse=False):
                one.zero_()
        _weaken(layers)
        for layer in layers:
            layer.eh_proj.weight.normal_(std=1e-3)
            layer.eh_proj.weight[:, :HIDDEN] += torch.eye(HIDDEN)
    found: dict[tuple[str, str], Tensor] = {}
    for name, tensor in layers.state_dict().items():
        number, _, rest = name.partition(".")
        for each, one in _apart(rest, tensor).items():
            found[number, each] = one
    return found


def _apart(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return experts one by one, as they are published; other tensors as they are."""
    stem, _, kind = name.rpartition(".experts.")
    if not stem:
        return {name: tensor}
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    return {
        f"{stem}.experts.{number}.{part}.weight": piece
        for number, expert in enumerate(tensor)
        for part, piece in zip(parts[kind], expert.chunk(len(parts[kind])), strict=True)
    }


def _weaken(module: nn.Module) -> None:
    """Make the matrices of a module small."""
    for one in module.parameters():
        if one.dim() > 1:
            one.normal_(std=0.02)
