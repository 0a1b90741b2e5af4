"""Linear layers in 8 or 4 bits on CUDA: weights are codes times scales, and rows keep
their dtype.

`foreword quantize` writes the same codes and scales (quantized/write.py): a scale for
each output in 8 bits, and for 64 of its inputs in 4 bits.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.architectures import lm_head
from foreword.model.executors.cuda.fused import untouched
from foreword.model.executors.cuda.launch import INTERPRETED, fused_library
from foreword.model.executors.torch.packed_linear import Swap
from foreword.model.quantized.write import GROUP, quantized
from foreword.native import forward

ROWS = 64
"""Rows of one product."""
STEP = GROUP
"""Inputs whose products are summed before the scale multiplies them."""
OUTPUTS = 32
"""Outputs of one program."""


def multiply(
    x: Float[Tensor, "rows depth"],
    codes: Int8[Tensor, "outputs depth"],
    scales: Float[Tensor, "outputs groups"],
    bias: Float[Tensor, "outputs"] | None,
) -> Float[Tensor, "rows outputs"]:
    """Return the product as `weight_only` of fused_kernels.py defines it."""
    depth = codes.shape[1]
    group = depth // scales.shape[1]
    shape = len(x), len(codes)
    total = torch.zeros(shape, dtype=torch.float32, device=x.device)
    for first in range(0, depth, STEP):
        inputs = slice(first, first + STEP)
        part = x[:, inputs].float() @ codes[:, inputs].float().T
        total += part * scales[:, first // group].float()
    return (total if bias is None else total + bias.float()).to(x.dtype)


def packed(codes: Int8[Tensor, "outputs depth"]) -> UInt8[Tensor, "outputs bytes"]:
    """Return codes of 4 bits, two a byte: of STEP inputs, the first half in low bits
    and the second in high bits.
    """
    low, high = (codes + 8).unflatten(1, (-1, 2, STEP // 2)).unbind(2)
    return (low | high << 4).flatten(1).view(torch.uint8)


class QuantizedLinear(nn.Module):
    """An nn.Linear whose weight exists only as codes and scales."""

    codes: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear, coding: int) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._bits = 8
        size = linear.in_features
        if coding == forward.GROUPS:
            self._bits = 4
            size = GROUP
        codes, scales = quantized(weight.float(), self._bits, size)
        if coding == forward.GROUPS:
            codes = packed(codes)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.bias = linear.bias
        # model code reads the dtype of a projection's weight
        self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    def forward(
        self, x: Float[Tensor, "*rows in_features"]
    ) -> Float[Tensor, "*rows out_features"]:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = rows.new_empty(len(rows), self.out_features)
        grid = -(-self.out_features // OUTPUTS), -(-len(rows) // ROWS)
        fused_library().weight_only[grid](
            rows,
            self.codes,
            self.scales,
            self.bias,
            out,
            len(rows),
            self.out_features,
            self.in_features,
            self.in_features // self.scales.shape[1],
            BITS=self._bits,
            OUTPUTS=OUTPUTS,
            UPCAST=INTERPRETED and rows.dtype == torch.bfloat16,
        )
        return out.view(*x.shape[:-1], self.out_features)


def swap_in_codes(model: PreTrainedModel, coding: int) -> list[Swap]:
    """Quantize the linear layers of a model, except its LM head; `swap_out` undoes it.

    `coding` is BYTES or GROUPS of native/forward.py. Layers with hooks, and with other
    inputs than multiples of STEP, stay as they are. Raises ModelError where none is
    left.
    """
    head = lm_head(model)
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or child is head:
                continue
            if child.in_features % STEP == 0 and untouched(child):
                setattr(parent, name, QuantizedLinear(child, coding))
                swaps.append(Swap(parent, name, child))
    if not swaps:
        raise ModelError(
            f"cannot quantize the weights of {type(model).__name__}: it has no "
            f"nn.Linear layer with a multiple of {STEP} inputs. Leave 'weights' out"
        )
    return swaps
