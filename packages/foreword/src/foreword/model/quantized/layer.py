"""Tensors of one quantized matrix, checked when they are taken, and the interface of
their readers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.quantized.coded import Coded, Scales

STEP = 16
"""Inputs. The groups of `Coded` are multiples of this."""
KV_SCALES = (".q_scale", ".k_scale", ".v_scale")
"""Endings of tensors for queries, keys and values in 8 bits, not rounded here."""
WORD = 32
"""Bits. Checkpoints pack codes in words of this size."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The tensors of one quantized matrix, by the endings of their names."""

    source: str
    """Folder or hub id of the checkpoint, for errors."""
    name: str
    """Name of the matrix: the common beginning of its tensors' names."""
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    """Entries of the checkpoint's quantization_config."""

    def take(
        self, ending: str, dtype: torch.dtype | None, *shape: int | None
    ) -> Tensor:
        """Return a tensor; None stands for any dtype, or any size of a dimension, and
        no sizes for any shape.

        Raises ModelError where it is missing, or has another dtype or shape.
        """
        tensor = self.tensors.get(ending)
        if tensor is None:
            raise self.error(ending, "is missing")
        if dtype is not None and tensor.dtype != dtype:
            raise self.error(
                ending,
                f"holds {named(tensor.dtype)}, and only {named(dtype)} is read here",
            )
        sizes = zip(shape, tensor.shape, strict=False)
        differ = any(wanted not in (None, size) for wanted, size in sizes)
        if shape and (len(shape) != tensor.dim() or differ):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise self.error(
                ending, f"has the shape {list(tensor.shape)}, not [{sizes}]"
            )
        return tensor

    def error(self, ending: str, reason: str) -> ModelError:
        """Return the error for one of the tensors."""
        return ModelError(
            f"cannot load the weights of {self.source!r}: {self.name}{ending} "
            f"{reason}. Download the files again, or use a checkpoint in a form of "
            "docs/targets/quantized/checkpoints.md"
        )


Reader = Callable[[Layer], Coded | Tensor]
"""Returns a quantized matrix, or float32 weights where `Coded` cannot hold it."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one quantization method stores a matrix."""

    endings: tuple[str, ...]
    """Suffixes of tensor names; any one of them marks a quantized matrix."""
    read: Reader
    codes: str | None = None
    """Ending of a tensor that plain matrices have too, and which holds the codes of a
    quantized one. Empty = the endings follow its whole name.
    """
    weight: str = ".weight"
    """Ending of the name of the weight in the model that is not quantized."""
    shaped: Callable[[Layer, Tensor], Tensor] = lambda _, weight: weight
    """Returns the dequantized weights in the shape that the model holds."""
    unused: tuple[str, ...] = ()
    """Suffixes of tensors that the weights do not depend on, which are left out."""
    exact: Callable[[Layer], Tensor] | None = None
    """Returns the weights in float32, where `read` rounds them; None = it does not."""
    refused: Callable[[Mapping[str, Any]], str] = lambda _: ""
    """Returns which of the settings cannot be read; empty = none."""


def named(dtype: torch.dtype) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


def unpack(words: Int[Tensor, "rows words"], bits: int) -> UInt8[Tensor, "rows codes"]:
    """Return the codes of 2, 3, 4 or 8 bits in words of 32, the lowest bits first; of
    3 bits, a code may begin in one word and end in the next.
    """
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    if bits == 4:
        return torch.stack([octets & 15, octets >> 4], dim=-1).flatten(1)
    single = octets[..., None] >> torch.arange(8, dtype=torch.uint8) & 1
    codes = single.flatten(1).unflatten(1, (-1, bits))
    weights = 1 << torch.arange(bits, dtype=torch.uint8)
    return (codes * weights).sum(-1, dtype=torch.uint8)


def affine(
    layer: Layer,
    codes: UInt8[Tensor, "outputs depth"],
    bits: int,
    scale: Float[Tensor, "outputs groups"],
    zeros: Int[Tensor, "outputs groups"] | None = None,
    index: Int[Tensor, "depth"] | None = None,
) -> Coded | Float[Tensor, "outputs depth"]:
    """Return weight[o, i] = scale[o, g] * (level - zeros[o, g]) of codes of `bits`,
    where level = code - 2**(bits-1).

    g = index[i], or i // group without an index. Scales of 16 bits give exact products,
    and so exact sums; scales of float32 round `scale * zeros` and `scale * level` once
    each. Returns float32 weights where groups are not runs of inputs.
    """
    (depth, groups), half = (codes.shape[1], scale.shape[1]), 1 << (bits - 1)
    even = depth % groups == 0
    runs = torch.arange(depth) // (depth // groups) if even else None
    if index is None and runs is None:
        raise layer.error(
            "", f"has {groups} groups, which do not divide its {depth} inputs evenly"
        )
    if index is not None and not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise layer.error("", f"names a group of inputs that is not one of {groups}")
    scale = scale.float().contiguous()
    zeros = None if zeros is None or not zeros.any() else zeros
    if (
        runs is not None
        and (index is None or torch.equal(index.long(), runs))
        and (depth // groups) % STEP == 0
    ):
        offset = None if zeros is None else Scales((-scale * zeros).contiguous())
        return Coded(
            codes.contiguous(),
            torch.arange(-half, half).to(torch.int8),
            Scales(scale),
            offset,
            depth // groups,
        )
    where = runs if index is None else index.long()
    level = codes.float() - half
    return scale[:, where] * (level if zeros is None else level - zeros[:, where])


def signed(
    values: Int[Tensor, "outputs depth"], bits: int = 8
) -> UInt8[Tensor, "outputs depth"]:
    """Return the codes of whole numbers with a sign."""
    return (values.to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)
