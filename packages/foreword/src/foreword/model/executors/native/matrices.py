"""Packed weights that C structs point to: bfloat16 panels, or codes of fewer bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import BFloat16, Int
from torch import Tensor

from foreword.model.executors.native.layout import (
    PANEL,
    matrices_of,
    products,
    room,
    vectors,
)
from foreword.native import forward, nodes
from foreword.native.huge_pages import BLOCK, Pages
from foreword.native.openmp import threads

BESIDE = ("head", "join")
"""Matrices of a model that are in no layer."""


class Matrices:
    """The memory of packed weights, in huge pages."""

    def __init__(self) -> None:
        self.library = forward.needed()
        self.held: list[Tensor] = []
        """Tensors that C structs point to as long as this object lives."""
        self._pages = Pages()

    @property
    def bytes(self) -> int:
        """Return the bytes of all weights that are held."""
        return sum(held.nbytes for held in self.held)

    def pack_layer(
        self,
        described: forward.Layer,
        layer: Any,
    ) -> None:
        """Pack the weights of a layer, and point its struct to them."""
        for name, weight in products(layer).items():
            setattr(described, name, self.pack(weight))
        for name, vector in vectors(layer).items():
            setattr(described, name, self.keep(vector))

    def pack(self, weight: Tensor) -> int:
        """Pack a matrix [outputs, depth], bfloat16; return its address."""
        weight = weight.detach().contiguous()
        outputs, depth = room(len(weight)), weight.shape[1]
        size = weight.itemsize * outputs * depth
        memory = self.empty(size, outputs)
        packed = memory.view(weight.dtype)
        packed = packed.view(outputs, depth)
        if not weight.is_meta:  # else it comes from a file
            self.library.foreword_pack(
                weight.data_ptr(), packed.data_ptr(), *weight.shape
            )
        return self.keep(packed)

    def keep(self, tensor: Tensor) -> int:
        """Hold a tensor; return its address."""
        self.held.append(tensor.contiguous())
        return self.held[-1].data_ptr()

    def empty(self, size: int, outputs: int) -> Tensor:
        """Return memory for so many bytes of a matrix, which `keep` holds. With several
        NUMA nodes, a page lies on the node of the thread that reads its outputs.
        """
        memory = self._pages.empty((size,), torch.uint8)
        if nodes.divide() > 1 and self._pages.folder is None:
            address = memory.data_ptr()
            count = threads()
            self.library.foreword_touch(address, size, outputs, count)
        return memory

    def is_apart(self, tensor: Tensor) -> bool:
        """Return whether a tensor may stay when others go: it shares no memory."""
        return tensor.nbytes >= BLOCK and self._pages.folder is None

    def hold(self, tensor: Tensor) -> int:
        """Copy a tensor to pages of its own; return its address."""
        return self.keep(self._pages.empty(tensor.shape, tensor.dtype).copy_(tensor))

    def quantize(
        self,
        models: Sequence[forward.Model],
        coding: int,
    ) -> None:
        """Quantize every matrix of these models to 8 bits, or to 4 bits in groups, and
        free the bfloat16 weights.
        """
        whole = self.held
        self.drop(*models)
        for model in models:
            self.code(model, coding, whole)

    def drop(self, *models: forward.Model) -> None:
        """Hold the matrices of these models no longer."""
        layers = [layer for model in models for layer in model.layer[: model.layers]]
        packed = {getattr(model, name) for model in models for name in BESIDE}
        for layer in layers:
            packed |= {getattr(layer, name) for name in matrices_of(layer)}
        routers = {layer.router for layer in layers if layer.router}
        apart = {
            held.data_ptr(): held for held in self.held if held.data_ptr() in routers
        }
        # embeddings that are looked up in a packed head stay
        gone = (packed | routers) - {model.table for model in models}
        self.held = [held for held in self.held if held.data_ptr() not in gone]
        self._pages = Pages()
        # routers move to new pages, or they would keep the pages of the others
        moved = {address: self.hold(router) for address, router in apart.items()}
        for layer in layers:
            layer.router = moved.get(layer.router, layer.router)

    def code(
        self,
        described: forward.Model,
        coding: int,
        whole: Sequence[Tensor],
    ) -> None:
        """Quantize every matrix in `whole` that the model points to, and point it to
        the codes.
        """
        packed = {matrix.data_ptr(): matrix for matrix in whole}
        for layer in described.layer[: described.layers]:
            for name in matrices_of(layer):
                setattr(layer, name, self._coded(packed[getattr(layer, name)], coding))
        for name in BESIDE:
            if (address := getattr(described, name)) in packed:
                setattr(described, name, self._coded(packed[address], coding))
        described.coding = coding

    def _coded(self, packed: Tensor, coding: int) -> int:
        if coding == forward.GROUPS and packed.shape[1] % forward.GROUP:
            from foreword.model.executors.native import grouped

            return self.keep(grouped.whole(packed, self.empty))
        size = self.library.foreword_coded_bytes(*packed.shape, coding)
        codes = self.empty(size, len(packed)).zero_()
        self.library.foreword_quantize(
            packed.data_ptr(), codes.data_ptr(), *packed.shape, coding
        )
        return self.keep(codes)


def looked_up(
    packed: BFloat16[Tensor, "outputs depth"], outputs: Int[Tensor, "*rows"]
) -> BFloat16[Tensor, "*rows depth"]:
    """Return some rows of a packed matrix. Reference for `packed_row` in layer.c."""
    whole, depth = len(packed) // PANEL * PANEL, packed.shape[1]
    panels = packed[:whole].view(-1, depth // 2, PANEL, 2)
    rest = packed[whole:].view(depth // 2, -1, 2)
    rows = outputs.flatten()
    result = packed.new_empty(len(rows), depth // 2, 2)
    early = rows < whole
    result[early] = panels[rows[early] // PANEL, :, rows[early] % PANEL]
    result[~early] = rest[:, rows[~early] - whole].transpose(0, 1)
    return result.view(*outputs.shape, depth)
