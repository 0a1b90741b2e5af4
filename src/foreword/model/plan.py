"""What one forward reads: which rows of the packed input belong to which sequence, where they go, what they may see.

Knows lengths, parents and positions; knows nothing about models or attention kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foreword.model.cache import Extent, KVPool, whole


@dataclass(frozen=True, slots=True)
class Read:
    """What one sequence adds to a forward: tokens to read after the ones already held."""

    id: int
    past: int
    """Tokens held before; everything after them is forgotten."""
    tokens: list[int]
    """Committed tokens first, then guesses."""
    parents: list[int] | None = None
    """For the guesses, the last len(parents) tokens: which guess each follows, -1 = the trunk. None = a chain."""
    keep: int = 1
    """Logits are wanted of the last `keep` tokens."""

    @property
    def depths(self) -> list[int]:
        """Distance of each token from `past`; a guess stands one after its parent."""
        if self.parents is None:
            return list(range(len(self.tokens)))
        trunk = len(self.tokens) - len(self.parents)
        depths = list(range(trunk))
        for parent in self.parents:
            depths.append(trunk if parent < 0 else depths[trunk + parent] + 1)
        return depths


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a packed forward."""

    start: int
    stop: int
    extent: Extent
    past: int
    depths: list[int]
    parents: list[int] | None

    @property
    def length(self) -> int:
        """Keys that exist once this span is written."""
        return self.past + self.stop - self.start

    @property
    def padded(self) -> int:
        """The same, rounded up: attention over such a key length gives the same bits in every round."""
        return whole(self.length)

    def visible(self, window: int | None, device: torch.device) -> Bool[Tensor, "rows keys"]:
        """Which key each row may see: what is held, its own ancestors and itself, within the window of positions."""
        count = self.stop - self.start
        keys = torch.arange(self.padded, device=device)
        rows = self.past + torch.arange(count, device=device)
        mask = keys[None, :] <= rows[:, None]
        if self.parents is not None:
            mask &= self._ancestors(keys)
        if window is not None:
            positions = torch.tensor(self.depths, device=device) + self.past
            of_key = keys.clone()
            of_key[self.past : self.length] = positions
            mask &= of_key[None, :] > positions[:, None] - window
        return mask

    def _ancestors(self, keys: Int[Tensor, "keys"]) -> Bool[Tensor, "rows keys"]:
        assert self.parents is not None
        trunk = self.stop - self.start - len(self.parents)
        allowed = (keys < self.past + trunk).repeat(self.stop - self.start, 1)
        for node, parent in enumerate(self.parents):
            row = trunk + node
            if parent >= 0:
                allowed[row] = allowed[trunk + parent]
            allowed[row, self.past + row] = True
        return allowed


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward over packed rows. Travels through the model as the keyword argument `plan`."""

    pool: KVPool
    spans: tuple[Span, ...]
    rows: Int[Tensor, "written"]
    """Row of the pool where each packed row is written."""
    asked: dict[int, int | None] = field(default_factory=dict)
    """The sliding window that each layer asked for; the probe compares it with the model's configuration."""
    masks: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)
    """Masks made so far, by (first row, window, query heads per key head); the layers of a forward share them."""
