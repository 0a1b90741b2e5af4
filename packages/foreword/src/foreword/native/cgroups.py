"""Finds the limits that a container or a router sets for this process."""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

NODES = Path("/sys/devices/system/node")
ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""The folder of all groups, and the file that names the groups of this process."""
SHARERS = "FOREWORD_MEMORY_SHARERS"
"""Environment: how many processes of a router share the memory of this machine."""
NODE = "FOREWORD_MEMORY_NODE"
"""Environment: the NUMA node that this process is bound to, and how many processes are,
such as "0:2".
"""
NODE_FREE = ("MemFree:", "Active(file):", "Inactive(file):")
"""Memory of a node that is free, or holds copies of files."""


def share_of(free: int, nodes: Path) -> int:
    """Return the share of the free memory of this machine, and of its node, that this
    process may use beside others of the same router.
    """
    share = free // int(os.environ.get(SHARERS, "1"))
    bound = os.environ.get(NODE, "")
    node, _, sharers = bound.partition(":")
    with suppress(OSError, ValueError):
        meminfo = nodes / f"node{int(node)}" / "meminfo"
        lines = meminfo.read_text("ascii").splitlines()
        rows = map(str.split, lines)
        sizes = [int(row[3]) for row in rows if row[2] in NODE_FREE]
        free_bytes = 1024 * sum(sizes)
        share = min(share, free_bytes // int(sharers))
    return share


def groups(kind: str, root: Path, file: Path) -> Iterator[Path]:
    """Yield the folders that may limit this process: the outermost ones, which are a
    container's own seen from inside, and its groups up to them.

    `kind`: the controller of cgroup 1; cgroup 2 has one folder for all.
    """
    yield from (root, root / kind)
    with suppress(OSError):
        for line in file.read_text("utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or kind in kinds.split(","):
                top = root / kinds
                group = top / path.lstrip("/")
                while group != top:
                    yield group
                    group = group.parent


def processors(root: Path, file: Path) -> float:
    """Return the processors whose time the groups of this process may use; infinity if
    they are not limited.
    """
    least = inf
    for group in groups("cpu", root, file):
        with suppress(OSError, ValueError):  # "max" stands for no limit
            limit = (group / "cpu.max").read_text("ascii")
            quota, period = limit.split()
            least = min(least, int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota = _number(group / "cpu.cfs_quota_us")
            period = _number(group / "cpu.cfs_period_us")
            if quota > 0:
                least = min(least, quota / period)
    return least


def _number(path: Path) -> int:
    return int(path.read_text("ascii"))
