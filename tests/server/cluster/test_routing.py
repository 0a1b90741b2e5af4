"""Prompts of several families at once, each routed to the replica that knows it."""

import asyncio
from asyncio import FIRST_COMPLETED as FIRST

import pytest

from foreword_server.replicas.pool import Asked

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray


def test_concurrent_families_keep_to_their_replicas():
    """The replica of the oldest request is slow to say that it has room."""
    from ray.serve._private import common
    from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

    from foreword_server.cluster.routing import PrefixRouter

    deployment = common.DeploymentID("Engine", "foreword")
    homes = [ReplicaID(name, deployment) for name in "abbb"]

    class Peer(RunningReplica):
        replica_id = None
        max_ongoing_requests = 100

        def __init__(self, replica_id: ReplicaID, room: asyncio.Event) -> None:
            self.replica_id, self.room = replica_id, room

        async def get_queue_len(self, *, deadline_s: float) -> int:
            await self.room.wait()
            return 0

    def asked(family: int, name: str) -> PendingRequest:
        prompt = Asked("POST", "/", [], blocks=[str(family).encode()])
        return PendingRequest([prompt], {}, common.RequestMetadata(name, name))

    async def chosen() -> list[ReplicaID]:
        router = PrefixRouter(deployment, common.DeploymentHandleSource.REPLICA)
        router.queue_len_response_deadline_s = 60
        router.initialize_state()
        peers = [Peer(home, asyncio.Event()) for home in homes[:2]]
        router.update_replicas(peers)
        for family, home in enumerate(homes):
            router.on_request_routed(asked(family, "read"), home, None)
            router.on_request_completed(home, "read")
        requests = [asked(family, str(family)) for family in range(len(homes))]
        waiting = asyncio.gather(*map(router._choose_replica_for_request, requests))
        peers[1].room.set()
        async with asyncio.timeout(20):
            await asyncio.wait([one.future for one in requests], return_when=FIRST)
            peers[0].room.set()
            return [replica.replica_id for replica in await waiting]

    assert asyncio.run(chosen()) == homes
