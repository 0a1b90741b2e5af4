"""Whole draft trees in one C call (csrc/tree.c)."""

import ctypes
from collections.abc import Sequence
from ctypes import (
    Structure,
    byref,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from foreword.native import forward, layout
from foreword.native.layout import fields
from foreword.types.growth import Children, GrownTree, TreeRequest

BLOCK = 128
"""Tokens whose noise C computes together."""


class CoupledTree(Structure):
    """The request, and memory for the result."""

    __slots__ = ()
    _fields_ = fields(c_int64, "most breadth deep width reads")
    _fields_ += fields(c_double, "floor expand")
    _fields_ += fields(c_float, "temperature scale")
    _fields_ += fields(c_void_p, "key")
    _fields_ += fields(c_int64, "target")
    _fields_ += fields(c_void_p, "words ids")
    _fields_ += fields(c_int64, "ends")
    _fields_ += fields(c_void_p, "end distributions")
    _fields_ += fields(c_int64, "count held")
    _fields_ += fields(c_void_p, "tokens parents probabilities")
    _fields_ += fields(c_int64, "chosen")
    _fields_ += fields(c_void_p, "best_tokens best_parents best_probabilities")
    _fields_ += fields(c_void_p, "read_tokens read_parents child value")


class Rows(Sequence[Children]):
    """Children in C arrays, converted on access, since few rows are ever used."""

    def __init__(
        self,
        child: ctypes.Array[c_int64],
        value: ctypes.Array[c_float],
        breadth: int,
        rows: int,
    ) -> None:
        self._child = child
        self._value = value
        self._breadth = breadth
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, row: int) -> Children: ...

    @overload
    def __getitem__(self, row: slice) -> list[Children]: ...

    def __getitem__(self, row: int | slice) -> Children | list[Children]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(self._rows))]
        if not 0 <= row < self._rows:
            raise IndexError(row)
        at = slice(row * self._breadth, (row + 1) * self._breadth)
        tokens = [token for token in self._child[at] if token >= 0]
        return tokens, self._value[at][: len(tokens)]


class NativeTreeGrower:
    """A grower of draft trees with one model, whose memory is reused for each tree."""

    def __init__(self, library: ctypes.CDLL, model: forward.Model) -> None:
        layout.check(library, {"CoupledTree": CoupledTree}, "native/tree.py")
        self._library, self._model = library, model
        self._nodes: tuple[ctypes.Array[Any], ...] = ()
        self._logits = self._scratch = torch.empty(0, 0, dtype=torch.float32)
        self._words = torch.empty(0, dtype=torch.int32)
        self._target = model.vocab
        if model.ids:
            ids = (c_int32 * model.vocab).from_address(model.ids)
            self._target = 1 + int(np.frombuffer(ids, dtype=np.int32).max())

    def room(self, rows: int) -> Float[Tensor, "rows vocab"]:
        """Return the buffer for the logits of `rows` rows, valid until a new tree."""
        if self._logits.shape[0] < rows:
            vocab = self._model.vocab
            self._logits = torch.empty(rows, vocab, dtype=torch.float32)
            # C writes whole vectors
            self._scratch = torch.empty(vocab + forward.LANES, dtype=torch.float32)
        return self._logits

    def grow(
        self,
        forward: forward.Forward,
        ask: TreeRequest,
        reads: int,
        threads: int,
        *,
        distributions: Float[Tensor, "deep vocab"] | None = None,
    ) -> GrownTree:
        """Run `forward`, then grow a tree by reading at most `reads` draft tokens.

        `forward` must write its logits to the tensor of `room`, and its scratch must
        hold `ask.width` rows. `distributions` (float32 logits) replace the model at
        each depth; its head, if any, adds the logits of the token before.
        """
        most = (reads + 1) * ask.breadth
        self._reserve(most)
        # What C fills in: the chosen tree, the nodes that were read, their children.
        tokens, parents = (c_int64 * ask.most)(), (c_int64 * ask.most)()
        probabilities = (c_double * ask.most)()
        read, before = (c_int64 * (reads + 1))(), (c_int64 * (reads + 1))()
        child, value = (c_int64 * most)(), (c_float * most)()
        filled = (tokens, parents, probabilities, read, before, child, value)
        ends = (c_int64 * len(ask.ends))(*ask.ends)
        key = None if ask.key is None else c_uint64(ask.key)
        target = self._target if ask.ids is None else ask.target
        if len(self._words) <= target + BLOCK:
            self._words = torch.empty(target + BLOCK + 1, dtype=torch.int32)
        growth = CoupledTree(
            ask.most,
            ask.breadth,
            ask.deep,
            ask.width,
            reads,
            *(ask.floor, ask.expand, ask.temperature, ask.scale),
            None if key is None else ctypes.addressof(key),
            target,
            self._words.data_ptr(),
            None if ask.ids is None else ask.ids.data_ptr(),
            len(ask.ends),
            ctypes.addressof(ends),
            None if distributions is None else distributions.data_ptr(),
            0,
            0,
            *map(ctypes.addressof, self._nodes),
            0,
            *map(ctypes.addressof, filled),
        )
        structs = (byref(self._model), byref(forward), byref(growth))
        self._library.foreword_grow(*structs, self._scratch.data_ptr(), threads)
        chosen, held = growth.chosen, growth.held
        children = Rows(child, value, ask.breadth, held + 1)
        tree = (tokens[:chosen], parents[:chosen], probabilities[:chosen])
        return GrownTree(*tree, read[:held], before[:held], children)

    def _reserve(self, count: int) -> None:
        """Have arrays for the token, parent and probability of so many nodes."""
        if not self._nodes or len(self._nodes[0]) < count:
            integers = c_int64 * count
            self._nodes = (integers(), integers(), (c_double * count)())
