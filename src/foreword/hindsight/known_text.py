"""A backend whose every score says the next token of a text that is known, so that an
engine writes this text with any drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.model import Model, Read
from foreword.model.pool.pages import PagePool

CERTAIN = 1e4
"""Added to the logit of the next token, in nats: more than any noise, penalty or
temperature takes away.
"""


class KnownText:
    """A backend without a model: no forward runs."""

    copies = True

    def __init__(self, target: Model, text: Sequence[int]) -> None:
        self.mode = target.mode
        self._shape = target.vocab, target.device
        self._text = list(text)

    @property
    def pool(self) -> PagePool | None:
        return None

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        return 0

    def close(self, id: int) -> None:
        """Do nothing: no sequence holds anything."""

    def move(self, id: int, source: list[int], start: int) -> None:
        """Do nothing, likewise."""

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Return logits that are certain of the known text, and even elsewhere."""
        vocab, device = self._shape
        rows = sum(read.keep for read in reads)
        logits = torch.zeros(rows, vocab, device=device, dtype=torch.float32)
        return self.certain(logits, reads)

    def certain(
        self, logits: Float[Tensor, "kept vocab"], reads: Sequence[Read]
    ) -> Float[Tensor, "kept vocab"]:
        """Return the logits with the known text above all other tokens, where a read
        follows it.

        Elsewhere they stay: a drafter that reads scores of refused draft tokens would
        learn there how the text goes on.
        """
        logits, start = logits.float(), 0
        for read in reads:
            for row, token in self._next(read):
                logits[start + row, token] = CERTAIN
            start += read.keep
        return logits

    def _next(self, read: Read) -> list[tuple[int, int]]:
        """Return (row, known next token) for each of the last `keep` tokens that lies
        on the known text.
        """
        first = len(read.tokens) - read.keep
        drafted = len(read.tokens) if read.parents is None else len(read.parents)
        committed = len(read.tokens) - drafted
        follows, found = list[bool](), list[tuple[int, int]]()
        for at, (token, depth) in enumerate(zip(read.tokens, read.depths, strict=True)):
            place = read.past + depth
            follows.append(
                self._parent_follows(read, at, committed, follows)
                and token == self._text[min(place, len(self._text) - 1)]
            )
            if follows[at] and at >= first and place + 1 < len(self._text):
                found.append((at - first, self._text[place + 1]))
        return found

    @staticmethod
    def _parent_follows(
        read: Read, at: int, committed: int, follows: list[bool]
    ) -> bool:
        """Return whether the token before the `at`-th of a read lies on the text."""
        if read.parents is None:
            return at == 0 or follows[at - 1]
        if at < committed:
            return True
        parent = read.parents[at - committed]
        return parent < 0 or follows[committed + parent]
