"""Self-speculation: the target, read in a cheaper way, guesses for itself, in the memory that it reads from anyway.

Knows when that memory may be used; knows nothing about what makes the reading cheap.
"""

from __future__ import annotations

from foreword.draft.lm import ROOM, LanguageModelDrafter, _Memory
from foreword.model import Model, Read
from foreword.types import Batch, Sequence

SPARE = ROOM
"""Places that a sequence needs beyond its text, where guesses are written and the target writes over them."""
FEW = 8
"""Tokens that the target has not read yet, at most: longer ones are a prompt, which it shall read first, once."""


class SelfDrafter(LanguageModelDrafter):
    """Drafts with a view of the target. Nothing is read twice: the guesses follow the target's own keys and values.

    Exact, because the target's forward writes every row after the last one that it holds before it looks at it.
    """

    summary = "the target, read in a cheaper way"
    takes, needs = "", False

    def __init__(self, view: Model, *, shares: bool = True) -> None:
        """`view` as made by `foreword.model.view`; `shares` says that it was made to use its target's memory."""
        super().__init__(view)
        self._shares = shares

    def fit(self, batch: Batch, sequence: Sequence, nodes: int) -> int:
        ready = not self._shares or (sequence.cached > 0 and len(sequence.pending) <= FEW)
        return super().fit(batch, sequence, nodes) if ready else 0

    def catch_up(self, sequence: Sequence) -> Read:
        if not self._shares:
            return super().catch_up(sequence)
        self._memories[sequence.id] = _Memory()  # of no use: what is read now is overwritten before it is asked for
        return Read(sequence.id, sequence.cached, sequence.pending)
