"""Fits adapters to a target, and lets its sequences be read with them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from foreword.errors import InvalidRequest, ModelError
from foreword.model.adapters.folder import LoraFolder, Pair, read_folder
from foreword.model.adapters.settings import refusal
from foreword.model.architectures import body, has_vision
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.packed_linear import (
    MIN_ROWS,
    PackedLinear,
    own_form,
    packable,
)
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Span
from foreword.model.model import Model
from foreword.model.probe.trial import batch_invariant, probe_text
from foreword.model.seq2seq import check_decoder_only
from foreword.options import ONLY_NATIVE, ModelOptions


class LowRank:
    """The pair of one layer, in float32 as PEFT computes it. The bits of a row do not
    depend on the other rows, nor on their number.
    """

    def __init__(self, pair: Pair) -> None:
        self._down = _layer(pair.down)
        self._up = _layer(pair.up)
        self._scale = pair.scale

    def __call__(
        self, x: Float[Tensor, "rows inputs"]
    ) -> Float32[Tensor, "rows outputs"]:
        rows = x.float()
        spare = MIN_ROWS - len(rows)
        if spare > 0:
            rows = torch.cat([rows, rows[-1:].expand(spare, -1)])
        return self._up(self._down(rows))[: len(x)] * self._scale


class LoraAdapter:
    """The pairs of a model's linear layers; another model may use the same names."""

    def __init__(self, name: str, pairs: Mapping[nn.Module, LowRank]) -> None:
        self.name = name
        self._pairs = pairs

    @contextmanager
    def on(self, rows: list[int], count: int) -> Iterator[None]:
        """Add the pairs to these rows of forwards of `count` rows that run inside."""
        index = torch.tensor(rows)
        with ExitStack() as hooks:
            for layer, pair in self._pairs.items():
                add = partial(_add, pair, index, count)
                hook = layer.register_forward_hook(add)
                hooks.callback(hook.remove)
            yield


def _add(
    pair: LowRank,
    index: Int[Tensor, "own"],
    count: int,
    layer: nn.Module,
    inputs: tuple[Tensor, ...],
    output: Float[Tensor, "*rows outputs"],
) -> Float[Tensor, "*rows outputs"]:
    """Return the output of a layer with a pair added to the rows of `index`."""
    x = inputs[0].flatten(0, -2)
    rows = output.flatten(0, -2)
    if len(x) != count:
        raise ModelError(
            f"cannot add an adapter to a {type(layer).__name__}: it reads {len(x)} of "
            f"the {count} rows of a forward. Merge the adapter into the model"
        )
    sums = rows[index] + pair(x[index])
    rows[index] = sums.to(rows.dtype)
    return rows.view_as(output)


def _layer(weight: Float32[Tensor, "outputs inputs"]) -> nn.Module:
    """Return a linear layer without a bias, packed where the executor packs them."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return PackedLinear(layer) if packable(layer) else layer


POOL = "pool"
"""The backend that adds adapters."""
NAME = re.compile(r"\w[\w./@-]*")
"""Names of adapters: a server's clients write NAME:METHOD."""
ADAPTED: Sequence[int] = (0, 1)
"""Sequences of the check that are read with an adapter; the other has none."""


def read_adapters(folders: Mapping[str, str | Path]) -> dict[str, LoraFolder]:
    """Return the adapters of these folders, by name.

    Raises InvalidRequest for a name that cannot be used, ModelError for a folder.
    """
    for name in folders:
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                f"cannot name an adapter {name!r}: a name is letters, digits and any "
                "of _ - . / @. Choose another"
            )
    return {name: read_folder(Path(folder)) for name, folder in folders.items()}


def adapting(options: ModelOptions) -> ModelOptions:
    """Return these options with the backend that adds adapters.

    Raises InvalidRequest for an option that it does not have.
    """
    for name in ONLY_NATIVE:
        if getattr(options, name) not in (None, False):
            raise InvalidRequest(
                f"cannot use adapters with {name!r}: it needs backend 'native', and "
                f"adapters need {POOL!r}. Leave one of them out"
            )
    if options.backend not in (None, POOL):
        raise InvalidRequest(
            f"cannot use adapters with backend={options.backend!r}: only {POOL!r} "
            "adds them. Leave 'backend' out"
        )
    return replace(options, backend=POOL)


def attach(model: Model, folders: Mapping[str, LoraFolder]) -> None:
    """Let sequences of a model be read with these adapters.

    Raises ModelError where the model runs on another backend, an adapter belongs to
    another model, or its scores would depend on the batch.
    """
    backend = _pool_of(model)
    fitted = {name: _fitted(model, name, one) for name, one in folders.items()}
    backend.memories = (*backend.memories, TorchAdapters())
    for name, adapter in fitted.items():
        mixed = dict.fromkeys(ADAPTED, adapter)
        if not batch_invariant(backend, probe_text(model.hf), backend.mode, mixed):
            raise ModelError(
                f"cannot use adapter {name!r} with {model.name}: the bits of a score "
                "depend on the other rows of the batch. Merge it into the model"
            )
    model.adapters = fitted


def _pool_of(model: Model) -> PoolBackend:
    """Return the backend of a model that adapters can be added to.

    Raises InvalidRequest or ModelError for another one.
    """
    check_decoder_only(model.seq2seq, model.name, "use adapters")
    if has_vision(model.hf.config):
        raise InvalidRequest(
            f"cannot use adapters with {model.name}: it reads images. Merge the "
            "adapter into the model"
        )
    if not isinstance(model.backend, PoolBackend) or model.device.type != "cpu":
        raise ModelError(
            f"cannot use adapters with {model.name}: it runs on backend "
            f"'{model.capability.backend}' on {model.device}, and adapters need "
            f"{POOL!r} on a CPU. Load it with backend={POOL!r} and device='cpu'"
        )
    if model.adapters:
        raise InvalidRequest(
            f"cannot add adapters to {model.name}: it has some already. Load it again"
        )
    return model.backend


def _fitted(model: Model, name: str, folder: LoraFolder) -> LoraAdapter:
    """Return an adapter of this model. Raises ModelError where it is of another one."""
    linear = _linear_layers(body(model.hf), model.hf)
    pairs: dict[nn.Module, LowRank] = {}
    for layer, pair in folder.pairs.items():
        if layer not in linear:
            raise refusal(
                folder.path,
                f"{model.name} has no linear layer {layer!r} in its decoder",
            )
        _check_sizes(folder.path, layer, linear[layer], pair)
        pairs[linear[layer]] = LowRank(pair)
    for layer in linear:
        if layer not in folder.pairs and folder.settings.needs(layer):
            raise refusal(
                folder.path, f"it has no weights for {layer!r}, which its settings name"
            )
    return LoraAdapter(name, pairs)


def _linear_layers(decoder: nn.Module, whole: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers of a decoder, by their names in the whole model."""
    inside = set(decoder.modules())
    kinds = (nn.Linear, PackedLinear, Conv1D)
    return {
        name: layer
        for name, layer in whole.named_modules()
        if layer in inside and isinstance(layer, kinds)
    }


def _check_sizes(path: Path, name: str, layer: nn.Module, pair: Pair) -> None:
    """Raise ModelError where a pair is for a layer of another size."""
    if isinstance(layer, PackedLinear | nn.Linear):
        sizes = (layer.in_features, layer.out_features)
    else:
        outputs, inputs = own_form(layer).shape
        sizes = (inputs, outputs)
    shape = (pair.down.shape[1], pair.up.shape[0])
    if shape != sizes:
        raise refusal(
            path,
            f"its matrices of {name!r} take {shape[0]} numbers and give {shape[1]}, "
            f"and this layer takes {sizes[0]} and gives {sizes[1]}: it was trained for "
            "another model",
        )


class TorchAdapters(TorchMemory):
    """Adapters, added to the rows of the sequences that name one. A sequence has the
    model alone until it is given an adapter.
    """

    takes = (LoraAdapter,)
    sequences: dict[int, LoraAdapter]

    def opening(
        self, pool: PagePool, id: int, text: Sequence[int], tenant: str
    ) -> None:
        self.close(pool, id)

    @contextmanager
    def during(
        self, model: PreTrainedModel, spans: Sequence[Span], rows: int
    ) -> Iterator[None]:
        """Add each adapter to the rows of its sequences, in a forward of so many."""
        rows_of: dict[LoraAdapter, list[int]] = {}
        for span in spans:
            adapter = self.sequences.get(span.read.id)
            if adapter is not None:
                rows_of.setdefault(adapter, []).extend(range(span.start, span.stop))
        with ExitStack() as during:
            for adapter, places in rows_of.items():
                during.enter_context(adapter.on(places, rows))
            yield
