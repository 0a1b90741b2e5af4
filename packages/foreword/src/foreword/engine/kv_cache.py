"""Decides which sequences may hold keys and values of the target: who may start, and
when one must give way.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from foreword.engine.scheduler import ScheduledSequence
from foreword.model import Model, PromptEnd, source_id
from foreword.types import Load, Request
from foreword.types.params import NODES


class KVCache:
    """The pages of a target, as the engine shares them among its sequences.

    A backend without pages has no limit. One that cannot read a text again with the
    same bits reserves the pages of a sequence when it starts (`PagePool.adjacent`), and
    then no sequence has to give way.
    """

    def __init__(self, target: Model) -> None:
        self._target = target
        self.preemptions = 0

    def begin(
        self, sequence: Request, layers: Sequence[int]
    ) -> Float[Tensor, "tokens features"] | None:
        """Open a sequence in the target, after the longest prefix that an earlier text
        has left.

        Its drafter needs the hidden states after `layers` of every token. Return the
        stored hidden states of the tokens that need not be read; None if none are
        stored.
        """
        room = sequence.prompt + sequence.params.max_tokens + NODES
        sequence.cached = self._target.open(
            sequence.id,
            room,
            sequence.keys,
            sequence.params.owner,
            layers,
        )
        self._target.adapt(sequence.id, sequence.params.adapter)
        if sequence.images is not None:
            self._target.give(sequence.id, sequence.images)
        if sequence.encoder_input:
            self._target.give(sequence.id, sequence.encoder_input)
        if sequence.produced and self._target.backend.pool is None:
            self._target.give(sequence.id, PromptEnd(sequence.prompt))
        if not sequence.rounds:
            sequence.stats.cached = sequence.cached
        pool = self._target.backend.pool
        if pool is None or not layers or not sequence.cached:
            return None
        return pool.hidden(sequence.id, layers)

    def keep_hidden(
        self,
        sequence: Request,
        hidden: Float[Tensor, "tokens features"],
        layers: Sequence[int],
    ) -> None:
        """Keep the hidden states of tokens that were just read, for later texts that
        begin alike.
        """
        if (pool := self._target.backend.pool) is not None:
            pool.keep_hidden(sequence.id, sequence.cached, hidden, layers)

    def admits(
        self,
        sequence: Request,
        running: Sequence[Request],
        layers: Sequence[int],
    ) -> bool:
        """Return whether a sequence fits beside the running ones, each with its whole
        text and its next draft.

        `layers`: as in `begin`.
        """
        pool = self._target.backend.pool
        if pool is None or pool.limit is None or not running:
            return True
        sequences = (*running, sequence)
        needed = [pool.lacking(each.id, self._rows(each)) for each in sequences]
        needed += [
            pool.lacking(source_id(each.id), each.encoder_rows) for each in sequences
        ]
        shared = pool.prefixes.shared(sequence.keys, sequence.params.owner, layers)
        return sum(needed) - shared <= pool.limit - pool.used

    def lacks(self, scheduled: Sequence[ScheduledSequence]) -> bool:
        """Return whether a round of these sequences needs more pages than there are."""
        pool = self._target.backend.pool
        if pool is None or pool.limit is None:
            return False
        needed = 0
        for part in scheduled:
            rows = part.sequence.cached + part.read + NODES * part.writes
            needed += pool.lacking(part.sequence.id, rows)
        return needed > pool.limit - pool.used

    def give_up(self, sequence: Request) -> None:
        """Free the pages of a preempted sequence; it will be read again."""
        self._target.close(sequence.id)
        sequence.cached = 0
        self.preemptions += 1

    def load(self, running: int, waiting: int) -> Load:
        """Return the counts for metrics; the caller gives the counts of sequences."""
        pool = self._target.backend.pool
        if pool is None:
            return Load(running, waiting, self.preemptions, 0, 0, 0, 0, None)
        prefixes = pool.prefixes
        counts = (prefixes.queries, prefixes.hits, pool.used, pool.held, pool.limit)
        return Load(running, waiting, self.preemptions, *counts)

    def _rows(self, sequence: Request) -> int:
        """Return the rows that a sequence takes in the next round it writes in, or
        reserves.
        """
        pool = self._target.backend.pool
        if pool is not None and pool.adjacent:
            return pool.room(sequence.prompt + sequence.params.max_tokens + NODES)
        return len(sequence.tokens) + NODES
