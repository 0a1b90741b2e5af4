"""Earlier places and their votes in C (ballots.c). Where there is no compiler the callers use their own code.

Knows the C side's layout, which must agree with it field by field; knows nothing about sequences or drafters.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as List
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

from foreword.native.compiler import compiled

ROWS, VOTERS, KINDS = 5, 32, 64


class Index(Structure):
    """Where the parts of a history lie."""

    _fields_ = [("tokens", c_void_p), ("hashes", c_void_p), ("latest", c_void_p * ROWS), ("before", c_void_p * ROWS)]
    _fields_ += [("capacity", c_int64), ("shift", c_int64)]


class Votes(Structure):
    """What followed earlier places, and what each counts."""

    _fields_ = [("count", c_int64), ("length", c_int64), ("followed", c_void_p)]
    _fields_ += [("reach", c_int64 * VOTERS), ("weight", c_int64 * VOTERS)]


class Trust(Structure):
    """How often votes of a kind were right, as in draft/trust.py; all zeros where nothing is known."""

    _fields_ = [("right", c_double * KINDS * 2), ("tried", c_double * KINDS * 2)]


class Bounds(Structure):
    """Where guessing stops, as in draft/poll.py."""

    _fields_ = [("most", c_int64), ("branches", c_int64), ("ends", c_int64), ("end", c_void_p)]
    _fields_ += [("floor", c_double), ("novelty", c_double)]


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions, or None."""
    made = compiled(Path(__file__).with_name("ballots.c"))
    if isinstance(made, str):
        return None
    index, numbers = POINTER(Index), POINTER(c_int64)
    made.foreword_note.argtypes = [index, c_int64, numbers, c_int64]
    made.foreword_note.restype = None
    made.foreword_votes.argtypes = [index, c_int64, index, c_int64, numbers, c_int64, POINTER(Votes)]
    made.foreword_votes.restype = None
    made.foreword_poll.argtypes = [POINTER(Votes), POINTER(Trust), POINTER(Bounds), numbers, numbers, POINTER(c_double)]
    made.foreword_poll.restype = c_int64
    made.foreword_close.argtypes = [POINTER(Votes), POINTER(Trust), numbers, c_int64]
    made.foreword_close.restype = None
    return made


def index(
    tokens: array[int],
    hashes: array[int],
    latest: List[array[int]],
    before: List[array[int]],
    capacity: int,
    shift: int,
) -> Index | None:
    """The same memory as C reads it, for as long as the arrays live; None without a compiler."""
    if library() is None:
        return None
    rows = ([part.buffer_info()[0] for part in parts] for parts in (latest, before))
    latest_at, before_at = ((c_void_p * ROWS)(*row) for row in rows)
    return Index(tokens.buffer_info()[0], hashes.buffer_info()[0], latest_at, before_at, capacity, shift)


def note(index: Index, end: int, tokens: List[int]) -> None:
    """Note tokens after `end` others."""
    made = library()
    assert made is not None, "an index is made by the library"
    made.foreword_note(byref(index), end, (c_int64 * len(tokens))(*tokens), len(tokens))


class Poll:
    """The votes of one round; keeps the memory that they lie in."""

    __slots__ = ("_followed", "_trust", "_votes")

    def __init__(
        self, own: tuple[Index, int], past: tuple[Index, int] | None, context: List[int], length: int, trust: Trust
    ) -> None:
        """What followed places that end like `context`, in histories with their ends, up to `length` tokens of it."""
        made = library()
        assert made is not None, "an index is made by the library"
        self._trust, self._followed = trust, (c_int32 * (VOTERS * length))()
        self._votes = Votes(length=length, followed=ctypes.addressof(self._followed))
        here, end = own
        there, past_end = (byref(past[0]), past[1]) if past else (None, 0)
        known = (c_int64 * len(context))(*context)
        made.foreword_votes(byref(here), end, there, past_end, known, len(context), byref(self._votes))

    def grown(
        self, most: int, floor: float, ends: Iterable[int], branches: bool, novelty: float
    ) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and chances of the likeliest guesses."""
        made = library()
        assert made is not None, "an index is made by the library"
        tokens, parents, chances = (c_int64 * most)(), (c_int64 * most)(), (c_double * most)()
        last = tuple(ends)
        end = (c_int64 * len(last))(*last)
        bounds = Bounds(most, branches, len(last), ctypes.addressof(end), floor, novelty)
        count = made.foreword_poll(byref(self._votes), byref(self._trust), byref(bounds), tokens, parents, chances)
        if count < 0:
            raise MemoryError("there is no memory for guesses")
        return tokens[:count], parents[:count], chances[:count]

    def close(self, said: List[int]) -> None:
        """The text went on with these tokens."""
        made = library()
        assert made is not None, "an index is made by the library"
        made.foreword_close(byref(self._votes), byref(self._trust), (c_int64 * len(said))(*said), len(said))
