"""Request for a draft tree that a model grows in one call, and the grown tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Int32
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
    key: int | None
    """Key of the noise after the sequence; None when greedy."""
    ends: tuple[int, ...]
    ids: Int32[Tensor, "vocab"] | None = None
    """The target's token of each of the model's, if they differ; `target` = none."""
    target: int = 0
    """Tokens of the target; read only with `ids`."""
    expand: float = 0.0
    """Probability; see `Batch.expand`."""


Children = tuple[list[int], list[float]]
"""Tokens that may come next, best first, and their a log q + G."""


@dataclass(frozen=True, slots=True)
class GrownTree:
    """The best draft tokens, likeliest first, and those read to find them."""

    tokens: list[int]
    parents: list[int]
    probabilities: list[float]
    read: list[int]
    """Tokens, in the order they were read."""
    read_parents: list[int]
    """Index in `read` of the parent; -1 = the end of the sequence."""
    children: Sequence[Children]
    """Children of the end of the sequence, then of each draft token read."""
