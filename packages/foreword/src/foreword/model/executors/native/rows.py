"""Key-value pool of the C forward: pages in the layout of csrc/attention/kv.c."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model import architectures
from foreword.model.architectures import is_recurrent
from foreword.model.executors.native.layout import parts_of
from foreword.model.kv.limit import SCALE
from foreword.model.kv.pages import PagePool
from foreword.model.kv.prefixes import PAGE
from foreword.native import forward


class Rows(PagePool):
    """Keys and values in the layout of kv.c: each page is a tensor of its own, with the
    keys and values of every layer.
    """

    def __init__(
        self, heads: Sequence[int], dim: int, coding: int = forward.WHOLE
    ) -> None:
        """`heads`: KV heads of each layer; 0 = it has no keys and values. `coding`:
        WHOLE or BYTES.
        """
        super().__init__()
        self.coding, self._dtype = coding, torch.bfloat16
        if coding == forward.BYTES:
            self._dtype, dim = torch.int8, dim + SCALE
        sizes = [count * dim * PAGE for count in heads]
        self._keys = [2 * sum(sizes[:number]) for number in range(len(sizes))]
        self._values = [
            start + size for start, size in zip(self._keys, sizes, strict=True)
        ]
        self._size = 2 * sum(sizes)
        self.row_bytes = self._size * self._dtype.itemsize // PAGE
        self._storage: list[Tensor] = []
        self.addresses = array("q")

    def attach(
        self, layers: ctypes.Array[forward.Layer] | Sequence[forward.Layer]
    ) -> None:
        """Set where the keys and values of each layer start in a page."""
        for layer, keys, values in zip(layers, self._keys, self._values, strict=True):
            layer.keys, layer.values = keys, values

    def resize(self, count: int) -> None:
        while len(self._storage) < count:
            self._storage.append(torch.zeros(self._size, dtype=self._dtype))
            self.addresses.append(self._storage[-1].data_ptr())

    def page(self, number: int) -> Tensor:
        """Return the keys and values of a page, all layers one after the other."""
        return self._storage[number]

    def copy(self, source: int, target: int) -> None:
        self._storage[target].copy_(self._storage[source])


def rows_of(model: PreTrainedModel, coding: int = forward.WHOLE) -> Rows:
    """Return an empty pool for the keys and values of a model."""
    count = kv_head_count(model)
    heads = [0 if is_recurrent(layer) else count for layer in parts_of(model)]
    return Rows(heads, head_size(model), coding)


def kv_head_count(model: PreTrainedModel) -> int:
    """Return the number of KV heads from the weights: some configs state one that the
    model does not use.
    """
    size = head_size(model)
    outputs = [
        architectures.shape(part)[0] // size
        for part in architectures.linears(first_attention(model))["qkv"]
    ]
    return (
        outputs[1]
        if len(outputs) == 3
        else (outputs[0] - architectures.query_heads(model.config.get_text_config()))
        // 2
    )


def head_size(model: PreTrainedModel) -> int:
    """Return the head dimension."""
    _, depth = architectures.shape(
        architectures.linears(first_attention(model))["out"][0]
    )
    return depth // architectures.query_heads(model.config.get_text_config())


def first_attention(model: PreTrainedModel) -> Any:
    """Return the first layer that has attention."""
    return next(layer for layer in parts_of(model) if not is_recurrent(layer))
