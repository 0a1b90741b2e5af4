"""NUMA nodes: the processors of each, and how a forward's threads divide."""

import os
from collections.abc import Collection, Sequence
from ctypes import c_int32
from functools import cache
from itertools import pairwise

from foreword.native import cgroups


def by_node(cpus: Collection[int]) -> dict[int, list[int]]:
    """Return which of these processors each NUMA node has, by its number; nodes with
    none are left out.
    """
    processors = {}
    for folder in cgroups.NODES.glob("node[0-9]*"):
        text = (folder / "cpulist").read_text().strip()
        if ids := [cpu for cpu in _numbers(text) if cpu in cpus]:
            processors[int(folder.name.removeprefix("node"))] = ids
    return dict(sorted(processors.items()))


def shares(sizes: Sequence[int], threads: int) -> list[int]:
    """Divide threads among nodes by their numbers of processors."""
    ends = [sum(sizes[:end]) * threads // sum(sizes) for end in range(len(sizes) + 1)]
    return [end - start for start, end in pairwise(ends)]


@cache
def divide() -> int:
    """Divide the threads of all forwards among the NUMA nodes, the first time; return
    the number of nodes that have threads.

    Each thread that helps in a forward stays on its node, threads of a node meet before
    all nodes do, and matrices lie on the node that reads them.
    """
    from foreword.native import forward, openmp

    affinity = getattr(os, "sched_getaffinity", None)
    processors = by_node(affinity(0)) if affinity else {}
    if len(processors) < 2:
        return 1
    counts = shares([len(ids) for ids in processors.values()], openmp.threads())
    pairs = zip(processors.values(), counts, strict=True)
    used = [(ids, count) for ids, count in pairs if count]
    node = [-1] * (1 + max(max(ids) for ids, _ in used))
    for number, (ids, _) in enumerate(used):
        for cpu in ids:
            node[cpu] = number
    forward.needed().foreword_nodes(
        len(used),
        (c_int32 * len(used))(*(count for _, count in used)),
        len(node),
        (c_int32 * len(node))(*node),
    )
    return len(used)


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list of Linux, such as "0-3,8"."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
