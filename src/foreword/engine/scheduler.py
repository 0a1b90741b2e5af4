"""Scheduling by priority: which sequences run in a round, and how many prompt tokens
each reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from foreword.checks import whole
from foreword.types import Request

P = TypeVar("P")
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


FIRST = 16
"""Prompt tokens read in the first round that is shared; later rounds follow the
measurements.
"""
LARGEST_STEP = 2.0
"""Factor by which the share changes at most from one round to the next, so that one
slow round does not undo what many have measured.
"""
ROUNDS = 16
"""Shared rounds after which one without prompts measures anew how long a round
takes.
"""
WEIGHT = 0.5
"""Weight of the newest round without prompts in the average."""
SHORTEST = 1e-4
"""Seconds. Least time that reading is taken to cost; below it clocks are noise."""


class ReadingShare:
    """Prompt tokens that a round may read without lasting longer than allowed.

    A stream beside a long prompt then slows to half its pace at most, on any machine.
    Of several prompts the shortest is read first, and every other round the one that
    came first, so that none waits for ever.
    """

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds`: by which reading may lengthen a round; None: as long as the round
        takes without it.
        """
        self._seconds = seconds
        self._round: float | None = None
        """Seconds of a round that reads no prompt."""
        self._tokens = float(FIRST)
        self._shared = 0
        """Rounds that read prompts since the last one that did not."""
        self._turns = 0
        """Rounds in which several prompts were read."""

    def limit(self, most: int) -> int:
        """Return the prompt tokens that the next round may read, at most `most`; 0
        where it measures a round without them.
        """
        unmeasured = 1 if self._round is None else ROUNDS
        if self._shared >= unmeasured:
            return 0
        return max(1, min(int(self._tokens), most))

    def in_turn(self, prompts: Sequence[P], pending: Callable[[P], int]) -> Sequence[P]:
        """Return the prompts in the order in which the next round reads them; they come
        in the order of their arrival. `pending`: tokens of one that are not read.
        """
        if len(prompts) < 2:
            return prompts
        self._turns += 1
        if self._turns % 2:
            return sorted(prompts, key=pending)
        return prompts

    def measure(self, seconds: float, read: int) -> None:
        """Learn from a round in which sequences wrote, and `read` prompt tokens were
        read.
        """
        if not read:
            last = seconds if self._round is None else self._round
            self._round = WEIGHT * seconds + (1 - WEIGHT) * last
            self._shared = 0
            return
        self._shared += 1
        if self._round is None:
            return
        allowed = self._round if self._seconds is None else self._seconds
        factor = allowed / max(SHORTEST, seconds - self._round)
        factor = min(LARGEST_STEP, max(1 / LARGEST_STEP, factor))
        # the rest of a short prompt says little of a larger share
        if factor < 1 or read >= int(self._tokens):
            self._tokens = max(1.0, read * factor)


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
