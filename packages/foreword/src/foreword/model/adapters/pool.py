"""Adapters of the backend `pool`: pairs that hooks add to the outputs of layers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.adapters.folder import LoraFolder, Pair
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.packed_linear import (
    MIN_ROWS,
    PackedLinear,
    packable,
)
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Span
from foreword.types import Adapter


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


class LoraAdapter(Adapter):
    """The pairs of a model's linear layers; another model may use the same names."""

    def __init__(self, folder: LoraFolder, layers: Mapping[str, nn.Module]) -> None:
        """`layers`: the linear layers that it adds to, by name."""
        super().__init__(folder.key)
        self._pairs = {
            layers[name]: LowRank(pair) for name, pair in folder.pairs.items()
        }

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
    inputs: tuple[Tensor, ...],
    output: Float[Tensor, "*rows outputs"],
) -> Float[Tensor, "*rows outputs"]:
    """Return the output of a layer with a pair added to the rows of `index`."""
    x = inputs[0].flatten(0, -2)
    rows = output.flatten(0, -2)
    if len(x) != count:
        raise ModelError(
            f"cannot add an adapter to a {type(layer).__name__}: it reads {len(x)} of "
            f"the {count} rows of a forward. Merge the adapter into the model"
        )
    sums = rows[index] + pair(x[index])
    rows[index] = sums.to(rows.dtype)
    return rows.view_as(output)


def _layer(weight: Float32[Tensor, "outputs inputs"]) -> nn.Module:
    """Return a linear layer without a bias, packed where the executor packs them."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return PackedLinear(layer) if packable(layer) else layer


class TorchAdapters(TorchMemory):
    """Adapters, added to the rows of the sequences that name one. A sequence has the
    model alone until it is given an adapter.
    """

    takes = (LoraAdapter,)
    sequences: dict[int, LoraAdapter]

    def opening(
        self, pool: PagePool, id: int, text: Sequence[int], tenant: str
    ) -> None:
        self.close(pool, id)

    @contextmanager
    def during(
        self, model: PreTrainedModel, spans: Sequence[Span], rows: int
    ) -> Iterator[None]:
        """Add each adapter to the rows of its sequences, in a forward of so many."""
        rows_of: dict[LoraAdapter, list[int]] = {}
        for span in spans:
            adapter = self.sequences.get(span.read.id)
            if adapter is not None:
                rows_of.setdefault(adapter, []).extend(range(span.start, span.stop))
        with ExitStack() as during:
            for adapter, places in rows_of.items():
                during.enter_context(adapter.on(places, rows))
            yield
