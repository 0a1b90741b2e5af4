"""First-come, first-served scheduling: which sequences run in a round, and how many prompt tokens each reads."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from foreword.types import Sequence
from foreword.types.params import whole


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's slice of a round."""

    sequence: Sequence
    read: int
    """Pending tokens to read this round."""
    writes: bool
    """Whether all pending tokens are read, so that this round emits tokens. Fixed here: the round changes `pending`."""


class Scheduler:
    """Queue of sequences: at most `slots` run at a time, and a round reads at most `chunk` prompt tokens.

    A long prompt is read in chunks beside the decoding of other sequences, so it does not stall them.
    """

    def __init__(self, *, slots: int = 8, chunk: int = 512) -> None:
        at_least_one = whole(1)  # with 0 of either, no sequence would ever run
        self.slots, self.chunk = at_least_one("slots", slots), at_least_one("chunk", chunk)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def next(self) -> list[ScheduledSequence]:
        """Return the sequences of the next round; prompts that do not fit into the chunk come after the rest."""
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        left = self.chunk
        scheduled = []
        for sequence in self.running:
            pending = len(sequence.tokens) - sequence.cached
            read = pending if pending == 1 else min(pending, left)
            if read:
                scheduled.append(ScheduledSequence(sequence, read, writes=read == pending))
                left -= read if pending > 1 else 0
        return scheduled

    def retire(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended or was aborted."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def idle(self) -> bool:
        """Whether no sequence is running or waiting."""
        return not self.running and not self.waiting
