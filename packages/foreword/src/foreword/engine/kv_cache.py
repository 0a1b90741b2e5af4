"""Decides which requests may hold keys and values: who starts, and who gives way."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from foreword.engine.scheduler import ScheduledRequest
from foreword.model import Model, PromptEnd, source_id
from foreword.types import Load, Request
from foreword.types.params import NODES


class KVCache:
    """The pages of a target, as the engine shares them among its requests.

    A backend without pages has no limit. One that cannot read a text again with the
    same bits reserves the pages of a request when it starts (`PagePool.adjacent`), and
    then no request has to give way.
    """

    def __init__(self, target: Model) -> None:
        self._target = target
        self.preemptions = 0

    def begin(
        self, request: Request, layers: Sequence[int]
    ) -> Float[Tensor, "tokens features"] | None:
        """Open a request in the target, after the longest prefix that an earlier text
        has left.

        Its drafter needs the hidden states after `layers` of every token. Return the
        stored hidden states of the tokens that need not be read; None if none are
        stored.
        """
        room = request.prompt + request.params.max_tokens + NODES
        request.cached = self._target.open(
            request.id,
            room,
            request.keys,
            request.owner,
            layers,
        )
        if request.adapter is not None:
            self._target.give(request.id, request.adapter)
        if request.images is not None:
            self._target.give(request.id, request.images)
        if request.encoder_input:
            self._target.give(request.id, request.encoder_input)
        if request.produced and self._target.backend.pool is None:
            self._target.give(request.id, PromptEnd(request.prompt))
        if not request.rounds:
            request.stats.cached = request.cached
        pool = self._target.backend.pool
        if pool is None or not layers or not request.cached:
            return None
        return pool.hidden(request.id, layers)

    def keep_hidden(
        self,
        request: Request,
        hidden: Float[Tensor, "tokens features"],
        layers: Sequence[int],
    ) -> None:
        """Keep the hidden states of tokens just read, for texts that begin alike."""
        if (pool := self._target.backend.pool) is not None:
            pool.keep_hidden(request.id, request.cached, hidden, layers)

    def admits(
        self,
        request: Request,
        running: Sequence[Request],
        layers: Sequence[int],
    ) -> bool:
        """Return whether a request fits beside the running ones, each with its whole
        text and its next draft.

        `layers`: as in `begin`.
        """
        pool = self._target.backend.pool
        if pool is None or pool.limit is None or not running:
            return True
        requests = (*running, request)
        needed = [pool.lacking(each.id, self._rows(each)) for each in requests]
        needed += [
            pool.lacking(source_id(each.id), each.encoder_rows) for each in requests
        ]
        shared = pool.prefixes.shared(request.keys, request.owner, layers)
        return sum(needed) - shared <= pool.limit - pool.used

    def lacks(self, scheduled: Sequence[ScheduledRequest]) -> bool:
        """Return whether a round of these requests needs more pages than there are."""
        pool = self._target.backend.pool
        if pool is None or pool.limit is None:
            return False
        needed = 0
        for part in scheduled:
            rows = part.request.cached + part.read + NODES * part.writes
            needed += pool.lacking(part.request.id, rows)
        return needed > pool.limit - pool.used

    def give_up(self, request: Request) -> None:
        """Free the pages of a preempted request; it will be read again."""
        self._target.close(request.id)
        request.cached = 0
        self.preemptions += 1

    def load(self, running: int, waiting: int) -> Load:
        """Return the counts for metrics; the caller gives the counts of requests."""
        pool = self._target.backend.pool
        if pool is None:
            return Load(running, waiting, self.preemptions, 0, 0, 0, 0, None)
        prefixes = pool.prefixes
        counts = (prefixes.queries, prefixes.hits, pool.used, pool.held, pool.limit)
        return Load(running, waiting, self.preemptions, *counts)

    def _rows(self, request: Request) -> int:
        """Return the rows that a request takes in the round, written or reserved."""
        pool = self._target.backend.pool
        if pool is not None and pool.adjacent:
            return pool.room(request.prompt + request.params.max_tokens + NODES)
        return len(request.tokens) + NODES
