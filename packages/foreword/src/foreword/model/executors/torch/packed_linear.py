"""Linear layers on CPU with weights packed once for oneDNN: faster, and the same bits
for any number of rows.

Measurements are in docs/notes/2026-11-performance.md.
"""

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from foreword.native.cpu import fast_bfloat16

MIN_ROWS = 4
"""Rows. Forwards are padded to at least this: one row takes another oneDNN kernel,
which sums in another order, and two rows take longer than four without AMX."""
MOST_ROWS = 32
"""Rows. Beyond them oneDNN splits sums at other positions, in bfloat16 on CPUs with
AMX; the processor decides from how many summands on (512 were seen).
"""

TAIL = 6
"""Rows.

Without AVX-512, oneDNN before 3.12 multiplies float32 so many rows at a time, and sums
the last few in another order.
"""
TILE = 8
"""Rows of one product where a library's summation order depends on their number."""


class PackedLinear(nn.Module):
    """An nn.Linear whose weight exists only in oneDNN's blocked layout.

    Equal to `F.linear` up to the rounding of its dtype. From MIN_ROWS rows on, a row's
    result is bit for bit independent of the other rows, their number and its own index.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        """The weight in oneDNN's layout."""
        self.bias = (
            None
            if linear.bias is None
            else nn.Parameter(linear.bias.detach(), requires_grad=False)
        )
        # Model code reads the dtype of a projection's weight; an empty tensor has it
        # without a second copy.
        self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)
        in_matrices = (
            weight.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
        )
        self._most = MOST_ROWS if in_matrices else None
        self._padded = weight.dtype == torch.float32 and tail_differs()

    @property
    def dense(self) -> Float[Tensor, "out_features in_features"]:
        """Return a copy of the weight in row-major layout."""
        return self.packed.to_dense()

    def forward(
        self, x: Float[Tensor, "*rows in_features"]
    ) -> Float[Tensor, "*rows out_features"]:
        if self._most is None or x.numel() <= self._most * self.in_features:
            return self._multiply(x)
        rows = x.reshape(-1, self.in_features)
        parts = [
            self._multiply(part)
            for part in rows.tensor_split(-(-len(rows) // self._most))
        ]
        return torch.cat(parts).view(*x.shape[:-1], self.out_features)

    def _multiply(
        self, x: Float[Tensor, "*rows in_features"]
    ) -> Float[Tensor, "*rows out_features"]:
        if not self._padded:
            return self._product(x)
        rows = x.reshape(-1, self.in_features)
        padded = F.pad(rows, (0, 0, 0, -len(rows) % TAIL))
        result = self._product(padded)[: len(rows)]
        return result.view(*x.shape[:-1], self.out_features)

    def _product(
        self, x: Float[Tensor, "*rows in_features"]
    ) -> Float[Tensor, "*rows out_features"]:
        return torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, "none", [], ""
        )


def padded(
    rows: Float[Tensor, "rows features"],
) -> Float[Tensor, "padded features"]:
    """Return the rows with zeros after them, at least MIN_ROWS."""
    short = max(0, MIN_ROWS - len(rows))
    return F.pad(rows, (0, 0, 0, short))


@cache
def tail_differs() -> bool:
    """Return whether the bits of the last float32 rows of a product depend on their
    number, as oneDNN multiplies on this machine.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=generator)
    x = torch.randn(2 * TAIL, 64, generator=generator)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    whole, part = (
        torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        for rows in (x, x[: TAIL + 1])
    )
    return not torch.equal(whole[: TAIL + 1], part)


def packable(module: nn.Module) -> bool:
    """Return whether a module is a plain nn.Linear on CPU that oneDNN multiplies."""
    if type(module) is not nn.Linear or module.weight.device.type != "cpu":
        return False
    dtype = module.weight.dtype
    fast = dtype == torch.float32 or (dtype == torch.bfloat16 and fast_bfloat16())
    hooked = module._forward_hooks or module._forward_pre_hooks
    patched = "forward" in vars(module)
    available = torch.backends.mkldnn.is_available()
    return fast and available and not (hooked or patched)


class TiledExperts(nn.Module):
    """The experts of a layer, run one by one on TILE rows at a time, so that a row does
    not depend on the others.

    Every selected expert costs at least TILE rows. Other attributes come from the
    wrapped experts.
    """

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self._experts = experts

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_experts"), name)

    def forward(
        self,
        hidden_states: Float[Tensor, "rows hidden"],
        top_k_index: Int[Tensor, "rows selected"],
        top_k_weights: Float[Tensor, "rows selected"],
    ) -> Float[Tensor, "rows hidden"]:
        out = torch.zeros_like(hidden_states)
        for expert in top_k_index.unique().tolist():
            row, rank = torch.where(top_k_index == expert)
            for rows, ranks in zip(row.split(TILE), rank.split(TILE), strict=True):
                spare = rows[-1:].expand(TILE - len(rows))
                padded = hidden_states[torch.cat([rows, spare])]
                weights = top_k_weights[rows, ranks][:, None]
                weights = torch.cat([weights, weights.new_zeros(len(spare), 1)])
                result = self._experts(
                    padded, torch.full((TILE, 1), expert, device=row.device), weights
                )
                out[rows] += result[: len(rows)]
        return out


EXPERTS = (
    ["hidden_states", "top_k_index", "top_k_weights"],
    ["hidden_states", "router_indices", "routing_weights"],
)
"""Parameter names of the forwards of experts that can be tiled."""


def tileable(module: nn.Module) -> bool:
    """Return whether a module is experts on CPU with (rows, indices, weights)."""
    # transformers replaces the forward of a module that it splits among processes
    _, *names = inspect.signature(type(module).forward).parameters
    return (
        names in EXPERTS
        and next((part.device.type for part in module.parameters()), None) == "cpu"
    )


class Tiles(TorchFunctionMode):
    """A mode in which products with unpacked weights take TILE rows at a time."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and isinstance(args[0], Tensor) and len(args) > 1:
            return _tiled(lambda rows: func(rows, *args[1:], **kwargs), args[0])
        return func(*args, **kwargs)


def _tiled(
    multiply: Any, x: Float[Tensor, "*rows in_features"]
) -> Float[Tensor, "*rows out_features"]:
    rows = x.reshape(-1, x.shape[-1])
    spare = -len(rows) % TILE
    padded = torch.cat([rows, rows[-1:].expand(spare, -1)]) if spare else rows
    result = torch.cat([multiply(part) for part in padded.split(TILE)])[: len(rows)]
    return result.view(*x.shape[:-1], -1)


def unpacked(model: nn.Module) -> bool:
    """Return whether products of a CPU matrix need tiles: not packed, no embedding."""
    layers = [one for one in model.modules() if not isinstance(one, nn.Embedding)]
    return any(
        weight.dim() > 1 and weight.numel() and weight.device.type == "cpu"
        for layer in layers
        for weight in layer.parameters(recurse=False)
    )


@dataclass(frozen=True, slots=True)
class Swap:
    """A replaced layer of a model, with the original."""

    parent: nn.Module
    name: str
    original: nn.Module


def swap_in(model: nn.Module) -> list[Swap]:
    """Pack every linear layer that can be, and tile experts; `swap_out` undoes it."""
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            linear = _untransposed(child) if type(child) is Conv1D else child
            if isinstance(linear, nn.Linear) and packable(linear):
                setattr(parent, name, PackedLinear(linear))
                swaps.append(Swap(parent, name, child))
    return swaps + tile_experts(model)


def tile_experts(model: nn.Module) -> list[Swap]:
    """Replace the experts of `model` by their tiled form; `swap_out` undoes it."""
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(parent, TiledExperts) and tileable(child):
                setattr(parent, name, TiledExperts(child))
                swaps.append(Swap(parent, name, child))
    return swaps


def _untransposed(layer: Conv1D) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = nn.Parameter(layer.weight.detach().T)
    linear.bias = nn.Parameter(layer.bias.detach())
    return linear


def swap_out(swaps: list[Swap]) -> None:
    """Restore the original layers."""
    for swap in reversed(swaps):
        setattr(swap.parent, swap.name, swap.original)
