"""Interface of backends, through which Foreword scores tokens, and its four modes."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.model.kv.memories import Kind
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Read


class Mode(Enum):
    """Draft tokens that one forward scores exactly, best first."""

    TREE = "tree"
    """A draft tree, through our attention and our pool."""
    CHAIN = "chain"
    """A chain, through our attention and our pool."""
    CACHE = "cache"
    """A chain, through the cache of transformers, one sequence at a time."""
    PLAIN = "plain"
    """None: only the next token is scored, and drafting is off."""


@runtime_checkable
class Backend(Protocol):
    """A runner of one model: it reads tokens of sequences by id and returns logits."""

    mode: Mode
    copies: bool
    """Whether `move` can copy a token's state to any position; not if recurrent."""

    @property
    def pool(self) -> PagePool | None:
        """The pages of its keys and values; None if it has no pages."""
        ...

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence of at most `capacity` tokens, draft tokens included.

        `tokens`: its text so far. Returns how many leading tokens need not be read,
        because an earlier text of the same tenant began with them and left the hidden
        states of `layers`. At least one token is left to read.
        """
        ...

    def memory(self, kind: type[Kind]) -> Kind | None:
        """Return what it remembers of sequences beside keys and values, such as
        ImageMemory; None if it has no such memory.
        """
        ...

    def give(self, id: int, material: object) -> None:
        """Set what an open sequence reads beside its text, before its first read: its
        images, or the source of an encoder-decoder.
        """
        ...

    def close(self, id: int) -> None:
        """Free a sequence. Unknown ids are ignored."""
        ...

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Run one forward; return the logits of the last `keep` tokens of each read."""
        ...

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make an accepted branch contiguous: position source[i] moves to start + i."""
        ...


@runtime_checkable
class ReadsHiddenStates(Protocol):
    """A backend that exposes hidden states, for drafters that predict from them."""

    def read_hidden(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        """Run `read`; return each token's hidden states too, joined over `layers`."""
        ...

    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the LM head for hidden states after the final norm."""
        ...
