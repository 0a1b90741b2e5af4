"""A second device without one: tensors of the CPU that refuse others beside them."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

ELSEWHERE = torch.device("xpu", 0)
CROSSES = (torch.Tensor.copy_, torch.Tensor.__setitem__, torch.Tensor.to)
"""What may be given tensors of two devices."""


class Elsewhere(torch.Tensor):
    """A tensor that is said to be on the second device."""


class TwoDevices(TorchFunctionMode):
    """Within it, the device ELSEWHERE is there, and an operation on both devices fails."""

    def __torch_function__(self, func: Any, types, args=(), kwargs=None) -> Any:
        leaves = tree_leaves((args, kwargs))
        there = any(isinstance(one, Elsewhere) for one in leaves)
        here = [one for one in leaves if type(one) is torch.Tensor and one.dim()]
        if there and here and func not in CROSSES:
            raise RuntimeError(f"{func} was given tensors of two devices")
        if func == torch.Tensor.device.__get__ and there:
            return ELSEWHERE
        if func is torch.device:
            return func(*args, **kwargs or {})
        devices = [one for one in leaves if isinstance(one, torch.device)]
        if devices:
            there = ELSEWHERE in devices
        elif func in CROSSES:
            given = [one for one in args[:2] if isinstance(one, torch.Tensor)]
            there = isinstance(given[-1 if func is torch.Tensor.to else 0], Elsewhere)
        args, kwargs = tree_map(plain, (args, kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return tree_map(tagged if there else plain, func(*args, **kwargs))


def plain(value: Any) -> Any:
    """Return a tensor as one of the CPU, and the second device as the CPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.as_subclass(torch.Tensor) if isinstance(value, Elsewhere) else value


def tagged(value: Any) -> Any:
    """Return a tensor as one of the second device."""
    return value.as_subclass(Elsewhere) if isinstance(value, torch.Tensor) else value
