"""Device interface of the training loop: one, or many at once by accelerate."""

import ctypes
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor, nn

from foreword.errors import InvalidRequest


class OneDevice:
    """A single process on one device; its interface is that of `ManyDevices`."""

    rank, world = 0, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wrap(self, model: nn.Module) -> nn.Module:
        return model.to(self.device)

    def gradients(
        self, model: nn.Module, *, last: bool
    ) -> AbstractContextManager[object]:
        return nullcontext()

    def total(self, value: Tensor) -> Tensor:
        return value

    def wait(self) -> None:
        pass


class ManyDevices:
    """One process for each device, as `accelerate launch` or `torchrun` starts them.

    Every rank holds the whole model and takes its own blocks of each step.
    """

    def __init__(self, *, cpu: bool = False) -> None:
        if find_spec("accelerate") is None:
            raise InvalidRequest(
                "cannot train on many devices: accelerate is missing. Install it with: "
                "pip install 'foreword[devices]'"
            )
        from accelerate import Accelerator

        self._accelerator = Accelerator(cpu=cpu)
        self.device: torch.device = self._accelerator.device
        self.rank: int = self._accelerator.process_index
        self.world: int = self._accelerator.num_processes

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model on this rank's device; `gradients` averages over ranks."""
        return self._accelerator.prepare_model(model)

    def gradients(
        self, model: nn.Module, *, last: bool
    ) -> AbstractContextManager[object]:
        """Return a context for a forward and its backward; `last` of a step averages
        gradients over all ranks.
        """
        return nullcontext() if last else self._accelerator.no_sync(model)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        result = self._accelerator.reduce(value, reduction="sum")
        assert isinstance(result, Tensor)
        return result

    def wait(self) -> None:
        """Wait until every rank has arrived."""
        self._accelerator.wait_for_everyone()


Devices: TypeAlias = OneDevice | ManyDevices


_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4
"""Parameters of glibc's mallopt(3)."""
AHEAD = 256 * 2**20
"""Bytes. Extra memory requested whenever the heap grows."""


def keep_freed() -> bool:
    """Keep the memory that this process frees; return whether libc can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return all(
        [mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1), mallopt(_TOP_PAD, AHEAD)]
    )
