"""One device, or many at once through accelerate: the few things in which a training loop can tell them apart.

Knows nothing about what is trained.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from foreword.errors import InvalidRequest


@runtime_checkable
class Devices(Protocol):
    """Where a loop runs. Every rank holds the whole model and takes its own blocks of each step."""

    device: torch.device
    rank: int
    world: int

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model on this rank's device; calling it lets gradients meet, as `gradients` says."""
        ...

    def gradients(self, model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Around a forward and its backward: after the last of a step, gradients are the mean over all ranks."""
        ...

    def total(self, value: Tensor) -> Tensor:
        """The sum over all ranks."""
        ...

    def wait(self) -> None:
        """Go on when every rank has come here."""
        ...


class OneDevice:
    """A single process on one device."""

    rank, world = 0, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wrap(self, model: nn.Module) -> nn.Module:
        return model.to(self.device)

    def gradients(self, model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext()

    def total(self, value: Tensor) -> Tensor:
        return value

    def wait(self) -> None:
        pass


class ManyDevices:
    """One process for each device, as `accelerate launch` or `torchrun` starts them."""

    def __init__(self, *, cpu: bool = False) -> None:
        if find_spec("accelerate") is None:
            raise InvalidRequest("many devices need accelerate; install it with: pip install 'foreword[train]'")
        from accelerate import Accelerator

        self._accelerator = Accelerator(cpu=cpu)
        self.device: torch.device = self._accelerator.device
        self.rank: int = self._accelerator.process_index
        self.world: int = self._accelerator.num_processes

    def wrap(self, model: nn.Module) -> nn.Module:
        return self._accelerator.prepare_model(model)

    def gradients(self, model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._accelerator.no_sync(model)

    def total(self, value: Tensor) -> Tensor:
        found = self._accelerator.reduce(value, reduction="sum")
        assert isinstance(found, Tensor)
        return found

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()
