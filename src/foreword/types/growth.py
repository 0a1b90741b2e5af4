"""Provides the request of a draft tree that a model grows in one call, and the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TreeRequest:
    """Parameters of a draft tree; draft/tree/coupled.py defines the names."""

    most: int
    breadth: int
    deep: int
    width: int
    reads: int
    floor: float
    temperature: float
    scale: float
    noise: Float[Tensor, "deep target_vocab"] | None
    """Gumbel noise of the next positions; None when greedy."""
    ends: tuple[int, ...]


Children = tuple[list[int], list[float]]
"""Tokens that may come next, best first, and their log q + G."""


@dataclass(frozen=True, slots=True)
class GrownTree:
    """The best draft tokens, likeliest first, and those read to find them; parents
    before children.
    """

    tokens: list[int]
    parents: list[int]
    probabilities: list[float]
    read: list[int]
    """Tokens, in the order they were read."""
    read_parents: list[int]
    """Index in `read` of the parent; -1 = the end of the sequence."""
    children: Sequence[Children]
    """Children of the end of the sequence, then of each draft token read."""
