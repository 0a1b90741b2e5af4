"""No guesses: plain decoding through the same loop."""

from __future__ import annotations

from collections.abc import Sequence as List

from foreword.draft.base import Drafter, chosen
from foreword.types import Batch, Draft


class NoDrafter(Drafter):
    """Says nothing, so every round writes the one token that the target adds."""

    summary = "no guesses: plain decoding"

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return chosen([[] for _ in nodes])
