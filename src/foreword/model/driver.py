"""How a model is driven: the small interface that the rest of Foreword scores through, and its four grades.

Knows what each grade can do; knows nothing about how.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from enum import Enum
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.model.plan import Read
from foreword.native.tree import Ask, Grown


class Mode(Enum):
    """What a model can score exactly in one forward, best first."""

    TREE = "tree"
    """A tree of guesses, through our attention and our pool."""
    CHAIN = "chain"
    """A chain of guesses, through our attention and our pool."""
    CACHE = "cache"
    """A chain of guesses, through the cache of transformers, one sequence at a time."""
    PLAIN = "plain"
    """Nothing but its own next token; guesses are never asked for."""


@runtime_checkable
class Driver(Protocol):
    """Reads tokens of many sequences and returns logits. Sequences are named by an integer id."""

    mode: Mode
    copies: bool
    """What it holds of a token can be copied to any place by `move`; a state that took many tokens in cannot."""

    def open(self, id: int, capacity: int) -> None:
        """Make room for a sequence of at most `capacity` tokens, guesses included."""
        ...

    def close(self, id: int) -> None:
        """Forget a sequence. Unknown ids are ignored."""
        ...

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        """One forward. Returns the logits of the last `keep` tokens of each read, in order."""
        ...

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make the keys of an accepted branch contiguous: position source[i] moves to start + i."""
        ...


@runtime_checkable
class Hearing(Protocol):
    """What a driver offers those who guess from what the model thinks while it reads."""

    def hear(
        self, reads: List[Read], layers: List[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        """`read`, and the hidden states of every token read, those of all `layers` side by side."""
        ...

    def speak(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """What the model's own head says of hidden states that are normed already."""
        ...


@runtime_checkable
class Growing(Protocol):
    """What a driver may also offer: a whole tree of guesses without coming back between its levels."""

    def grow(self, read: Read, ask: Ask) -> Grown:
        """Read the end of a text, then grow a tree after it, as `Growth` in draft/tree.py does level by level."""
        ...
