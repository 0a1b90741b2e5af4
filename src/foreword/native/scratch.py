"""Working memory of a forward in C (llama.c), kept from one to the next and grown when needed.

Knows how much of it the C side wants; knows nothing about what is computed in it.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.native import llama
from foreword.native.llama import LANES

MARGIN, QUERIES = 64, 16
"""Scores that are computed beyond the last, at most; rows of them that a thread fills at once."""


class Scratch:
    """For one model, whatever it reads next."""

    def __init__(self, model: llama.Model) -> None:
        self._model = model
        self._rows = self._longest = self._threads = 0
        self._tensors: tuple[Tensor, ...] = ()
        self._places = (0, 0, 0, 0, 0, 0)
        self._asking: tuple[Tensor, ...] = ()
        self.asked: ctypes._Pointer[llama.Asked] | None = None
        """What rows ask of experts, where there are some."""

    def fit(self, rows: int, threads: int, longest: int) -> tuple[int, int, int, int, int, int]:
        """Addresses of (residual, wide, scores, narrow, steps) and the length of a row of scores."""
        if rows > self._rows or threads > self._threads or longest + MARGIN > self._longest:
            self._rows, self._threads = max(rows, self._rows), max(threads, self._threads)
            self._longest = max(2 * longest + MARGIN, 1024)
            m = self._model
            wide = max(m.heads * (m.apart or m.dim) + 2 * m.kv_heads * m.dim, m.hidden)
            inner = max(2 * m.hidden, m.heads * m.dim)
            if m.recurrence:
                sizes = m.recurrence.contents
                wide, inner = max(wide, sizes.spread), max(inner, sizes.heads * sizes.dim, sizes.channels)
            if m.plain:
                wide = max(wide, m.intermediate)
            if m.experts:
                wide = max(wide, m.experts.contents.count + LANES)  # what the router says, in whole panels
            self._tensors = (
                torch.empty(self._rows, m.hidden),
                torch.empty(self._rows, wide),
                torch.empty(QUERIES * self._threads, self._longest),
                torch.empty(self._rows, inner + m.intermediate, dtype=llama.factor()),
                torch.empty(self._rows),
            )
            if m.experts:
                self._make_room(m, m.experts.contents)
            residual, wide_rows, scores, narrow, steps = (tensor.data_ptr() for tensor in self._tensors)
            self._places = residual, wide_rows, scores, narrow, steps, self._longest
        return self._places

    def _make_room(self, model: llama.Model, experts: llama.Experts) -> None:
        """For what every row asks of experts, and for what these say."""
        places = self._rows * (experts.asked + experts.shared)
        self._asking = (
            torch.empty(places, dtype=torch.int32),
            torch.empty(places, dtype=torch.int32),
            torch.empty(places),
            torch.empty(places, dtype=torch.int32),
            torch.empty(experts.count + experts.shared + 1, dtype=torch.int64),
            torch.empty(places, model.hidden, dtype=llama.factor()),
            torch.empty(places, experts.inner, dtype=llama.factor()),
            torch.empty(places, model.hidden),
            torch.empty(places),
        )
        self.asked = ctypes.pointer(llama.Asked(*(tensor.data_ptr() for tensor in self._asking)))


def multiplied(
    library: ctypes.CDLL, mouth: llama.Model, scratch: Scratch, given: Float[Tensor, "rows depth"], threads: int
) -> Float[Tensor, "rows outputs"]:
    """Rows times one packed matrix, the head of a model without layers; in bfloat16, float32 comes out."""
    rows, given = len(given), given.float().contiguous()
    products = torch.empty(rows, mouth.vocab)
    keep = (c_int64 * rows)(*range(rows))
    _, *places = scratch.fit(rows, threads, 1)
    forward = llama.Forward(
        rows, 0, rows, None, None, ctypes.addressof(keep), None, products.data_ptr(), given.data_ptr(), *places
    )
    library.foreword_forward(byref(mouth), byref(forward), threads)
    return products
