"""Trees of guesses from a block of laws in one C call (native/tree.c). Plain definition: Growth in tree.py, by levels.

Knows laws, and a table that betters them by the token before; knows nothing about what foresees them.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from ctypes import addressof, c_int64

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.model import Model
from foreword.model.kernel import SHARE
from foreword.model.panels import room
from foreword.native import llama
from foreword.native.openmp import threads
from foreword.native.pages import Pages
from foreword.native.scratch import Scratch, multiplied
from foreword.native.tree import Ask, Gardener, Grown


def bedded(target: Model) -> bool:
    """Whether trees can be grown so beside this target."""
    return target.device.type == "cpu" and llama.reason() is None


class Bed:
    """Grows trees from laws that are known for every depth, bettered by a table of low rank where there is one."""

    def __init__(self, vocab: int, table: tuple[Tensor, Tensor] | None = None) -> None:
        """`table`: bfloat16, what a token is in few numbers and what they say of all tokens, both [vocab, rank]."""
        self._library, self._held = llama.needed(), table
        self._model = llama.Model(vocab=vocab)
        if table is not None:
            before, after = (half.detach().contiguous() for half in table)
            packed = Pages().empty((room(vocab), after.shape[1]), after.dtype)
            self._library.foreword_pack(after.data_ptr(), packed.data_ptr(), *after.shape)
            self._held = before, packed
            self._model.hidden = after.shape[1]
            self._model.embedding, self._model.head = before.data_ptr(), packed.data_ptr()
        self._scratch, self._gardener = Scratch(self._model), Gardener(self._library, self._model)
        self._nowhere, self._first = (llama.Span * 1)(), (c_int64 * 1)()

    def say(self, tokens: List[int]) -> Float[Tensor, "rows vocab"]:
        """What the table says of what follows these tokens."""
        assert self._held is not None
        before = self._held[0][torch.tensor(tokens)]
        return multiplied(self._library, self._model, self._scratch, before, self._threads)

    @property
    def _threads(self) -> int:
        """None that would have less than a few megabytes of the table to read."""
        return max(1, min(threads(), 0 if self._held is None else self._held[1].nbytes // SHARE))

    def grow(self, laws: Float[Tensor, "deep vocab"], last: int, ask: Ask) -> Grown:
        """A tree after a text that ends with this token."""
        laws, token = laws.float().contiguous(), (c_int64 * 1)(last)
        logits = self._gardener.room(ask.width)
        scratch = self._scratch.fit(ask.width, self._threads, 1)
        places = addressof(token), addressof(self._first), addressof(self._first)
        forward = llama.Forward(1, 1, 1, *places, self._nowhere, logits.data_ptr(), *scratch)
        return self._gardener.grow(forward, ask, ask.reads, self._threads, laws=laws)
