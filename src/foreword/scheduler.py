"""Who runs in the next round, and how much of a prompt each reads. First come, first served.

Knows sequences; knows nothing about models or guesses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from foreword.params import whole
from foreword.types import Sequence


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence's part in a round."""

    sequence: Sequence
    read: int
    """Pending tokens to read this round."""
    writes: bool
    """All that is pending is read, so this round writes tokens. Settled here: the round changes what is pending."""


class Scheduler:
    """At most `slots` sequences run at a time; at most `chunk` tokens of prompts are read in one round.

    A long prompt is read in chunks beside the others' decoding, so nobody waits for it.
    """

    def __init__(self, *, slots: int = 8, chunk: int = 512) -> None:
        at_least_one = whole(1)  # with none of either no sequence would ever get a turn
        self.slots, self.chunk = at_least_one("slots", slots), at_least_one("chunk", chunk)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def next(self) -> list[Turn]:
        """The turns of the next round; those who write come before the prompts that do not fit into the chunk."""
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        left = self.chunk
        turns = []
        for sequence in self.running:
            pending = len(sequence.tokens) - sequence.cached
            read = pending if pending == 1 else min(pending, left)
            if read:
                turns.append(Turn(sequence, read, writes=read == pending))
                left -= read if pending > 1 else 0
        return turns

    def retire(self, sequence: Sequence) -> None:
        """The sequence has ended, or was given up."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting
