"""A model's own scores in float32, and a float32 copy of its first layers: both check a
backend without rounding that could hide errors.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.architectures import is_seq2seq
from foreword.model.kv.limit import free_memory
from foreword.model.layers import layers_of, rank_count

TINY, SMALL = 25_000_000, 250_000_000
"""Parameters. Up to the first, an excerpt has all layers; an encoder-decoder: the
second.
"""


def excerpt(model: PreTrainedModel) -> PreTrainedModel | None:
    """Return the fewest first layers that include every kind of layer; None where the
    layers cannot be found.

    An encoder-decoder is taken whole, or not at all; a model that is split among
    processes cannot be copied.
    """
    if rank_count(model) is not None:
        return None
    try:
        layers, config = layers_of(model), model.config.get_text_config()
        count = len(layers)
        size = sum(part.numel() for part in model.parameters())
        whole_only = is_seq2seq(model.config)
        if whole_only and size > SMALL:
            return None
        length = count if whole_only or size <= TINY else enough(layers, config)
        memo: dict[int, Any] = {}
        if length < count:
            whole = next(
                m
                for m in model.modules()
                if isinstance(m, nn.ModuleList) and len(m) and m[0] is layers[0]
            )
            memo[id(whole)] = nn.ModuleList(copy.deepcopy(layers[:length], memo))
        twin = copy.deepcopy(model, memo).float()
        if length < count:
            shorten(twin.config.get_text_config(), count, length)
    except Exception:  # noqa: BLE001 - the model itself is checked then
        return None
    return twin


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Let the model compute in float32 while inside; its layers are widened one at a
    time, as they run.

    Raises ModelError where that cannot be done.
    """
    layers: Sequence[nn.Module] = []
    with suppress(ModelError, AttributeError):
        layers = layers_of(model)
    inside = set()
    for layer in layers:
        inside.update(layer.modules())
    words = []
    rest = []
    for part in model.modules():
        if part not in inside:
            is_table = isinstance(part, nn.Embedding)
            (words if is_table else rest).append(part)
    needed = 4 * sum(
        weight.numel() for part in rest for weight in part.parameters(recurse=False)
    )
    free = free_memory(model.device)
    if rank_count(model) or needed > free / 2:
        raise ModelError(
            "cannot compute in float32: it does not fit in memory. Use another dtype"
        )
    running = ExitStack()

    def before(layer: nn.Module, args: Any, named: Any) -> Any:
        running.enter_context(_widened(layer.modules()))
        return _wide(args), _wide(named)

    with running, ExitStack() as ending:
        ending.enter_context(_widened(rest))
        for part in words:
            hook = part.register_forward_hook(lambda *run: run[-1].float())
            ending.callback(hook.remove)
        for layer in layers:
            hook = layer.register_forward_pre_hook(before, with_kwargs=True)
            ending.callback(hook.remove)
            hook = layer.register_forward_hook(lambda *_: running.close())
            ending.callback(hook.remove)
        yield


@contextmanager
def _widened(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Hold the weights and buffers of these modules in float32 while inside."""
    narrow: list[tuple[dict[str, Any], str, Tensor]] = []
    try:
        for part in parts:
            weights: dict[str, Any] = part._parameters
            for tensors in (weights, part._buffers):
                for name, tensor in tensors.items():
                    wide: Any = _wide(tensor)
                    if tensor is None or wide is tensor:
                        continue
                    narrow.append((tensors, name, tensor))
                    if tensors is weights:
                        wide = nn.Parameter(wide, requires_grad=False)
                    tensors[name] = wide
        yield
    finally:
        for tensors, name, tensor in narrow:
            tensors[name] = tensor


def _wide(value: Any) -> Any:
    """Return tensors, alone or in a tuple or dict, in float32; not ids and masks."""
    if type(value) is tuple:
        return tuple(map(_wide, value))
    if isinstance(value, dict):
        return {name: _wide(part) for name, part in value.items()}
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value if value.itemsize > 2 else value.float()


def enough(layers: Any, config: Any) -> int:
    """Return how many first layers include every kind of layer."""
    count = len(layers)
    lists = [
        value
        for value in vars(config).values()
        if isinstance(value, list) and len(value) == count
    ]
    signatures = [
        (str(kind), tuple(type(module).__name__ for module in layer.modules()))
        for *kind, layer in zip(*lists, layers, strict=True)
    ]
    return 1 + max(signatures.index(one) for one in set(signatures))


def shorten(config: Any, count: int, length: int) -> None:
    """Leave a config the first `length` layers of its `count`."""
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(config, name, value[:length])
    config.num_hidden_layers = length
