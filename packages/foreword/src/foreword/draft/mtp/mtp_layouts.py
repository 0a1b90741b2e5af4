"""Names of multi-token-prediction tensors in the checkpoints of each family.

Sources: the public weight indexes of the families, transformers' conversion mapping,
and the loaders of vLLM (deepseek_mtp.py, qwen3_next_mtp.py, ernie_mtp.py,
mimo_v2_mtp.py).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from foreword.model.loading.ahead import Kinds

BLOCK = "layers.{}.mtp_block.{}"
"""Our name of a tensor of the decoder layer, from its number and name."""
PARTS = ("enorm", "hnorm", "eh_proj", "post_norm")
"""The other parts of a layer: norms of embedding and state, their projection, and the
norm of the output.
"""
SHARED = ("shared_head.head", "embed_tokens")
"""Copies of the target's embeddings and LM head, which are used in their place."""
SHARED_NORM = "shared_post_norm.weight"
"""Our name of a norm that all layers share."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the checkpoints of some families keep their layers."""

    block: str
    """Pattern of the tensors of a layer: its number, then the rest of the name."""
    parts: Mapping[str, str]
    """Rest of a name, before `.weight` -> part, or a name of the decoder layer."""
    beside: Mapping[str, str] | None = None
    """Names without the number of a layer -> part of the first layer."""
    first: bool = False
    """Numbers go on after the target's layers."""
    norm: str = ""
    """Tensor of the target that is the norm of every layer's output; empty: each layer
    has its own.
    """
    kinds: Kinds = field(default_factory=Kinds)

    def ours(self, name: str, layers: int) -> str | None:
        """Return our name of a tensor; None where it is not part of a layer."""
        stem = name.removesuffix(".weight")
        if self.beside and stem in self.beside:
            return f"layers.0.{self.beside[stem]}.weight"
        if self.norm and name == self.norm:
            return SHARED_NORM
        match = re.fullmatch(self.block, name)
        if match is None:
            return None
        number, rest = int(match[1]) - (layers if self.first else 0), match[2]
        stem = rest.removesuffix(".weight")
        if number < 0 or stem in SHARED:
            return None
        part = self.parts.get(stem, stem)
        if part in PARTS:
            return f"layers.{number}.{part}.weight"
        return BLOCK.format(number, rest.replace(stem, part, 1))


# DeepSeek-V3, GLM-4.5 and later, and layers that Foreword trained
DEEPSEEK = Layout(
    block=r"(?:model\.)?(?:language_model\.)?layers\.(\d+)\.(.+)",
    parts={"shared_head.norm": "post_norm"},
    first=True,
)
# Qwen3-Next, Qwen3.5 and Qwen3.6, Mellum
QWEN = Layout(
    block=r"mtp\.layers\.(\d+)\.(.+)",
    parts={},
    beside={
        "mtp.fc": "eh_proj",
        "mtp.pre_fc_norm_embedding": "enorm",
        "mtp.pre_fc_norm_hidden": "hnorm",
        "mtp.norm": "post_norm",
    },
    kinds=Kinds(mlp="sparse"),
)
# MiMo-V2
MIMO = Layout(
    block=r"model\.mtp\.layers\.(\d+)\.(.+)",
    parts={
        "final_layernorm": "post_norm",
        "pre_mlp_layernorm": "post_attention_layernorm",
    },
    kinds=Kinds(attention="sliding_attention", mlp="dense"),
)
# ERNIE 4.5
ERNIE = Layout(
    block=r"model\.mtp_block\.(\d+)\.(.+)",
    parts={},
    beside={
        "model.mtp_linear_proj.0": "eh_proj",
        "model.mtp_emb_norm.0": "enorm",
        "model.mtp_hidden_norm.0": "hnorm",
    },
    norm="model.norm.weight",
    kinds=Kinds(shared_norm=True),
)
FIRST = "layers.0.enorm.weight"
"""Our name of the tensor that marks a layout: norms are never quantized."""
NORMS = ("norm.weight", "norm_embedding.weight", "norm.0.weight")
"""How its name ends in checkpoints."""
LAYOUTS = (QWEN, MIMO, ERNIE, DEEPSEEK)
"""The most particular first."""
UNREAD = {r"mtp\.\d+\..+": "DeepSeek-V4's layers have hyper-connections"}
"""Names of layers that cannot be read, and why."""


def layout_of(names: Iterable[str], layers: int) -> Layout | None:
    """Return the layout of a checkpoint whose tensors have these names, for a target of
    so many layers; None where it has no such layer.
    """
    norms = [name for name in names if name.endswith(NORMS)]
    for layout in LAYOUTS:
        if any(layout.ours(name, layers) == FIRST for name in norms):
            return layout
    return None


def unread(names: Iterable[str]) -> str | None:
    """Return why layers with such names are not read; None where there are none."""
    for name in names:
        for pattern, reason in UNREAD.items():
            if re.fullmatch(pattern, name):
                return reason
    return None
