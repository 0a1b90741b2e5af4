"""Row table of a forward: integers that tell the kernels, in one copy, which keys each
row attends to.

launch.py names its columns. `Span.visible` is the reference definition.
"""

from collections.abc import Sequence

import numpy as np

from foreword.model.executors.cuda.launch import (
    BITS,
    CHAIN_ROWS,
    COUNT,
    FIRST,
    KEPT,
    LENGTH,
    MOST,
    PLACE,
    POSITION,
    RUN,
    TOKEN,
    WORDS,
)
from foreword.model.kv.reads import Span


def columns(windows: Sequence[int | None]) -> dict[int | None, int]:
    """Return the first column of each window's words and, under the key -1, the width
    of a row table.

    In a window of MOST or more, every ancestor among the draft tokens is visible: such
    windows share the words of None.
    """
    short = dict.fromkeys(
        [None, *(window for window in windows if window is not None and window < MOST)]
    )
    return {window: WORDS + i * (MOST // BITS) for i, window in enumerate([*short, -1])}


def row_table(
    spans: Sequence[Span],
    rows: int,
    tile: int,
    padding_row: int,
    words: dict[int | None, int],
) -> np.ndarray:
    """Return the row table of a forward over these spans, int32 [rows, width].

    Rows after the spans are padding, and write to row `padding_row` of the pool. Tiles
    hold at most `tile` rows. `words` is the result of `columns`.
    """
    table = np.zeros((rows, words[-1]), np.int32)
    table[:, PLACE] = padding_row
    tiles: list[tuple[int, int]] = []
    logit_rows: list[int] = []
    for span in spans:
        read, count = span.read, span.stop - span.start
        mine = table[span.start : span.stop]
        mine[:, TOKEN] = read.tokens
        mine[:, POSITION] = read.past + np.array(read.depths)
        mine[:, RUN] = span.table.start
        mine[:, LENGTH] = np.arange(read.start + 1, read.start + count + 1)
        mine[:, PLACE] = mine[:, LENGTH] + (span.table.start - 1)
        mine[:, CHAIN_ROWS] = mine[:, LENGTH]
        if read.parents:
            fresh = len(read.parents) - read.held
            mine[count - fresh :, CHAIN_ROWS] = span.length - len(read.parents)
            for window, column in list(words.items())[:-1]:
                seen = [
                    mask.to_bytes(MOST // 8, "little")
                    for mask in ancestors(read.parents, window)[read.held :]
                ]
                bits = np.frombuffer(b"".join(seen), "<i4").reshape(fresh, -1)
                mine[count - fresh :, column : column + MOST // BITS] = bits
        tiles += [
            (first, min(tile, span.stop - first))
            for first in range(span.start, span.stop, tile)
        ]
        logit_rows += range(span.stop - read.keep, span.stop)
    table[: len(tiles), [FIRST, COUNT]] = tiles
    table[: len(logit_rows), KEPT] = logit_rows
    return table


def ancestors(parents: Sequence[int], window: int | None) -> list[int]:
    """Return, for each draft token, the set of itself and its ancestors, the last
    `window` of them: bit n = token n.
    """
    masks: list[int] = []
    for node, parent in enumerate(parents):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << node)
    return masks if window is None else [_last(mask, window) for mask in masks]


def _last(mask: int, count: int) -> int:
    """Keep the `count` highest bits: parents come before children, so these are the
    nearest ancestors.
    """
    while mask.bit_count() > count:
        mask &= mask - 1
    return mask
