"""Packers of the quantized matrices of a model's layers, for csrc/products/groups.c."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import BFloat16, Int, UInt8
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model import architectures
from foreword.model.executors.native import experts
from foreword.model.executors.native.grouped import Empty, packed, packed_parts, placed
from foreword.model.quantized.coded import Coded, Matrix, joined
from foreword.native import forward

Packer = Callable[[Empty], Tensor]
"""Packs a matrix into such memory."""


def matrices(layer: Any) -> dict[str, Packer]:
    """Return functions that pack the matrices of a layer whose parts are all quantized,
    under the names of the C struct.
    """
    packers = {}
    for name, parts in architectures.linears(layer).items():
        codes = [part.coded for part in parts if hasattr(part, "coded")]
        if len(codes) == len(parts):
            packers[name] = partial(_arranged, layer, name, codes)
    if architectures.routed(layer):
        packers |= {
            name: partial(_made, make) for name, make in experts.codes(layer).items()
        }
    return packers


def coded(head: Any) -> Packer:
    """Return a function that packs the LM head."""
    return partial(packed_parts, [head.coded])


def rows(words: Any) -> tuple[str, UInt8[Tensor, "vocab bytes"]] | None:
    """Return type and rows of embeddings in a GGUF file; None if C reads none."""
    matrix = vars(words).get("coded")
    if matrix is None or matrix.blocks is None:
        return None
    kind, blocks = matrix.blocks(slice(None))
    return (kind, blocks) if kind in forward.BLOCKS else None


def unpacked(
    table: UInt8[Tensor, "outputs bytes"],
    kind: int,
    depth: int,
    outputs: Int[Tensor, "*rows"],
) -> BFloat16[Tensor, "*rows depth"]:
    """Return some rows of a matrix of a GGUF file; `kind`: as `Model.table_kind`."""
    rows = table.index_select(0, outputs.flatten())
    numbers = torch.empty(len(rows), depth, dtype=torch.bfloat16)
    places = rows.data_ptr(), *numbers.shape, numbers.data_ptr()
    forward.needed().foreword_numbers(kind - 1, *places, 1)
    return numbers.view(*outputs.shape, depth)


@torch.no_grad()
def fill(model: PreTrainedModel, layers: Sequence[Any]) -> None:
    """Read the weights without storage that C does not read in quantized form: routers,
    matrices with an unquantized part, and embeddings of most formats.
    """
    words: Any = model.get_input_embeddings()
    head = architectures.lm_head(model)
    tied = head.weight is words.weight
    quantized = {head} if rows(words) is None else {head, words}
    for layer in layers:
        names = matrices(layer)
        for name, parts in architectures.linears(layer).items():
            if name in names:
                quantized.update(parts)
        if architectures.routed(layer) and "gate_up" in names:
            quantized |= {*experts.parts(layer)}
    for part in model.modules():
        held = vars(part).get("coded", {}) if part not in quantized else {}
        for name, matrix in (
            {"weight": held} if isinstance(held, Matrix) else held
        ).items():
            weight = part.get_parameter(name)
            if weight.is_meta:
                filled = matrix.weights(weight.dtype)
                setattr(part, name, experts.frozen(filled))
    if tied:
        head.weight = words.weight


def _made(make: Callable[[], Coded], empty: Empty) -> Tensor:
    return placed(packed(make()), empty)


def _arranged(
    layer: Any, name: str, parts: Sequence[Matrix], empty: Empty
) -> UInt8[Tensor, "bytes"]:
    """Pack parts in the order of outputs that layout.py gives a matrix."""
    if name != "qkv":
        gated = name == "gate_up" and not architectures.plain(layer)
        return packed_parts(parts, empty, in_turns=gated)
    order = architectures.order(layer)
    if order is None:
        return packed_parts(parts, empty)
    matrix = joined([part.read() for part in parts])
    return placed(packed(matrix.rows(order)), empty)
