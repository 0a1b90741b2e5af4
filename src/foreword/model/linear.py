"""Linear layers on CPU with their weights laid out once for oneDNN: faster, and the same bits for any number of rows.

Knows weights; knows nothing about models. Measured figures are in docs/performance.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

MIN_ROWS = 4
"""A single row takes another oneDNN kernel, with another order of summation, and two take longer than four where there
is no AMX; forwards are padded to at least this."""
MOST_ROWS, DEPTH = 32, 512
"""With more rows than this oneDNN cuts longer sums than this elsewhere, in bfloat16 on CPUs with AMX."""


class PackedLinear(nn.Module):
    """An nn.Linear whose weight is held in oneDNN's own blocked layout, and only there.

    Equal to `F.linear` up to the rounding of its dtype. From MIN_ROWS rows on, a row's result does not depend on how
    many rows stand beside it, where it stands or what they hold, bit for bit.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        # Model code asks a projection for its dtype; an empty tensor answers without holding the weight twice.
        self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)
        in_matrices = weight.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
        self._most = MOST_ROWS if in_matrices and self.in_features > DEPTH else None

    @property
    def dense(self) -> Float[Tensor, "out_features in_features"]:
        """The weight row by row, a copy."""
        return self._packed.to_dense()

    def refill(self, weight: Float[Tensor, "out_features in_features"]) -> None:
        """Multiply by another weight from now on, of the same dtype."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())

    def forward(self, x: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        if self._most is None or x.numel() <= self._most * self.in_features:
            return self._multiply(x)
        rows = x.reshape(-1, self.in_features)
        parts = [self._multiply(part) for part in rows.tensor_split(-(-len(rows) // self._most))]
        return torch.cat(parts).view(*x.shape[:-1], self.out_features)

    def _multiply(self, x: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


def packable(module: nn.Module) -> bool:
    """A plain linear layer on CPU in a dtype that oneDNN multiplies, with nothing hooked into it by its owner."""
    return (
        type(module) is nn.Linear
        and module.weight.device.type == "cpu"
        and (module.weight.dtype == torch.float32 or (module.weight.dtype == torch.bfloat16 and fast_bfloat16()))
        and torch.backends.mkldnn.is_available()
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
    )


@dataclass(frozen=True, slots=True)
class Swap:
    """One layer that was replaced inside a model, and what stood there."""

    parent: nn.Module
    name: str
    original: nn.Linear


def swap_in(model: nn.Module) -> list[Swap]:
    """Replace every packable linear layer inside `model` by its packed form; `swap_out` undoes it."""
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and packable(child):
                setattr(parent, name, PackedLinear(child))
                swaps.append(Swap(parent, name, child))
    return swaps


def swap_out(swaps: list[Swap]) -> None:
    """Put the original layers back."""
    for swap in swaps:
        setattr(swap.parent, swap.name, swap.original)


def fast_bfloat16() -> bool:
    """The CPU multiplies bfloat16 in hardware (AMX, or AVX512-bf16)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
