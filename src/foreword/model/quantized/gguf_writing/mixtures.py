"""Provides the type of each matrix of a GGUF file: a form such as Q4_K_M gives more
bits to some of them.

Rules and types that replace others: llama-quantize of ggml-org/llama.cpp,
src/llama-quant.cpp at 007dbbf3 (llama_tensor_get_type_impl, tensor_type_fallback),
without an importance matrix and for the architecture llama.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from foreword.model.quantized.gguf_writing.blocks import BLOCK

SHORT = 32
"""Inputs of a block of the types that are no K-quants."""
PLAIN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Forms whose matrices all have the type of this name."""
NARROW = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1"}
NARROW |= {"Q6_K": "Q8_0"}
"""Types that replace a K-quant where rows are no multiple of BLOCK."""
DEEP = 80
"""Layers. In a model of so many, eight heads of queries share values, which get more
bits than the types FEW.
"""
FEW = ("Q3_K", "Q4_K")
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model that the rules ask for."""

    layers: int
    shared: int
    """Heads of queries for each head of keys."""
    tied: bool
    """Whether the embeddings are the LM head too."""


@dataclass(frozen=True, slots=True)
class More:
    """The type of a matrix in the layers where it gets more bits: all, but for a
    condition.
    """

    kind: str
    other: str | None = None
    """Type in the other layers; None = the type of the form."""
    first: int = 0
    """Condition: one of so many first layers."""
    part: int = 0
    """Condition: in the first of so many parts of the layers."""
    ends: bool = False
    """Condition: in the first or last eighth of the layers, or each third between."""
    shared: int = 0
    """Condition: so many heads of queries for each head of keys."""

    def of(self, layer: int, sizes: Sizes) -> str | None:
        """Return the type in a layer; None = the type of the form."""
        more = True
        if self.first:
            more = layer < self.first
        if self.part:
            more = layer < sizes.layers // self.part
        if self.ends:
            more = _at_ends(layer, sizes.layers)
        if self.shared:
            more = sizes.shared >= self.shared
        return self.kind if more else self.other


@dataclass(frozen=True, slots=True)
class Mixture:
    """A form: its type, and the types of matrices that need more bits."""

    kind: str
    value: More | None = None
    down: More | None = None
    output: More | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The type of a tensor."""

    kind: str
    instead: str | None = None
    """The type of the form, where rows of this length do not fit it."""


def choice(form: str, name: str, depth: int, sizes: Sizes) -> Choice | None:
    """Return the type of a matrix with rows of `depth` inputs; None where no type fits,
    so that it keeps its dtype.

    Raises KeyError for an unknown form.
    """
    if depth % SHORT:
        return None
    if form in PLAIN:
        return Choice(form)
    kind = _kind(MIXTURES[form], name, sizes)
    if depth % BLOCK == 0:
        return Choice(kind)
    head = _is_head(name, sizes)
    return Choice("Q8_0" if head else NARROW[kind], kind)


def _kind(mixture: Mixture, name: str, sizes: Sizes) -> str:
    if _is_head(name, sizes):
        return "Q6_K"
    match = LAYER.fullmatch(name)
    if match is None:
        return mixture.kind
    rules = {
        "attn_v": mixture.value,
        "ffn_down": mixture.down,
        "attn_output": mixture.output,
    }
    rule = rules.get(match[2])
    found = rule and rule.of(int(match[1]), sizes)
    kind = found or mixture.kind
    if match[2] == "attn_v" and sizes.layers == DEEP and kind in FEW:
        return "Q5_K"
    return kind


def _is_head(name: str, sizes: Sizes) -> bool:
    return name == ("token_embd.weight" if sizes.tied else "output.weight")


def _at_ends(layer: int, layers: int) -> bool:
    eighth = layers // 8
    outer = layer < eighth or layer >= 7 * layers // 8
    return outer or (layer - eighth) % 3 == 2


ENDS = More("Q6_K", ends=True)
MIXTURES = {
    "Q2_K": Mixture("Q2_K", More("Q4_K", "Q3_K", shared=4), More("Q3_K"), More("Q3_K")),
    "Q3_K_S": Mixture("Q3_K"),
    "Q3_K_M": Mixture(
        "Q3_K",
        More("Q5_K", "Q4_K", first=2),
        More("Q5_K", "Q4_K", part=16),
        More("Q4_K"),
    ),
    "Q3_K_L": Mixture("Q3_K", More("Q5_K"), More("Q5_K"), More("Q5_K")),
    "Q4_K_S": Mixture("Q4_K", More("Q5_K", first=4), More("Q5_K", part=8)),
    "Q4_K_M": Mixture("Q4_K", ENDS, ENDS),
    "Q5_K_S": Mixture("Q5_K"),
    "Q5_K_M": Mixture("Q5_K", ENDS, ENDS),
    "Q6_K": Mixture("Q6_K"),
}
"""Forms of K-quants."""
FORMS = (*PLAIN, *MIXTURES)
"""Forms of a GGUF file that can be written."""
