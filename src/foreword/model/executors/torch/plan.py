"""Provides the plan of a forward of the torch executor: where packed rows are written,
and the masks of their keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor

from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.kv.pages import whole
from foreword.model.kv.reads import Span


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward over packed rows, passed through the model as the keyword argument
    `plan`.
    """

    pool: KVPool
    spans: tuple[Span, ...]
    rows: Int[Tensor, "written"]
    """Row of the pool where each packed row is written."""
    windows: dict[int, int | None] = field(default_factory=dict)
    """The sliding window that each layer passed to attention; the probe compares it
    with the model's config.
    """
    masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    """Cached masks by (first row, kind of layer), shared by the layers of a forward."""
    places: dict[tuple[int, bool], slice | list[int]] = field(default_factory=dict)
    """Cached `place` of each span and of its source, by its first row."""
    cross: tuple[Tensor, ...] = ()
    """By layer, the keys that its cross-attention passes: placeholders for the keys of
    each span's source.
    """
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
