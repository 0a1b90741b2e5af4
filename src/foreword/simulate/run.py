"""Provides the simulation of one load for several numbers of replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreword.errors import InvalidRequest
from foreword.simulate.cluster import Cluster
from foreword.simulate.costs import ReplicaCosts
from foreword.simulate.load import Load
from foreword.simulate.report import Row, SimulationReport, row

MOST = 100_000
"""Replicas that are simulated at most."""

Progress = Callable[[int, int], None]
"""Called with the requests that are over, of all rows, and their total."""


def simulate(
    costs: ReplicaCosts,
    load: Load,
    replicas: Sequence[int] = (1,),
    measured: int = 1,
    *,
    shown: dict[str, Any] | None = None,
    progress: Progress = lambda *_: None,
) -> SimulationReport:
    """Simulate a load on each number of replicas.

    `measured`: replicas that ran when the costs were measured; `shown`: the load in
    words. Raises InvalidRequest for numbers of replicas that cannot be simulated.
    """
    if not replicas or not all(1 <= one <= MOST for one in (*replicas, measured)):
        raise InvalidRequest(
            f"cannot simulate {list(replicas)} replicas, measured with {measured}: "
            f"each must be from 1 to {MOST}. Give 1,2,4"
        )
    each = len(load.requests)
    total = each * len(replicas)
    rows: list[Row] = []
    for place, count in enumerate(replicas):
        before = place * each
        cluster = Cluster(costs, load, count)
        outcome = cluster.run(
            lambda done, before=before: progress(before + done, total)
        )
        rows.append(row(load, outcome, count, measured))
    described = {"requests": each, "seed": load.seed}
    return SimulationReport(costs, (shown or {}) | described, measured, tuple(rows))
