"""Whole trees of guesses in one C call (tree.c): its structure and how it is asked.

Knows the C side's layout, which must agree with it field by field; knows nothing about models or drafters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as List
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.native import llama


class Growth(Structure):
    """What is asked for, and room for what comes out."""

    _fields_ = [(n, c_int64) for n in ("most", "breadth", "deep", "width", "reads")]
    _fields_ += [("floor", c_double), ("temperature", c_float), ("scale", c_float)]
    _fields_ += [("noise", c_void_p), ("stride", c_int64), ("ends", c_int64), ("end", c_void_p), ("laws", c_void_p)]
    _fields_ += [("count", c_int64), ("held", c_int64), *((n, c_void_p) for n in ("tokens", "parents", "chances"))]
    _fields_ += [("chosen", c_int64), *((n, c_void_p) for n in ("best_tokens", "best_parents", "best_chances"))]
    _fields_ += [(n, c_void_p) for n in ("read_tokens", "read_parents", "child", "value")]


_ARGUMENTS = [POINTER(llama.Model), POINTER(llama.Forward), POINTER(Growth), c_void_p, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a tree of guesses should be like; the names are those of draft/tree.py, which says what they mean."""

    most: int
    breadth: int
    deep: int
    width: int
    reads: int
    floor: float
    temperature: float
    scale: float
    noise: Float[Tensor, "deep target_vocab"] | None
    """The noise of the next positions; None when greedy."""
    ends: tuple[int, ...]


Children = tuple[list[int], list[float]]
"""Tokens that may come next, best first, and their log q + G."""


@dataclass(frozen=True, slots=True)
class Grown:
    """The best guesses, likeliest first, and those that were read to find them; parents before children."""

    tokens: list[int]
    parents: list[int]
    chances: list[float]
    read: list[int]
    """Tokens, in the order in which they were read."""
    read_parents: list[int]
    """The place among `read` of the guess before; -1 = the text."""
    children: List[Children]
    """What may follow the text, then what may follow each guess that was read."""


class Rows(List[Children]):
    """Children as they lie in C arrays; of many rows few are ever looked at."""

    def __init__(self, child: ctypes.Array[c_int64], value: ctypes.Array[c_float], breadth: int, rows: int) -> None:
        self._child, self._value, self._breadth, self._rows = child, value, breadth, rows

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


class Gardener:
    """Grows trees with one model, in working memory that is kept from one to the next."""

    def __init__(self, library: ctypes.CDLL, model: llama.Model) -> None:
        self._library, self._model = library, model
        library.foreword_grow.argtypes = _ARGUMENTS
        self._thought: tuple[ctypes.Array[Any], ...] = ()
        self._logits = self._scratch = torch.empty(0, 0)

    def room(self, rows: int) -> Float[Tensor, "rows vocab"]:
        """Logits of so many rows at a time, which hold until the next tree."""
        if self._logits.shape[0] < rows:
            vocab = self._model.vocab
            self._logits = torch.empty(rows, vocab)
            self._scratch = torch.empty(vocab + llama.LANES)  # the C side writes so many at once
        return self._logits

    def grow(
        self,
        forward: llama.Forward,
        ask: Ask,
        reads: int,
        threads: int,
        *,
        laws: Float[Tensor, "deep vocab"] | None = None,
    ) -> Grown:
        """Read what `forward` describes, then grow, by reading at most `reads` guesses.

        Its logits are those of `room`, and its scratch must have room for `ask.width` rows. With `laws`, float32, that
        is what follows at each depth, to which the model's head, if it has one, adds what it says of a token.
        """
        most = (reads + 1) * ask.breadth
        if not self._thought or len(self._thought[0]) < most:
            self._thought = ((c_int64 * most)(), (c_int64 * most)(), (c_double * most)())
        tokens, parents, chances = (c_int64 * ask.most)(), (c_int64 * ask.most)(), (c_double * ask.most)()
        read, before = (c_int64 * (reads + 1))(), (c_int64 * (reads + 1))()
        child, value = (c_int64 * most)(), (c_float * most)()
        ends = (c_int64 * len(ask.ends))(*ask.ends)
        noise = None if ask.noise is None else ask.noise.contiguous()
        growth = Growth(
            ask.most, ask.breadth, ask.deep, ask.width, reads, ask.floor, ask.temperature, ask.scale,
            None if noise is None else noise.data_ptr(), 0 if noise is None else noise.shape[1],
            len(ask.ends), ctypes.addressof(ends), None if laws is None else laws.data_ptr(),
            0, 0, *map(ctypes.addressof, self._thought), 0,
            *map(ctypes.addressof, (tokens, parents, chances, read, before, child, value)),
        )  # fmt: skip
        scratch = self._scratch.data_ptr()
        self._library.foreword_grow(byref(self._model), byref(forward), byref(growth), scratch, threads)
        chosen, held = growth.chosen, growth.held
        children = Rows(child, value, ask.breadth, held + 1)
        return Grown(tokens[:chosen], parents[:chosen], chances[:chosen], read[:held], before[:held], children)
