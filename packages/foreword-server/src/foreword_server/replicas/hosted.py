"""One model of a catalog: whether it is loaded, and the memory it takes."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Literal

from foreword.native import cgroups
from foreword_server.errors import ApiError
from foreword_server.replicas.catalog import Entry
from foreword_server.replicas.supervise import Supervisor

GIB = 2**30
OVERHEAD = 1.2
"""Memory of a model never loaded, from its files' size: some cache comes on top."""
PROGRAM = 400 * 2**20
"""Bytes of a process without a model: torch and transformers take so much."""
Status = Literal["unloaded", "loading", "loaded"]


@dataclass(slots=True, eq=False)
class Hosted:
    """A model of the catalog."""

    entry: Entry
    created: int = field(default_factory=lambda: int(time()))
    status: Status = "unloaded"
    supervisor: Supervisor | None = None
    users: int = 0
    """Requests that it answers, or that wait for its load."""
    loading: asyncio.Task[None] | None = None
    yields_to: "Hosted | None" = None
    """The model that waits for its memory: new requests wait for that load first."""
    used: float = 0.0
    """monotonic() at the end of the last one."""
    measured: int = 0
    """Bytes that it took when it was loaded last."""
    failure: tuple[float, ApiError] | None = None
    """monotonic() of the last try that no other could mend, and its reason."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is loaded or unloaded."""

    @property
    def bytes(self) -> int:
        """Bytes that it takes, or is expected to take."""
        expected = int(OVERHEAD * self.entry.bytes) + PROGRAM
        return self.measured or self.entry.replicas * expected

    @property
    def may_use_gpu(self) -> bool:
        """Whether it runs on a GPU where there is one."""
        return self.entry.options.get("device") != "cpu"

    @property
    def idle(self) -> bool:
        """Whether it can be unloaded now."""
        return (
            self.status == "loaded"
            and not self.users
            and not self.entry.keep
            and not self.lock.locked()
        )


def at_once(entries: Sequence[Entry], memory: int) -> int:
    """Return how many processes fit into the memory, of the smallest models."""
    count = 0
    for entry in sorted(entries, key=lambda item: Hosted(item).bytes / item.replicas):
        for _ in range(entry.replicas):
            memory -= Hosted(entry).bytes // entry.replicas
            count += memory >= 0
    return max(1, count)


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in cgroups.groups("memory", cgroups.ROOT, cgroups.OWN):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" stands for no limit
                total = min(total, int((group / name).read_text(encoding="ascii")))
    return total
