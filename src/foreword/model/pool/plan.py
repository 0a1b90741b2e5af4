"""Provides the plan of a forward: the sequence of each packed row, its row in the pool, and the keys it attends to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foreword.model.pool.kv_pool import KVPool
from foreword.model.pool.pages import PageTable, whole

MOST_DRAFT_TOKENS = 256
"""Rows. Longest chain of draft tokens."""


@dataclass(frozen=True, slots=True)
class Read:
    """One sequence's tokens in a forward, read after those it holds already."""

    id: int
    past: int
    """Tokens held before; later ones are dropped."""
    tokens: list[int]
    """Committed tokens first, then draft tokens."""
    parents: list[int] | None = None
    """Parent of each draft token (the last len(parents) tokens); -1 = the last committed one. None = a chain."""
    keep: int = 1
    """Logits are returned for the last `keep` tokens."""
    held: int = 0
    """Number of leading `parents` whose tokens were read before, right after `past`, and are not in `tokens`."""

    @property
    def start(self) -> int:
        """Return the row, within the sequence, of the first of `tokens`."""
        return self.past + self.held

    @property
    def depths(self) -> list[int]:
        """Return the distance of each token from `past`; a draft token is one after its parent."""
        if self.parents is None:
            return list(range(len(self.tokens)))
        committed = len(self.tokens) + self.held - len(self.parents)
        depths = list(range(committed))
        for parent in self.parents:
            depths.append(committed if parent < 0 else depths[committed + parent] + 1)
        return depths[self.held :]

    @property
    def drafted(self) -> int:
        """Return how many of the last tokens are draft tokens: those with a parent, or a chain with logits of each.

        A longer chain with logits of every row is text, such as a scored prompt.
        """
        if self.parents is not None:
            return min(len(self.parents) - self.held, len(self.tokens))
        return self.keep - 1 if 1 <= self.keep <= MOST_DRAFT_TOKENS + 1 else 0

    @property
    def linked(self) -> int:
        """Return how many of the first tokens each follow the one before, in the sequence and as a row."""
        if self.parents is None:
            return len(self.tokens)
        fresh = self.parents[self.held :]
        follows = (parent == node - 1 for node, parent in enumerate(fresh, self.held))
        return len(self.tokens) - len(fresh) + next((i for i, one in enumerate(follows) if not one), len(fresh))


Reach = Mapping[bool, Int[Tensor, "tokens 2"]]
"""By whether a layer has a window: the first and the last key that each row attends to."""


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a packed forward."""

    start: int
    stop: int
    table: PageTable
    read: Read
    reach: Reach = field(default_factory=dict)
    """Where the first rows of the sequence attend otherwise than to those before them."""

    @property
    def length(self) -> int:
        """Return the number of keys of the sequence after this span is written."""
        return self.read.start + self.stop - self.start

    @property
    def padded(self) -> int:
        """Return the same, rounded up to a length at which attention gives the same bits in every round."""
        return whole(self.length)

    def visible(self, window: int | None, device: torch.device) -> Bool[Tensor, "rows keys"]:
        """Return the mask of keys: held tokens, ancestors and the row itself, within the window of positions."""
        count = self.stop - self.start
        keys = torch.arange(self.padded, device=device)
        rows = self.read.start + torch.arange(count, device=device)
        mask = keys[None, :] <= rows[:, None]
        if self.read.parents is not None:
            mask &= self._ancestors(keys, self.read.parents)
        if window is not None:
            whole_tree = replace(self.read, tokens=[0] * self.read.held + self.read.tokens, held=0)
            positions = keys.clone()
            positions[self.read.past : self.length] = torch.tensor(whole_tree.depths, device=device) + self.read.past
            mask &= positions[None, :] > positions[self.read.start : self.length, None] - window
        if (window is not None) in self.reach:
            ends = self.reach[window is not None][self.read.start : self.length].to(device)
            mask[: len(ends)] = (keys[None, :] >= ends[:, :1]) & (keys[None, :] <= ends[:, 1:])
        return mask

    def _ancestors(self, keys: Int[Tensor, "keys"], parents: list[int]) -> Bool[Tensor, "rows keys"]:
        past, held = self.read.past, self.read.held
        committed = held + self.stop - self.start - len(parents)
        allowed = (keys < past + committed).repeat(committed + len(parents), 1)
        for node, parent in enumerate(parents):
            row = committed + node
            if parent >= 0:
                allowed[row] = allowed[committed + parent]
            allowed[row, past + row] = True
        return allowed[held:]


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward over packed rows, passed through the model as the keyword argument `plan`."""

    pool: KVPool
    spans: tuple[Span, ...]
    rows: Int[Tensor, "written"]
    """Row of the pool where each packed row is written."""
    windows: dict[int, int | None] = field(default_factory=dict)
    """The sliding window that each layer passed to attention; the probe compares it with the model's config."""
    masks: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)
    """Cached masks by (first row, window, query heads per key head), shared by the layers of a forward."""
    places: dict[int, slice | list[int]] = field(default_factory=dict)
    """Cached `place` of each span, by its first row."""

    def place(self, span: Span) -> slice | list[int]:
        """Return where the padded keys of a span lie in the pool."""
        if span.start not in self.places:
            self.places[span.start] = self.pool.where(span.table, span.length, span.padded)
        return self.places[span.start]
