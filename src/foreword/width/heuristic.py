"""Two guesses more after a round that kept all of them, one fewer after any other: the schedule of transformers.

Knows what became of past rounds; looks at no clock and at no law.
"""

from __future__ import annotations

from foreword.types import Sequence
from foreword.width.base import Outcome, Width

START = 5
"""Guesses in a text's first round."""
MORE, FEWER = 2, 1


class Heuristic(Width):
    """`num_assistant_tokens_schedule="heuristic_transient"` of transformers: a count for each text, at least one.

    Of a tree, all is kept when its longest branch is.
    """

    summary = "transformers' schedule: two more after a round that kept all, else one fewer"

    def __init__(self, start: int = START) -> None:
        self._start = start
        self._counts: dict[int, int] = {}

    def nodes(self, sequence: Sequence, company: int) -> int:
        return self._counts.get(sequence.id, self._start)

    def learn(self, sequence: Sequence, outcome: Outcome) -> None:
        if not outcome.drafted:
            return
        kept_all, count = outcome.accepted == outcome.drafted, self.nodes(sequence, 0)
        self._counts[sequence.id] = count + MORE if kept_all else max(1, count - FEWER)

    def release(self, sequence: Sequence) -> None:
        self._counts.pop(sequence.id, None)
