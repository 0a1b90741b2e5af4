"""Finds the limits that a container or a router sets for this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

NODES = Path("/sys/devices/system/node")
ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""The folder of all groups, and the file that names those of this process."""
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
    node, _, beside = os.environ.get(NODE, "").partition(":")
    with suppress(OSError, ValueError):
        text = (nodes / f"node{int(node)}" / "meminfo").read_text(encoding="ascii")
        rows = [line.split() for line in text.splitlines()]
        pages = [int(row[3]) for row in rows if row[2] in NODE_FREE]
        share = min(share, 1024 * sum(pages) // int(beside))
    return share


def groups(kind: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders that may limit this process: the outermost ones, which are a
    container's own seen from inside, and its groups up to them.

    `kind`: the controller of cgroup 1; cgroup 2 has one folder for all.
    """
    yield from (root, root / kind)
    with suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or kind in kinds.split(","):
                group, top = root / kinds / path.lstrip("/"), root / kinds
                while group != top:
                    yield group
                    group = group.parent


def processors(root: Path, own: Path) -> float:
    """Return the processors whose time the groups of this process may use; infinity if
    they are not limited.
    """
    least = inf
    for group in groups("cpu", root, own):
        with suppress(OSError, ValueError):  # "max" stands for no limit
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
            least = min(least, int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota, period = (
                int((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii"))
                for name in ("quota", "period")
            )
            least = min(least, quota / period if quota > 0 else inf)
    return least
