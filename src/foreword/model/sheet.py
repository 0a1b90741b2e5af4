"""What every row of a forward may see, as a table of integers: what one copy to a device tells the kernels of it.

Knows spans and trees; the columns are those of native/attention.py. `Span.visible` is the plain definition.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from foreword.model.plan import Span
from foreword.native.attention import (
    BITS,
    COUNT,
    FIRST,
    KEPT,
    LENGTH,
    MOST,
    PLACE,
    POSITION,
    RUN,
    TOKEN,
    TRUNK,
    WORDS,
)


def columns(windows: List[int | None]) -> dict[int | None, int]:
    """Where the words of each window begin, and under the key -1 how wide a sheet is.

    In a window of MOST and more no ancestor among the guesses is ever out of sight: those share the words of None.
    """
    short = dict.fromkeys([None, *(window for window in windows if window is not None and window < MOST)])
    return {window: WORDS + i * (MOST // BITS) for i, window in enumerate([*short, -1])}


def sheet(spans: List[Span], rows: int, tile: int, unread: int, words: dict[int | None, int]) -> np.ndarray:
    """The sheet of a forward over these spans, int32 [rows, width].

    `rows` may be more than the spans hold; the others are padding, and write to row `unread` of the pool. Tiles hold at
    most `tile` rows. `words` are `columns`.
    """
    table = np.zeros((rows, words[-1]), np.int32)
    table[:, PLACE] = unread
    tiles: list[tuple[int, int]] = []
    kept: list[int] = []
    for span in spans:
        read, count = span.read, span.stop - span.start
        mine = table[span.start : span.stop]
        mine[:, TOKEN] = read.tokens
        mine[:, POSITION] = read.past + np.array(read.depths)
        mine[:, RUN] = span.extent.start
        mine[:, LENGTH] = np.arange(read.start + 1, read.start + count + 1)
        mine[:, PLACE] = mine[:, LENGTH] + (span.extent.start - 1)
        mine[:, TRUNK] = mine[:, LENGTH]
        if read.parents:
            fresh = len(read.parents) - read.held
            mine[count - fresh :, TRUNK] = span.length - len(read.parents)
            for window, column in list(words.items())[:-1]:
                seen = [mask.to_bytes(MOST // 8, "little") for mask in ancestors(read.parents, window)[read.held :]]
                bits = np.frombuffer(b"".join(seen), "<i4").reshape(fresh, -1)
                mine[count - fresh :, column : column + MOST // BITS] = bits
        tiles += [(first, min(tile, span.stop - first)) for first in range(span.start, span.stop, tile)]
        kept += range(span.stop - read.keep, span.stop)
    table[: len(tiles), [FIRST, COUNT]] = tiles
    table[: len(kept), KEPT] = kept
    return table


def ancestors(parents: List[int], window: int | None) -> list[int]:
    """For each guess, itself and those it follows, the last `window` of them: bit n stands for guess n."""
    masks: list[int] = []
    for node, parent in enumerate(parents):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << node)
    return masks if window is None else [_last(mask, window) for mask in masks]


def _last(mask: int, count: int) -> int:
    """The highest bits; parents come before children, so those are the nearest."""
    while mask.bit_count() > count:
        mask &= mask - 1
    return mask
