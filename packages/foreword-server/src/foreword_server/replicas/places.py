"""Cores, memory and devices of replicas: a GPU each, or else a NUMA node each, so that
none reads the memory of another.
"""

import ctypes
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from foreword.errors import InvalidRequest
from foreword.native import cgroups
from foreword.native.cpu import cores
from foreword.native.nodes import by_node

Nodes = Mapping[int, list[int]]
"""Processors of each NUMA node, siblings of a core side by side."""
CORE = "/sys/devices/system/cpu/cpu{cpu}/topology/{part}"
BIND = 2
"""MPOL_BIND of set_mempolicy: pages come from these nodes only."""
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Number of the system call, which libc does not wrap."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Files of the drivers of NVIDIA and AMD."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one replica runs."""

    cpus: tuple[int, ...] = ()
    """Empty: wherever the system likes."""
    node: int | None = None
    """NUMA node of its memory."""
    device: str | None = None
    """GPU, by its number or UUID."""
    sharers: int = 1
    """Replicas that share the memory of the machine."""
    beside: int = 1
    """Replicas on its node."""

    def take(self) -> None:
        """Bind this process. Call it before torch is imported."""
        if self.device is not None:
            os.environ[VISIBLE] = self.device
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)
            for name in THREADS:
                os.environ[name] = str(len(self.cpus))
        os.environ[cgroups.SHARERS] = str(self.sharers)
        if self.node is not None:
            os.environ[cgroups.NODE] = f"{self.node}:{self.beside}"
            _bind_memory(self.node)

    def __str__(self) -> str:
        if self.device is not None:
            return f"GPU {self.device}"
        if not self.cpus:
            return "all cores"
        cores = f"cores {_ranges(self.cpus)}"
        return cores if self.node is None else f"{cores}, node {self.node}"


def places(
    count: int | None, *, gpus: bool = True, most: int | None = None
) -> list[Place]:
    """Return the places of some replicas; None: one for each GPU or NUMA node.

    `most`: processors that they may keep busy together; None: as many as this process.
    Raises InvalidRequest for more replicas than cores or GPUs.
    """
    devices = _devices() if gpus else []
    if devices:
        return _on_devices(devices, count)
    nodes = _nodes(_allowed())
    if not any(nodes.values()):
        count = count or 1
        return [Place(sharers=count)] * count
    most = min(most or cores(), sum(map(len, nodes.values())))
    if count is None:
        nodes = _largest(nodes, most)
        count = len(nodes)
    return _on_nodes(nodes, count, most)


def _on_devices(devices: list[str], count: int | None) -> list[Place]:
    count = len(devices) if count is None else count
    if count > len(devices):
        raise InvalidRequest(
            f"cannot run {count} replicas: there are {len(devices)} GPUs. Use "
            "'--replicas auto', or '--device cpu'"
        )
    return [Place(device=one) for one in devices[:count]]


def _largest(nodes: Nodes, most: int) -> Nodes:
    """Return the nodes that use most cores with one replica each, of equal shares."""
    order = sorted(nodes, key=lambda node: -len(nodes[node]))
    enough = next(
        number
        for number in range(1, len(order) + 1)
        if sum(len(nodes[node]) for node in order[:number]) >= most
    )

    def used(number: int) -> tuple[int, int]:
        share = min(len(nodes[order[number - 1]]), most // number)
        return number * share, number

    best = max(range(1, enough + 1), key=used)
    return {node: nodes[node] for node in sorted(order[:best])}


def _on_nodes(nodes: Nodes, count: int, most: int) -> list[Place]:
    """Spread replicas over nodes. All get as many cores, as some forwards round by the
    number of threads: as many as there are `count` times.
    """
    share = most // count
    while share and sum(len(cpus) // share for cpus in nodes.values()) < count:
        share -= 1
    if not share:
        raise InvalidRequest(
            f"cannot run {count} replicas: there are {most} cores. Use '--replicas "
            "auto', or fewer"
        )
    left = {node: list(cpus) for node, cpus in nodes.items()}
    several = len(nodes) > 1
    layout: list[Place] = []
    for _ in range(count):
        # among equals, the node that has used least
        node = max(left, key=lambda node: (len(left[node]), -len(nodes[node])))
        taken, left[node] = left[node][:share], left[node][share:]
        layout.append(Place(tuple(sorted(taken)), node if several else None))
    counts = Counter(one.node for one in layout)
    return [
        replace(one, sharers=count, beside=counts[one.node])
        for one in sorted(layout, key=lambda item: (item.node or 0, item.cpus))
    ]


def _allowed() -> list[int]:
    """Return the processors that this process may use; none where it cannot bind."""
    if sys.platform != "linux":
        return []
    return sorted(os.sched_getaffinity(0))


def _nodes(cpus: list[int]) -> dict[int, list[int]]:
    """Return the processors of each NUMA node, siblings of a core side by side."""
    nodes = {node: sorted(ids, key=_core) for node, ids in by_node(cpus).items()}
    return nodes or {0: cpus}


def _core(cpu: int) -> tuple[int, int, int]:
    """Return socket, core and number of a processor."""
    return (_topology(cpu, "physical_package_id"), _topology(cpu, "core_id"), cpu)


def _topology(cpu: int, part: str) -> int:
    try:
        return int(Path(CORE.format(cpu=cpu, part=part)).read_text())
    except (OSError, ValueError):
        return cpu


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers as such a list."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts
    )


def has_gpus() -> bool:
    """Return whether this process may use a GPU, without importing torch."""
    named = _visible()
    return any(map(os.path.exists, DRIVERS)) if named is None else bool(named)


def _visible() -> list[str] | None:
    """Return the GPUs that the environment names; None: all of them."""
    names = os.environ.get(VISIBLE)
    return None if names is None else [one for one in names.split(",") if one.strip()]


def _devices() -> list[str]:
    """Return the GPUs that this process may use."""
    if (named := _visible()) is not None:
        return [one.strip() for one in named]
    import torch  # which a server on processors loads in its replicas alone

    return [str(number) for number in range(torch.cuda.device_count())]


def _bind_memory(node: int) -> None:
    """Have new pages come from one NUMA node; without the right to ask, they come from
    the node of the core that first uses them.
    """
    call = SET_MEMPOLICY.get(platform.machine())
    if call is None:
        return
    size = 64 * (node // 64 + 1)
    words = [0] * (size // 64)
    words[node // 64] = 1 << node % 64
    mask = (ctypes.c_uint64 * len(words))(*words)
    ctypes.CDLL(None).syscall(call, BIND, mask, size + 1)
