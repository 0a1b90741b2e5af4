"""What one forward reads: which rows of the packed input belong to which sequence, where they go, what they may see.

Knows lengths, parents and positions; knows nothing about models or attention kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    held: int = 0
    """The first of `parents` that were read before, in this order, right after `past`, and are not among `tokens`."""

    @property
    def start(self) -> int:
        """Row, within the sequence's room, of the first of `tokens`."""
        return self.past + self.held

    @property
    def depths(self) -> list[int]:
        """Distance of each token from `past`; a guess stands one after its parent."""
        if self.parents is None:
            return list(range(len(self.tokens)))
        trunk = len(self.tokens) + self.held - len(self.parents)
        depths = list(range(trunk))
        for parent in self.parents:
            depths.append(trunk if parent < 0 else depths[trunk + parent] + 1)
        return depths[self.held :]


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a packed forward."""

    start: int
    stop: int
    extent: Extent
    read: Read

    @property
    def length(self) -> int:
        """Keys that exist once this span is written."""
        return self.read.start + self.stop - self.start

    @property
    def padded(self) -> int:
        """The same, rounded up: attention over such a key length gives the same bits in every round."""
        return whole(self.length)

    def visible(self, window: int | None, device: torch.device) -> Bool[Tensor, "rows keys"]:
        """Which key each row may see: what is held, its own ancestors and itself, within the window of positions."""
        count = self.stop - self.start
        keys = torch.arange(self.padded, device=device)
        rows = self.read.start + torch.arange(count, device=device)
        mask = keys[None, :] <= rows[:, None]
        if self.read.parents is not None:
            mask &= self._ancestors(keys, self.read.parents)
        if window is not None:
            whole_tree = replace(self.read, tokens=[0] * self.read.held + self.read.tokens, held=0)
            of_key = keys.clone()
            of_key[self.read.past : self.length] = torch.tensor(whole_tree.depths, device=device) + self.read.past
            mask &= of_key[None, :] > of_key[self.read.start : self.length, None] - window
        return mask

    def _ancestors(self, keys: Int[Tensor, "keys"], parents: list[int]) -> Bool[Tensor, "rows keys"]:
        past, held = self.read.past, self.read.held
        trunk = held + self.stop - self.start - len(parents)
        allowed = (keys < past + trunk).repeat(trunk + len(parents), 1)
        for node, parent in enumerate(parents):
            row = trunk + node
            if parent >= 0:
                allowed[row] = allowed[trunk + parent]
            allowed[row, past + row] = True
        return allowed[held:]


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
