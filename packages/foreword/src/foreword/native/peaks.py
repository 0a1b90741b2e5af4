"""Multiply-adds a second of the instructions that products use
(csrc/products/peaks.c).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from foreword.native import forward
from foreword.native.openmp import threads

WHOLE, BYTES, SMALL, LEVELS = range(4)
"""Forms of weights: bfloat16; 8 bits, beside rows of 15 bits; in groups, with levels in
a small range, or with any.
"""
NAMES = ("bfloat16", "8 bits", "small levels", "levels")
"""What a form is called in a report."""
TURNS = 2_000_000
"""Loops of one measurement, which take a few milliseconds."""


def peak(form: int) -> float:
    """Return the multiply-adds a second of all threads together. Raises ModelError
    without a compiler.
    """
    library = forward.needed()

    def alone(_: int) -> int:
        return library.foreword_peak(form, TURNS)

    with ThreadPoolExecutor(threads()) as pool:
        list(pool.map(alone, range(threads())))  # start the threads
        before = perf_counter()
        done = sum(pool.map(alone, range(threads())))
        return done / (perf_counter() - before)
