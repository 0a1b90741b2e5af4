"""Provides an adapter that is fitted to a model: what it adds to the outputs of linear
layers, for the rows of its sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

from foreword.errors import ModelError
from foreword.model.adapters.folder import Pair
from foreword.model.executors.torch.packed_linear import (
    MIN_ROWS,
    PackedLinear,
    packable,
)


class LowRank:
    """The pair of one layer, in float32 as PEFT computes it. The bits of a row do not
    depend on the other rows, nor on their number.
    """

    def __init__(self, pair: Pair) -> None:
        self._down = _layer(pair.down)
        self._up = _layer(pair.up)
        self._scale = pair.scale

    def __call__(
        self, x: Float[Tensor, "rows inputs"]
    ) -> Float32[Tensor, "rows outputs"]:
        rows = x.float()
        spare = MIN_ROWS - len(rows)
        if spare > 0:
            rows = torch.cat([rows, rows[-1:].expand(spare, -1)])
        return self._up(self._down(rows))[: len(x)] * self._scale


class LoraAdapter:
    """The pairs of a model's linear layers; other models may have adapters of the same
    name.
    """

    def __init__(self, name: str, pairs: Mapping[nn.Module, LowRank]) -> None:
        self.name = name
        self._pairs = pairs

    @contextmanager
    def on(self, rows: list[int], count: int) -> Iterator[None]:
        """Add the pairs to these rows of forwards of `count` rows that run inside."""
        index = torch.tensor(rows)
        with ExitStack() as hooks:
            for layer, pair in self._pairs.items():
                add = partial(_add, pair, index, count)
                hook = layer.register_forward_hook(add)
                hooks.callback(hook.remove)
            yield


def _add(
    pair: LowRank,
    index: Int[Tensor, "own"],
    count: int,
    layer: nn.Module,
    given: tuple[Tensor, ...],
    output: Float[Tensor, "*rows outputs"],
) -> Float[Tensor, "*rows outputs"]:
    """Return the output of a layer with a pair added to the rows of `index`."""
    x = given[0].flatten(0, -2)
    rows = output.flatten(0, -2)
    if len(x) != count:
        raise ModelError(
            f"cannot add an adapter to a {type(layer).__name__}: it reads {len(x)} of "
            f"the {count} rows of a forward. Merge the adapter into the model"
        )
    own = rows[index] + pair(x[index])
    rows[index] = own.to(rows.dtype)
    return rows.view_as(output)


def _layer(weight: Float32[Tensor, "outputs inputs"]) -> nn.Module:
    """Return a linear layer without a bias, packed where the executor packs them."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return PackedLinear(layer) if packable(layer) else layer
