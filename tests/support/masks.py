"""Provides the keys that each row of a span attends to, as attention is told."""

import torch

from foreword.model.kv.reads import Span


def keys_of(span: Span, window: int | None) -> list[list[int]]:
    """Return, by row of a span, the rows of the sequence whose keys it attends to."""
    keys: dict[int, list[int]] = {}
    for branch in span.branches():
        count = len(branch.rows)
        mask = span.visible(branch.position, count, window, torch.device("cpu"))
        stored = [*range(branch.root), *branch.path]
        for row, visible in zip(branch.rows, mask, strict=True):
            assert row not in keys
            keys[row] = [stored[key] for key in visible.nonzero().flatten().tolist()]
    return [keys[row] for row in range(span.stop - span.start)]
