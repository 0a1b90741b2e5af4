"""Lead of rank 0: its messages to the other ranks, which do the same."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroup

from foreword.model.parallel.ranks import Ranks


class Lead:
    """Rank 0's side of the ranks of one model.

    A message and its collective operations are not interrupted. Where one fails, ranks
    no longer agree, so all of them end.
    """

    def __init__(self, ranks: Ranks, control: ProcessGroup) -> None:
        """`control`: the group of messages, on the CPU."""
        self.ranks = ranks
        self._control = control

    @staticmethod
    def share(tensor: Tensor) -> Tensor:
        """Return rank 0's tensor on every rank; the others give one of its shape."""
        shared = tensor.contiguous()
        dist.broadcast(shared, src=0)
        return shared

    @contextmanager
    def together(self, message: object) -> Iterator[None]:
        """Have the other ranks do this, while rank 0 does it inside.

        Raises ModelError where a rank has ended.
        """
        self.ranks.check()
        with uninterrupted():
            try:
                dist.broadcast_object_list([message], src=0, group=self._control)
                yield
                self._finish()
            except BaseException as error:  # noqa: BLE001 - raised again
                self.ranks.fail(error)

    def _finish(self) -> None:
        """Wait for the device: a forward that a lost rank broke off must not count."""
        if self.ranks.device == "cuda":
            torch.cuda.current_stream().synchronize()
            self.ranks.check()


def messages(control: ProcessGroup) -> Iterator[Any]:
    """Yield what rank 0 sends."""
    while True:
        received: list[Any] = [None]
        dist.broadcast_object_list(received, src=0, group=control)
        yield received[0]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back an interrupt (SIGINT) until the block ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda *event: held.append(event))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held and callable(before):
            before(*held[0])
