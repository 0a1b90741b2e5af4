"""Linear layers of codes on CUDA; rows keep their dtype.

The codes come from the checkpoint (quantized/coded.py), or are rounded as `foreword
quantize` does it (quantized/write.py): with a scale for each output in 8 bits, and for
64 of its inputs in 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.architectures import lm_head
from foreword.model.executors.cuda.fused import untouched
from foreword.model.executors.cuda.launch import INTERPRETED, fused_library
from foreword.model.executors.torch.packed_linear import Swap
from foreword.model.quantized.coded import Coded, Matrix, Scales
from foreword.model.quantized.write import GROUP, quantized
from foreword.native import forward

ROWS = 64
"""Rows of one product."""
OUTPUTS = 32
"""Outputs of one program."""
NIBBLE = 16
"""Levels of 4 bits."""


def packed(
    codes: UInt8[Tensor, "outputs depth"], half: int
) -> UInt8[Tensor, "outputs bytes"]:
    """Return codes of 4 bits, two a byte: of `half` inputs in the low bits, and of as
    many after them in the high bits.
    """
    low, high = codes.unflatten(1, (-1, 2, half)).unbind(2)
    return (low | high << 4).flatten(1)


def narrowed(scales: Scales, groups: int) -> tuple[Tensor, Tensor | None]:
    """Return values and factors of a matrix in the fewest bits that hold them."""
    values, factors = scales.values, scales.factors
    if factors is not None:
        small = factors.to(torch.int8)
        if torch.equal(small.to(factors.dtype), factors):
            factors = small
        else:
            values, factors = scales.dense(groups), None
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(dtype).float(), values):
            return values.to(dtype), factors
    return values, factors


class QuantizedLinear(nn.Module):
    """An nn.Linear whose weight exists only as codes, scales and offsets."""

    codes: Tensor
    levels: Tensor | None
    scales: Tensor
    scale_factors: Tensor | None
    offsets: Tensor | None
    offset_factors: Tensor | None

    def __init__(self, linear: nn.Linear, matrix: Coded) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._group = matrix.group
        self._half = _half(matrix.group)
        self._low = 0
        weight = linear.weight.detach()
        codes = matrix.codes.to(weight.device)
        levels: Tensor | None = matrix.levels.to(weight.device)
        self._bits = 4 if len(matrix.levels) <= NIBBLE else 8
        if levels.is_floating_point():
            levels = None  # the kernel takes the bytes as they are
        elif self._bits == 8:
            codes, levels = levels[codes.int()], None
        else:
            codes = packed(codes, self._half)
            if matrix.consecutive:
                self._low, levels = int(matrix.levels[0]), None
        scales = narrowed(matrix.scale, matrix.groups)
        offsets = None, None
        if matrix.offset is not None:
            offsets = narrowed(matrix.offset, matrix.groups)
        names = "levels", "scales", "scale_factors", "offsets", "offset_factors"
        held = dict(zip(names, (levels, *scales, *offsets), strict=True))
        for name, tensor in {"codes": codes, **held}.items():
            moved = None if tensor is None else tensor.to(weight.device).contiguous()
            self.register_buffer(name, moved, persistent=False)
        self._spans = [
            1 if values is None else matrix.groups // values.shape[1]
            for values in (self.scales, self.offsets)
        ]
        self.bias = linear.bias
        # model code reads the dtype of a projection's weight
        self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    @property
    def bits(self) -> int:
        """Bits of all that stands for the weight."""
        return sum(8 * held.nbytes for held in self.buffers())

    def forward(
        self, x: Float[Tensor, "*rows in_features"]
    ) -> Float[Tensor, "*rows out_features"]:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = rows.new_empty(len(rows), self.out_features)
        grid = -(-self.out_features // OUTPUTS), -(-len(rows) // ROWS)
        fused_library().weight_only[grid](
            rows,
            self.codes,
            self.levels,
            self.scales,
            self.scale_factors,
            self.offsets,
            self.offset_factors,
            self.bias,
            out,
            len(rows),
            self.out_features,
            self.in_features,
            self._group,
            *self._spans,
            BITS=self._bits,
            LOW=self._low,
            HALF=self._half,
            APART=self._group % (2 * self._half) > 0,
            OUTPUTS=OUTPUTS,
            UPCAST=INTERPRETED and rows.dtype == torch.bfloat16,
        )
        return out.view(*x.shape[:-1], self.out_features)


class HoldsCodes:
    """A mixin: `quantize` and `take_codes` for a backend of recordings."""

    model: PreTrainedModel
    swaps: list[Swap] | None = None
    """Where replaced layers are noted; None = the originals are not needed again."""
    _recordings: dict[Any, Any]

    def quantize(self, *, coding: int | None = None) -> None:
        """Hold linear layers in this coding from now on; None = as they are. No
        sequence may be open.
        """
        if coding is not None:
            self._take_swaps(swap_in_codes(self.model, coding))

    def take_codes(self) -> float:
        """Multiply by the codes that linear layers hold (`coded`) instead of weights;
        return the bits of a weight.
        """
        swaps = _swapped(self.model, _own)
        self._take_swaps(swaps)
        codes = [getattr(swap.parent, swap.name) for swap in swaps]
        weights = sum(one.in_features * one.out_features for one in codes)
        return sum(one.bits for one in codes) / weights if weights else 16

    def _take_swaps(self, swaps: list[Swap]) -> None:
        if self.swaps is not None:
            self.swaps.extend(swaps)
        self._recordings.clear()


def swap_in_codes(model: PreTrainedModel, coding: int) -> list[Swap]:
    """Quantize the linear layers of a model, except its LM head; `swap_out` undoes it.

    `coding` is BYTES or GROUPS of native/forward.py. Layers with hooks, and with other
    inputs than multiples of GROUP, stay as they are. Raises ModelError where none is
    left.
    """
    swaps = _swapped(model, partial(_rounded, coding))
    if not swaps:
        raise ModelError(
            f"cannot quantize the weights of {type(model).__name__}: it has no "
            f"nn.Linear layer with a multiple of {GROUP} inputs. Leave 'weights' out"
        )
    return swaps


def _swapped(
    model: PreTrainedModel, matrix_of: Callable[[nn.Linear], Coded | None]
) -> list[Swap]:
    """Replace the linear layers for which a matrix is returned, except the LM head."""
    head = lm_head(model)
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or child is head or not untouched(child):
                continue
            matrix = matrix_of(child)
            if matrix is not None:
                setattr(parent, name, QuantizedLinear(child, matrix))
                swaps.append(Swap(parent, name, child))
    return swaps


def _rounded(coding: int, linear: nn.Linear) -> Coded | None:
    """Quantize the weight of a layer; return None for one with other inputs."""
    if linear.in_features % GROUP:
        return None
    bits, group = 8, linear.in_features
    if coding == forward.GROUPS:
        bits, group = 4, GROUP
    codes, scales = quantized(linear.weight.detach().float(), bits, group)
    half = 1 << (bits - 1)
    levels = torch.arange(-half, half).to(torch.int8)
    raised = (codes.to(torch.int16) + half).to(torch.uint8)
    return Coded(raised, levels, Scales(scales.float()), None, group)


def _own(linear: nn.Linear) -> Coded | None:
    """Read the codes of a layer; return None where it has none, or other inputs, or
    they round the weights: rows are not rounded here.
    """
    matrix = vars(linear).get("coded", vars(linear).get("coded_floats"))
    if not isinstance(matrix, Matrix) or matrix.exact is not None:
        return None
    coded = matrix.read()
    return None if linear.in_features % (2 * _half(coded.group)) else coded


def _half(group: int) -> int:
    """Return how many inputs are multiplied at once; a tensor core takes 16."""
    return 16 if group % 64 else 32
