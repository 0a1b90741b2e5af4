"""Decides which sequences may hold keys and values of the target: who may start, and when one must give way."""

from __future__ import annotations

from collections.abc import Sequence as List

from foreword.model import Model
from foreword.scheduler import ScheduledSequence
from foreword.types import Load, Sequence
from foreword.types.params import NODES


class KVCache:
    """The pages of a target, as the engine shares them among its sequences.

    A backend without pages has no limit. One that cannot read a text again with the same bits reserves the pages of a
    sequence when it starts (`PagePool.adjacent`), and then no sequence has to give way.
    """

    def __init__(self, target: Model) -> None:
        self._target = target
        self.preemptions = 0

    def begin(self, sequence: Sequence, *, reuse: bool) -> None:
        """Open a sequence in the target; with `reuse`, from the longest beginning that an earlier text has left."""
        tokens = sequence.tokens if reuse else ()
        room = sequence.prompt + sequence.params.max_tokens + NODES
        sequence.cached = self._target.open(sequence.id, room, tokens, sequence.params.tenant)
        if not sequence.rounds:
            sequence.stats.cached = sequence.cached

    def admits(self, sequence: Sequence, running: List[Sequence], *, reuse: bool) -> bool:
        """Return whether a sequence fits beside those that run, each with its whole text and its next draft."""
        pool = self._target.backend.pool
        if pool is None or pool.limit is None or not running:
            return True
        needed = [pool.lacking(one.id, self._rows(one)) for one in (*running, sequence)]
        shared = pool.prefixes.shared(sequence.tokens, sequence.params.tenant) if reuse else 0
        return sum(needed) - shared <= pool.limit - pool.used

    def lacks(self, scheduled: List[ScheduledSequence]) -> bool:
        """Return whether a round of these sequences needs more pages than there are."""
        pool = self._target.backend.pool
        if pool is None or pool.limit is None:
            return False
        stops = [(one.sequence, one.sequence.cached + one.read + NODES * one.writes) for one in scheduled]
        return sum(pool.lacking(sequence.id, stop) for sequence, stop in stops) > pool.limit - pool.used

    def give_up(self, sequence: Sequence) -> None:
        """Free the pages of a preempted sequence; it will be read again."""
        self._target.close(sequence.id)
        sequence.cached = 0
        self.preemptions += 1

    def load(self, running: int, waiting: int) -> Load:
        """Return the counts for metrics, with those of sequences given."""
        pool = self._target.backend.pool
        if pool is None:
            return Load(running, waiting, self.preemptions, 0, 0, 0, 0, None)
        prefixes = pool.prefixes
        counts = (prefixes.queries, prefixes.hits, pool.used, pool.held, pool.limit)
        return Load(running, waiting, self.preemptions, *counts)

    def _rows(self, sequence: Sequence) -> int:
        """Return the rows that a sequence takes in the next round it writes in, or reserves."""
        pool = self._target.backend.pool
        if pool is not None and pool.adjacent:
            return pool.room(sequence.prompt + sequence.params.max_tokens + NODES)
        return len(sequence.tokens) + NODES
