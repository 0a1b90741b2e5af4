"""Forms the groups of ranks, off the network: ranks unpickle what they receive."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Store

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment: network interfaces of the groups of gloo and of NCCL."""
FOREVER = timedelta(days=3650)
"""How long a rank waits for a message: as long as rank 0 has no work."""


@contextmanager
def loopback() -> Iterator[None]:
    """Have groups that are formed in the block, and by ranks that are started in it,
    use the loopback interface alone.
    """
    names = [name for _, name in socket.if_nameindex()]
    interface = next((name for name in names if name.startswith("lo")), "lo")
    before = {name: os.environ.pop(name, None) for name in INTERFACES}
    os.environ |= dict.fromkeys(INTERFACES, interface)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def joined(rank: int) -> str:
    """Return the key of the store that a rank sets once it is ready."""
    return f"joined/{rank}"


def grouped(store: Store, device: str, rank: int, count: int) -> ProcessGroup:
    """Form the default group of all ranks; return the group of messages."""
    on_gpu = device == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=count,
        device_id=torch.device("cuda", rank) if on_gpu else None,
    )
    return cast("ProcessGroup", dist.new_group(backend="gloo", timeout=FOREVER))
