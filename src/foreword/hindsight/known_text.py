"""A backend whose every score says the next token of a text that is known, so that an
engine writes this text with any drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.model import Model, Read
from foreword.model.kv.memories import Remembers
from foreword.model.kv.pages import PagePool

CERTAIN = 1e4
"""Added to the logit of the next token, in nats: more than any noise, penalty or
temperature takes away.
"""


class KnownText(Remembers):
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

    def give(self, id: int, material: object) -> None:
        """Do nothing: what the text was written from is not read."""

    def close(self, id: int) -> None:
        """Do nothing: no sequence holds anything."""

    def move(self, id: int, source: list[int], start: int) -> None:
        """Do nothing, likewise."""

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Return logits that are certain of the known text, by position alone: what
        follows a refused draft token is never looked at.
        """
        vocab, device = self._shape
        tokens = [token for read in reads for token in self._next(read)]
        logits = torch.zeros(len(tokens), vocab, device=device, dtype=torch.float32)
        logits[range(len(tokens)), tokens] = CERTAIN
        return logits

    def _next(self, read: Read) -> list[int]:
        """Return the known token after each of the last `keep` tokens of a read."""
        last = len(self._text) - 1
        depths = read.depths[len(read.depths) - read.keep :]
        return [self._text[min(read.past + depth + 1, last)] for depth in depths]
