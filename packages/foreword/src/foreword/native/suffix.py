"""Suffix lookup and continuation counts in C (suffix.c). Without a compiler callers use
their own code.
"""

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from ctypes import Structure, byref, c_double, c_int32, c_int64, c_void_p
from functools import cache

from foreword.native import layout
from foreword.native.compiler import SOURCES, compiled
from foreword.types.draft import DraftTree

ROWS = 5
VOTERS = 32
KINDS = 64


class Index(Structure):
    """Pointers to the arrays of a suffix index."""

    __slots__ = ()
    _fields_ = [
        ("tokens", c_void_p),
        ("hashes", c_void_p),
        ("latest", c_void_p * ROWS),
        ("before", c_void_p * ROWS),
    ]
    _fields_ += [("capacity", c_int64), ("shift", c_int64)]


class Votes(Structure):
    """Continuations of earlier occurrences, and the weight of each."""

    __slots__ = ()
    _fields_ = [("count", c_int64), ("length", c_int64), ("followed", c_void_p)]
    _fields_ += [("reach", c_int64 * VOTERS), ("weight", c_int64 * VOTERS)]


class Trust(Structure):
    """How often votes of each weight class were right, as in estimators.py."""

    __slots__ = ()
    _fields_ = [("right", c_double * KINDS * 2), ("tried", c_double * KINDS * 2)]


class Bounds(Structure):
    """Limits of a draft tree, as in draft/lookup/suffix_votes.py."""

    __slots__ = ()
    _fields_ = [
        ("most", c_int64),
        ("branches", c_int64),
        ("ends", c_int64),
        ("end", c_void_p),
    ]
    _fields_ += [("floor", c_double), ("novelty", c_double)]


_MIRRORS = {"History": Index, "Votes": Votes, "Acceptance": Trust, "Bounds": Bounds}
"""Classes by the name of their structure in C."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None without a compiler.

    Raises ModelError if a structure differs from the one in C.
    """
    lib = compiled(SOURCES / "suffix.c")
    if isinstance(lib, str):
        return None
    layout.check(lib, _MIRRORS, "native/suffix.py")
    functions = {
        "note": "plpl",
        "votes": "plplplp",
        "poll": "pppppp:l",
        "close": "pppl",
    }
    layout.declare(lib, functions)
    return lib


def index(
    tokens: "array[int]",
    hashes: "array[int]",
    latest: "Sequence[array[int]]",
    before: "Sequence[array[int]]",
    capacity: int,
    shift: int,
) -> Index | None:
    """Return the index as a C structure, valid as long as the arrays live; None without
    a compiler.
    """
    if library() is None:
        return None
    rows = ([part.buffer_info()[0] for part in parts] for parts in (latest, before))
    latest_at, before_at = ((c_void_p * ROWS)(*row) for row in rows)
    return Index(
        tokens.buffer_info()[0],
        hashes.buffer_info()[0],
        latest_at,
        before_at,
        capacity,
        shift,
    )


def note(index: Index, end: int, tokens: Sequence[int]) -> None:
    """Append tokens to the index after `end` others."""
    lib = library()
    assert lib is not None, "an index needs the library"
    lib.foreword_note(byref(index), end, (c_int64 * len(tokens))(*tokens), len(tokens))


class NativeCounts:
    """The continuation counts of one round, and the memory they use."""

    __slots__ = ("_followed", "_novelty", "_trust", "_votes")

    def __init__(
        self,
        text: tuple[Index, int],
        past: tuple[Index, int] | None,
        context: Sequence[int],
        length: int,
        trust: Trust,
        novelty: float,
    ) -> None:
        """Collect up to `length` tokens after each occurrence of the suffixes of
        `context` in (index, end) pairs; `novelty` = weight of an unseen continuation.
        """
        self._novelty = novelty
        lib = library()
        assert lib is not None, "an index needs the library"
        self._trust, self._followed = trust, (c_int32 * (VOTERS * length))()
        self._votes = Votes(length=length, followed=ctypes.addressof(self._followed))
        here, end = text
        there, past_end = (byref(past[0]), past[1]) if past else (None, 0)
        suffix = (c_int64 * len(context))(*context)
        lib.foreword_votes(
            byref(here), end, there, past_end, suffix, len(context), byref(self._votes)
        )

    def grown(
        self,
        most: int,
        floor: float = 0.0,
        ends: Iterable[int] = (),
        *,
        branches: bool = True,
    ) -> DraftTree:
        """Return the likeliest draft tokens, as in draft/lookup/suffix_votes.py.

        Raises MemoryError if C cannot allocate its heap.
        """
        lib = library()
        assert lib is not None, "an index needs the library"
        tokens = (c_int64 * most)()
        parents = (c_int64 * most)()
        probabilities = (c_double * most)()
        last = tuple(ends)
        end = (c_int64 * len(last))(*last)
        bounds = Bounds(
            most, branches, len(last), ctypes.addressof(end), floor, self._novelty
        )
        count = lib.foreword_poll(
            byref(self._votes),
            byref(self._trust),
            byref(bounds),
            tokens,
            parents,
            probabilities,
        )
        if count < 0:
            raise MemoryError("cannot grow a draft tree: out of memory")
        return DraftTree(tokens[:count], parents[:count], probabilities[:count])

    def close(self, emitted: Sequence[int]) -> None:
        """Update the acceptance counts with the tokens that were emitted."""
        lib = library()
        assert lib is not None, "an index needs the library"
        lib.foreword_close(
            byref(self._votes),
            byref(self._trust),
            (c_int64 * len(emitted))(*emitted),
            len(emitted),
        )
