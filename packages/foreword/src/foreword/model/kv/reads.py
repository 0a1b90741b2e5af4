"""Reads of a forward: tokens of sequences, their rows, and the keys that rows see."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foreword.model.kv.pages import PageTable, whole

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
    """Parent of each draft token, the last ones; -1 = the text, None = a chain."""
    keep: int = 1
    """Logits are returned for the last `keep` tokens."""
    held: int = 0
    """Leading `parents` read before, right after `past`, and not in `tokens`."""

    @property
    def start(self) -> int:
        """Return the row, within the sequence, of the first of `tokens`."""
        return self.past + self.held

    @property
    def depths(self) -> list[int]:
        """Return each token's distance from `past`, one more than its parent's."""
        if self.parents is None:
            return list(range(len(self.tokens)))
        committed = len(self.tokens) + self.held - len(self.parents)
        depths = list(range(committed))
        for parent in self.parents:
            depths.append(committed if parent < 0 else depths[committed + parent] + 1)
        return depths[self.held :]

    @property
    def drafted(self) -> int:
        """Return how many of the last tokens are draft tokens: those with a parent, or
        a chain with logits of each.

        A longer chain with logits of every row is text, such as a scored prompt.
        """
        if self.parents is not None:
            return min(len(self.parents) - self.held, len(self.tokens))
        return self.keep - 1 if 1 <= self.keep <= MOST_DRAFT_TOKENS + 1 else 0

    @property
    def linked(self) -> int:
        """Return how many of the first tokens follow one another, also as rows."""
        if self.parents is None:
            return len(self.tokens)
        fresh = self.parents[self.held :]
        follows = (parent == node - 1 for node, parent in enumerate(fresh, self.held))
        return (
            len(self.tokens)
            - len(fresh)
            + next((i for i, one in enumerate(follows) if not one), len(fresh))
        )


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """Where the prompt of a text ends that is read together with some of its answer, as
    after a preemption: for a backend whose forwards depend on it.
    """

    tokens: int
    """Length of the prompt."""


Reach = Mapping[bool, Int[Tensor, "tokens 2"]]
"""By whether a layer has a window: the first and last key each row attends to."""


def source_id(id: int) -> int:
    """Return the id of a sequence's source in the pool, which no sequence has."""
    return -3 - id


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """The keys and values of a source, which every decoder layer reads."""

    table: PageTable
    length: int

    def visible(self, count: int, device: torch.device) -> Bool[Tensor, "rows keys"]:
        """Return the mask of keys for so many rows: each attends to all the source."""
        return (torch.arange(whole(self.length), device=device) < self.length).repeat(
            count, 1
        )


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows of a span on one path of its draft tree: each follows the one before."""

    rows: Sequence[int]
    """Numbers of the rows within the span."""
    position: int
    """Position of the first of them."""
    root: int
    """Position of the first node of the path; all keys before it are committed."""
    path: list[int]
    """Row in the sequence of each node of the path; other branches have rows too."""

    @property
    def moved(self) -> bool:
        """Return whether keys of the path lie elsewhere than at their positions."""
        return self.path != list(range(self.root, self.root + len(self.path)))


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a packed forward."""

    start: int
    stop: int
    table: PageTable
    read: Read
    source: SourceKeys | None = None
    reach: Reach = field(default_factory=dict)
    """Attention ranges of the leading rows whose mask is not causal."""

    @property
    def length(self) -> int:
        """Return the number of keys of the sequence after this span is written."""
        return self.read.start + self.stop - self.start

    @property
    def padded(self) -> int:
        """Return the same at a length for which attention gives stable bits."""
        return whole(self.length)

    @property
    def chain(self) -> Branch:
        """Return all rows as if each followed the one before."""
        return Branch(range(self.stop - self.start), self.read.start, self.length, [])

    def branches(self) -> list[Branch]:
        """Return branches that hold every row once; committed rows begin the first."""
        parents, held = self.read.parents, self.read.held
        if not parents:
            return [self.chain]
        committed = held + self.stop - self.start - len(parents)
        root = self.read.past + committed
        branches: list[Branch] = []
        rows = list(range(committed))
        pending = set(range(held, len(parents)))
        for leaf in sorted(set(range(len(parents))) - set(parents)):
            path: list[int] = []
            node = leaf
            while node >= 0:
                path.insert(0, node)
                node = parents[node]
            fresh = [node for node in path if node in pending]
            pending -= set(fresh)
            rows += [committed + node - held for node in fresh]
            if rows:
                position = root + len(path) - len(rows)
                stored = [root + node for node in path]
                branches.append(Branch(rows, position, root, stored))
            rows = []
        return branches

    def visible(
        self, position: int, count: int, window: int | None, device: torch.device
    ) -> Bool[Tensor, "rows keys"]:
        """Return the mask of keys for rows of a branch, each key at its position."""
        distances = self.distances(position, count, device)
        mask = distances >= 0
        if window is not None:
            mask &= distances < window
        if (window is not None) in self.reach:
            ends = self.reach[window is not None][position : position + count]
            ends = ends.to(device)
            keys = torch.arange(self.padded, device=device)
            mask[: len(ends)] = (keys >= ends[:, :1]) & (keys <= ends[:, 1:])
        return mask

    def distances(
        self, position: int, count: int, device: torch.device
    ) -> Int[Tensor, "rows keys"]:
        """Return how many positions each key is before each of these rows."""
        rows = torch.arange(position, position + count, device=device)
        return rows[:, None] - torch.arange(self.padded, device=device)
