"""Choice of a replica for a request on Ray: the one that has read the beginning of its
prompt, unless that is far busier than another.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from foreword_server.replicas.pool import Asked, cost
from foreword_server.replicas.prefixes import Prefixes

LOAD = 16
"""Answers that a replica with the model may have more than one that must load it."""


class PrefixRouter(RequestRouter):
    """Router of requests of `Engine.ask`. Each gets the replica that was chosen for its
    prompt: Ray's FIFOMixin would give that to the request which waits longest.
    """

    def initialize_state(self, **_: Any) -> None:
        """Begin with replicas that have read nothing."""
        self._prefixes: dict[ReplicaID, Prefixes] = {}
        self._running: Counter[ReplicaID] = Counter()
        self._models: dict[ReplicaID, set[str]] = defaultdict(set)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas, the best one first; a full one is passed over."""
        if not candidate_replicas:
            return []
        keys, model = blocks_of(pending_request), model_of(pending_request)

        def rank(peer: RunningReplica) -> tuple[float, int]:
            name = peer.replica_id
            known = self._prefixes.get(name)
            matches = known.matches(keys) if known else 0
            models = self._models[name]
            load = LOAD if model and model not in models else 0
            running = self._count(name)
            return load + cost(running, matches), len(models)

        ranked = sorted(candidate_replicas, key=rank)
        return [[peer] for peer in ranked]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that there are, and forget the others."""
        super().update_replicas(replicas)
        left = {one.replica_id for one in replicas}
        for table in (self._prefixes, self._running, self._models):
            for gone in table.keys() - left:
                del table[gone]

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: Any,
    ) -> None:
        """Count a request, and its prompt as read."""
        known = self._prefixes.setdefault(replica_id, Prefixes())
        known.add(blocks_of(pending_request))
        self._running[replica_id] += 1
        if model := model_of(pending_request):
            self._models[replica_id].add(model)

    def on_request_completed(
        self, replica_id: ReplicaID, internal_request_id: str
    ) -> None:
        """Count a request no more."""
        count = self._running[replica_id]
        self._running[replica_id] = max(0, count - 1)

    def _count(self, replica_id: ReplicaID) -> int:
        """Return the requests of a replica; other ingresses send some too."""
        cache = self.replica_queue_len_cache
        of_all = cache.get(replica_id) or 0
        return max(of_all, self._running[replica_id])


def blocks_of(pending: PendingRequest | None) -> Sequence[bytes]:
    """Return the beginnings of a request's prompt; none of other calls."""
    if pending is None or not pending.args:
        return ()
    call = pending.args[0]
    return call.blocks if isinstance(call, Asked) else ()


def model_of(pending: PendingRequest | None) -> str | None:
    """Return the model that a request of `Engine.ask` names."""
    args = pending.args if pending else ()
    return args[1] if len(args) > 1 else None
