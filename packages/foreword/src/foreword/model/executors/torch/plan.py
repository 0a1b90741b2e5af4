"""Plan of a forward of the torch executor: rows to write, and masks of keys."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.kv.pages import whole
from foreword.model.kv.reads import Branch, Span

BLOCK = 96
"""Query positions a call; torch's CPU kernel changes its rounding at 192 rows."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one call of attention: they follow each other in one text."""

    rows: slice | Int[Tensor, "rows"]
    """The packed rows."""
    first: int
    """Number of the first of them."""
    count: int
    position: int
    """Position of the first of them in the text."""
    root: int
    """Position of the first key of `path`."""
    path: Int[Tensor, "nodes"] | None
    """Rows of the pool that hold the keys of the draft tokens before and among these;
    None where every key of the span lies at its position.
    """


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward over packed rows, passed as the keyword argument `plan`."""

    pool: KVPool
    spans: tuple[Span, ...]
    rows: Int[Tensor, "written"]
    """Row of the pool where each packed row is written."""
    windows: dict[int, int | None] = field(default_factory=dict)
    """The window that each layer passed to attention, which the probe compares."""
    masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    """Cached masks by (first row, kind of layer), shared by the layers of a forward."""
    places: dict[tuple[int, bool], slice | list[int]] = field(default_factory=dict)
    """Cached `place` of each span and of its source, by its first row."""
    blocks: dict[tuple[int, bool], list[Block]] = field(default_factory=dict)
    """Cached `blocks_of` each span and its source, by its first row."""
    cross: tuple[Tensor, ...] = ()
    """By layer, keys that its cross-attention passes: placeholders of the sources."""
    biases: dict[int, Float[Tensor, "heads distances"]] = field(default_factory=dict)
    """Bias of a score by the distance of its key, by the layer that has the table."""

    def place(self, span: Span, *, source: bool = False) -> slice | list[int]:
        """Return where the padded keys of a span, or of its source, lie in the pool."""
        if (span.start, source) not in self.places:
            of = span.source if source and span.source is not None else span
            self.places[span.start, source] = self.pool.where(
                of.table, of.length, whole(of.length)
            )
        return self.places[span.start, source]

    def blocks_of(self, span: Span, *, source: bool = False) -> list[Block]:
        """Return a span's rows in blocks by branch; a source treats all alike."""
        if (span.start, source) not in self.blocks:
            branches = [span.chain] if source else span.branches()
            moved = any(branch.moved for branch in branches)
            self.blocks[span.start, source] = [
                block
                for branch in branches
                for block in self._cut(span, branch, moved=moved)
            ]
        return self.blocks[span.start, source]

    def _cut(self, span: Span, branch: Branch, *, moved: bool) -> Iterator[Block]:
        path: Tensor | None = None
        device = self.rows.device
        if moved:
            places = [span.table.row(row) for row in branch.path]
            path = torch.tensor(places, device=device)
        for start in range(0, len(branch.rows), BLOCK):
            rows = [span.start + row for row in branch.rows[start : start + BLOCK]]
            yield Block(
                torch.tensor(rows, device=device)
                if moved
                else slice(rows[0], rows[-1] + 1),
                rows[0],
                len(rows),
                branch.position + start,
                branch.root,
                path,
            )
