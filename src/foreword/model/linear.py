"""Linear layers on CPU with their weights laid out once for oneDNN: faster, and the same bits for any number of rows.

Knows weights; knows nothing about models. Measured figures are in docs/performance.md.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

MIN_ROWS = 4
"""A single row takes another oneDNN kernel, with another order of summation, and two take longer than four where there
is no AMX; forwards are padded to at least this."""
MOST_ROWS, DEPTH = 32, 512
"""With more rows than this oneDNN cuts longer sums than this elsewhere, in bfloat16 on CPUs with AMX."""


TILE = 8
"""Rows of one product where a library may sum otherwise for another number of rows."""


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


class TiledExperts(nn.Module):
    """The experts of a layer, asked one by one and TILE rows at a time, so that a row does not depend on the others.

    Every expert that is asked costs TILE rows at least. What else the model asks of its experts they answer themselves.
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
        top_k_index: Int[Tensor, "rows asked"],
        top_k_weights: Float[Tensor, "rows asked"],
    ) -> Float[Tensor, "rows hidden"]:
        out = torch.zeros_like(hidden_states)
        for expert in top_k_index.unique().tolist():
            row, place = torch.where(top_k_index == expert)
            for rows, places in zip(row.split(TILE), place.split(TILE), strict=True):
                spare = rows[-1:].expand(TILE - len(rows))
                given = hidden_states[torch.cat([rows, spare])]
                weights = top_k_weights[rows, places][:, None]
                weights = torch.cat([weights, weights.new_zeros(len(spare), 1)])
                said = self._experts(given, torch.full((TILE, 1), expert, device=row.device), weights)
                out[rows] += said[: len(rows)]
        return out


EXPERTS = (
    ["hidden_states", "top_k_index", "top_k_weights"],
    ["hidden_states", "router_indices", "routing_weights"],
)
"""What a forward of experts is given, where it can be tiled."""


def tileable(module: nn.Module) -> bool:
    """Experts on CPU that take rows, whom each asks, and how much it trusts them."""
    return [*inspect.signature(module.forward).parameters] in EXPERTS and next(
        (part.device.type for part in module.parameters()), None
    ) == "cpu"


class Tiles(TorchFunctionMode):
    """While inside, products with a weight that is not packed take TILE rows at a time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and isinstance(args[0], Tensor) and len(args) > 1:
            return _tiled(lambda rows: func(rows, *args[1:], **kwargs), args[0])
        return func(*args, **kwargs)


def _tiled(multiply: Any, x: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
    rows = x.reshape(-1, x.shape[-1])
    spare = -len(rows) % TILE
    padded = torch.cat([rows, rows[-1:].expand(spare, -1)]) if spare else rows
    said = torch.cat([multiply(part) for part in padded.split(TILE)])[: len(rows)]
    return said.view(*x.shape[:-1], -1)


def unpacked(model: nn.Module) -> bool:
    """Some matrix is neither packed nor an embedding, so that products with it need tiles."""
    return any(
        weight.dim() > 1 and weight.numel() and weight.device.type == "cpu"
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    )


@dataclass(frozen=True, slots=True)
class Swap:
    """One layer that was replaced inside a model, and what stood there."""

    parent: nn.Module
    name: str
    original: nn.Module


def swap_in(model: nn.Module) -> list[Swap]:
    """Replace every packable linear layer inside `model` by its packed form; `swap_out` undoes it."""
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            linear = _untransposed(child) if type(child) is Conv1D else child
            if isinstance(linear, nn.Linear) and packable(linear):
                setattr(parent, name, PackedLinear(linear))
                swaps.append(Swap(parent, name, child))
    return swaps + tile_experts(model)


def tile_experts(model: nn.Module) -> list[Swap]:
    """Replace the experts inside `model` by their tiled form; `swap_out` undoes it."""
    swaps = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(parent, TiledExperts) and tileable(child):
                setattr(parent, name, TiledExperts(child))
                swaps.append(Swap(parent, name, child))
    return swaps


def own_form(layer: nn.Module) -> Tensor:
    """A view of a layer's weight, Float[out_features, in_features], as `PackedLinear` holds it."""
    weight: Any = layer.weight
    return weight.T if type(layer) is Conv1D else weight


def _untransposed(layer: Conv1D) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight, linear.bias = nn.Parameter(layer.weight.detach().T), nn.Parameter(layer.bias.detach())
    return linear


def swap_out(swaps: list[Swap]) -> None:
    """Put the original layers back."""
    for swap in reversed(swaps):
        setattr(swap.parent, swap.name, swap.original)


def fast_bfloat16() -> bool:
    """The CPU multiplies bfloat16 in hardware (AMX, or AVX512-bf16)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
