"""Scheduling by priority: which sequences run in a round, and how many prompt tokens
each reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from foreword.checks import whole
from foreword.estimators import ReadingShare
from foreword.types import Request

FAIR = 8
"""Every so many starts, the sequence that came first starts next, whatever its
priority; so none waits for ever.
"""

Admits = Callable[[Request], bool]
"""Whether a sequence may start now."""
Begin = Callable[[Request], None]
"""Called before the first tokens of a sequence are scheduled; may set
`Request.cached`.
"""


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's slice of a round."""

    sequence: Request
    read: int
    """Pending tokens to read this round."""
    writes: bool
    """Whether all pending tokens are read, so that this round emits tokens.

    Fixed here: the round changes `pending`.
    """


class Scheduler:
    """Queue of sequences: at most `slots` run at a time, and a round reads at most
    `chunk` prompt tokens.

    The waiting sequence with the smallest `SamplingParams.priority` starts first; among
    equals, the earliest one. A long prompt is read in chunks beside the decoding of
    other sequences, in their `share` of a round, so it does not stall them.
    """

    def __init__(
        self, *, slots: int = 8, chunk: int = 512, read_ms: int | None = None
    ) -> None:
        """`read_ms`: milliseconds by which reading may lengthen a round in which other
        sequences write; None: as long as the round takes without it.
        """
        at_least_one = whole(1)  # with 0 of either, no sequence would ever run
        self.slots = at_least_one("slots", slots)
        self.chunk = at_least_one("chunk", chunk)
        whole(1, optional=True)("read_ms", read_ms)
        self.share = ReadingShare(None if read_ms is None else read_ms / 1000)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self._ranks: dict[int, tuple[float, int]] = {}
        """Request id -> (priority, number of its arrival); the smallest goes first."""
        self._arrivals = count()
        self._starts = 0

    def add(self, sequence: Request) -> None:
        """Queue a sequence."""
        self._ranks[sequence.id] = sequence.params.priority, next(self._arrivals)
        self.waiting.append(sequence)

    def next(
        self, admits: Admits = lambda _: True, begin: Begin = lambda _: None
    ) -> list[ScheduledSequence]:
        """Return the sequences of the next round; prompts that do not fit into the
        chunk come after the rest.

        If the first sequence of the queue is not admitted, no other one starts before
        it.
        """
        while self.waiting and len(self.running) < self.slots:
            sequence = self._first()
            if not admits(sequence):
                break
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self._starts += 1
        reads = self._reads(begin)
        return [
            ScheduledSequence(
                sequence,
                reads[sequence.id],
                writes=reads[sequence.id] == _pending(sequence),
            )
            for sequence in self.running
            if reads.get(sequence.id)
        ]

    def _reads(self, begin: Begin) -> dict[int, int]:
        """Return how many tokens each running sequence reads, by its id."""
        prompts = []
        reads = {}
        for sequence in self.running:
            if not sequence.cached and len(sequence.tokens) == 1:
                begin(sequence)
            if _pending(sequence) == 1:
                reads[sequence.id] = 1
            else:
                prompts.append(sequence)
        left = most = self.share.limit(self.chunk) if reads else self.chunk
        for sequence in self.share.in_turn(prompts, _pending):
            if not left:
                break
            if not sequence.cached:
                begin(sequence)
            read = min(_pending(sequence), left)
            if read > 1:
                read = _uncut(sequence, read, full=left == most)
            reads[sequence.id] = read
            left = max(0, left - read)
        return reads

    def measure(self, scheduled: Sequence[ScheduledSequence], seconds: float) -> None:
        """Learn from a round how much of a prompt one may read while others write."""
        if any(entry.read == 1 and entry.writes for entry in scheduled):
            read = sum(entry.read - entry.writes for entry in scheduled)
            self.share.measure(seconds, read)

    def preempt(self) -> Request:
        """Put the running sequence that came last, of those with the worst priority,
        back into the queue.

        It keeps its place there: before all that came after it.
        """
        sequence = max(self.running, key=self._rank)
        self.running.remove(sequence)
        self.waiting.append(sequence)
        return sequence

    def retire(self, sequence: Request) -> None:
        """Remove a sequence that has ended or was aborted."""
        for queue in (self.running, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
                del self._ranks[sequence.id]

    @property
    def idle(self) -> bool:
        """Whether no sequence is running or waiting."""
        return not self.running and not self.waiting

    def _first(self) -> Request:
        """Return the sequence that starts next.

        One whose turn it is by fairness then comes before all others.
        """
        if (self._starts + 1) % FAIR:
            return min(self.waiting, key=self._rank)
        sequence = min(self.waiting, key=lambda one: self._ranks[one.id][1])
        self._ranks[sequence.id] = -math.inf, self._ranks[sequence.id][1]
        return sequence

    def _rank(self, sequence: Request) -> tuple[float, int]:
        return self._ranks[sequence.id]


def _pending(sequence: Request) -> int:
    return len(sequence.tokens) - sequence.cached


def _uncut(sequence: Request, read: int, *, full: bool) -> int:
    """Return how many pending tokens to read so that no part that must be read whole is
    cut.

    Up to the part, or to its end where nothing else is read in this round and nothing
    comes before it.
    """
    end = sequence.cached + read
    for start, stop in () if sequence.images is None else sequence.images.whole:
        if start < end < stop:
            return (
                stop - sequence.cached
                if full and start <= sequence.cached
                else max(0, start - sequence.cached)
            )
    return read
