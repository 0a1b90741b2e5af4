"""Scratch memory of a C forward (forward.c), reused and grown when needed."""

import ctypes
from ctypes import byref, c_int64

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.native import forward
from foreword.native.forward import LANES

MARGIN = 64
QUERIES = 16
PAGE = 64
"""Scores computed beyond the last position; rows of scores per thread, of a page."""


class Workspace:
    """The scratch memory of one model."""

    def __init__(self, model: forward.Model) -> None:
        self._model = model
        self._rows = self._longest = self._threads = 0
        self._tensors: tuple[Tensor, ...] = ()
        self._addresses = (0, 0, 0, 0, 0, 0)
        self._routing_tensors: tuple[Tensor, ...] = ()
        self._low_rank: tuple[Tensor, ...] = (torch.empty(0, 0), torch.empty(0, 0))
        self.routing: ctypes._Pointer[forward.Routing] | None = None
        """The routing of rows to experts; None if there are none."""
        self.unpacked: int | None = None
        """Address of the keys and values of one head per thread, unpacked; None if they
        have no 8 bits.
        """

    def fit(
        self, rows: int, threads: int, longest: int
    ) -> tuple[int, int, int, int, int, int]:
        """Return the addresses of (residual, wide, scores, narrow, steps) and the
        length of a row of scores.
        """
        if (
            rows > self._rows
            or threads > self._threads
            or longest + MARGIN > self._longest
        ):
            self._rows = max(rows, self._rows)
            self._threads = max(threads, self._threads)
            self._longest = max(2 * longest + MARGIN, 1024)
            m = self._model
            wide = max(
                m.heads * (m.query_stride or m.dim) + 2 * m.kv_heads * m.dim, m.hidden
            )
            inner = max(2 * m.hidden, m.heads * m.dim)
            if m.recurrence:
                sizes = m.recurrence.contents
                wide = max(wide, sizes.spread)
                inner = max(inner, sizes.heads * sizes.dim, sizes.channels)
            if m.plain:
                wide = max(wide, m.intermediate)
            if m.experts:
                # router logits, in whole panels
                wide = max(wide, m.experts.contents.count + LANES)
            self._tensors = (
                torch.empty(self._rows, m.hidden, dtype=torch.float32),
                torch.empty(self._rows, wide, dtype=torch.float32),
                torch.empty(
                    QUERIES * self._threads, self._longest, dtype=torch.float32
                ),
                torch.empty(self._rows, inner + m.intermediate, dtype=forward.factor()),
                torch.empty(self._rows, dtype=torch.float32),
            )
            if m.experts:
                self._make_room(m, m.experts.contents)
            if m.kv_coding == forward.BYTES:
                self._pages = torch.empty(
                    self._threads, 2, self._longest + PAGE, m.dim, dtype=torch.bfloat16
                )
                self.unpacked = self._pages.data_ptr()
            residual, wide_rows, scores, narrow, steps = (
                tensor.data_ptr() for tensor in self._tensors
            )
            self._addresses = residual, wide_rows, scores, narrow, steps, self._longest
        return self._addresses

    def low_rank(self, sums: int) -> tuple[int, int]:
        """Return the addresses of so many numbers of each row that `fit` has room for,
        and of the gates and their inputs.
        """
        rows, most = self._low_rank[0].shape
        if rows < self._rows or most != sums:
            self._low_rank = (
                torch.empty(self._rows, sums, dtype=torch.float32),
                torch.empty(
                    self._rows, 2 * self._model.intermediate, dtype=torch.float32
                ),
            )
        first, second = self._low_rank
        return first.data_ptr(), second.data_ptr()

    def _make_room(self, model: forward.Model, experts: forward.Experts) -> None:
        """Allocate the routing of every row, and the outputs of experts."""
        places = self._rows * (experts.top_k + experts.shared)
        self._routing_tensors = (
            torch.empty(places, dtype=torch.int32),
            torch.empty(places, dtype=torch.int32),
            torch.empty(places, dtype=torch.float32),
            torch.empty(places, dtype=torch.int32),
            torch.empty(experts.count + experts.shared + 1, dtype=torch.int64),
            torch.empty(places, model.hidden, dtype=forward.factor()),
            torch.empty(places, experts.inner, dtype=forward.factor()),
            torch.empty(places, model.hidden, dtype=torch.float32),
            torch.empty(places, dtype=torch.float32),
        )
        self.routing = ctypes.pointer(
            forward.Routing(*(tensor.data_ptr() for tensor in self._routing_tensors))
        )


def multiplied(
    library: ctypes.CDLL,
    lm_head: forward.Model,
    scratch: Workspace,
    inputs: Float[Tensor, "rows depth"],
    threads: int,
) -> Float[Tensor, "rows outputs"]:
    """Multiply rows by one packed matrix, the head of a model without layers: bfloat16
    inputs, float32 outputs.
    """
    rows, inputs = len(inputs), inputs.float().contiguous()
    products = torch.empty(rows, lm_head.vocab, dtype=torch.float32)
    keep = (c_int64 * rows)(*range(rows))
    _, *places = scratch.fit(rows, threads, 1)
    call = forward.Forward(
        rows,
        0,
        rows,
        None,
        None,
        ctypes.addressof(keep),
        None,
        products.data_ptr(),
        inputs.data_ptr(),
        *places,
    )
    library.foreword_forward(byref(lm_head), byref(call), threads)
    return products
