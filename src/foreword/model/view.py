"""Provides views for self-speculation: the same model with skipped sublayers, or with weights in fewer bits.

A view is for drafting: its scores are not the model's.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.errors import InvalidRequest
from foreword.model.cpu.backend import CpuBackend, rows_of
from foreword.model.cpu.kernel import Kernel
from foreword.model.cpu.recurrent import RecurrentBackend
from foreword.model.model import Model
from foreword.model.pool.backend import PoolBackend
from foreword.model.pool.kv_pool import KVPool
from foreword.model.pool.plan import Read
from foreword.native import forward

CODINGS = {16: forward.WHOLE, 8: forward.BYTES, 4: forward.NIBBLES}
"""Bits of a weight -> its coding on the C side."""


@dataclass(frozen=True, slots=True)
class LayerSkip:
    """Numbers of the layers whose attention or MLP is skipped; a skipped sublayer adds zero."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)


@runtime_checkable
class Skipping(Protocol):
    """The backend of a view, whose skipped sublayers can be changed."""

    def skip(self, skip: LayerSkip) -> None:
        """Skip these sublayers from now on."""
        ...


def view(target: Model, *, skip: LayerSkip | None = None, bits: int = 16, spare: int = 0) -> Model:
    """Return the same model with skipped sublayers and its weights in 8 or 4 bits, or with 16 as the target has them.

    With `spare` > 0 the view shares the target's keys and values: it need not read again what the target has read, and
    the target's next forward overwrites what the view wrote. Every sequence opened from then on gets `spare` more rows
    for it. With 0 the view has a pool of its own.

    Raises InvalidRequest where the target's backend has no such view.
    """
    backend, skip = target.backend, skip or LayerSkip()
    layers = target.hf.config.get_text_config().num_hidden_layers
    if any(not 0 <= layer < layers for layer in skip.attention | skip.mlp):
        raise InvalidRequest(
            f"cannot skip other layers than 0 to {layers - 1} of {target.name}. Give numbers in that range"
        )
    if isinstance(backend, RecurrentBackend):
        raise InvalidRequest(
            f"cannot draft with layers of {target.name}: they keep a recurrent state, which draft tokens cannot share. "
            "Use another method"
        )
    if isinstance(backend, CpuBackend):
        _check_sizes(target.name, backend, bits)
        reader = NativeView(backend, skip, bits, shares=spare > 0)
    elif isinstance(backend, PoolBackend) and bits == 16:
        reader = PooledView(backend, skip, shares=spare > 0)
    elif bits != 16:
        raise InvalidRequest(
            f"cannot read {target.name} with weights of {bits} bits: only backend 'native' can, and it runs on "
            f"'{target.capability.backend}'. Use bfloat16 on a CPU with a C compiler, or another method"
        )
    else:
        raise InvalidRequest(
            f"cannot skip sublayers of {target.name}: only backends 'native' and 'pool' can, and it runs "
            f"on '{target.capability.backend}' ({target.capability.reason}). Use another method"
        )
    if not spare:
        reader.pool.limit = backend.pool.limit
    backend.pool.spare = max(backend.pool.spare, spare)
    twin = copy(target)
    label = f"{target.capability.backend}, {bits} bits, without {sorted(skip.attention)} and {sorted(skip.mlp)}"
    twin.backend, twin.capability, twin._cost = (
        reader,
        replace(target.capability, backend=label),
        None,
    )  # a view has its own cost
    return twin


class NativeView(CpuBackend):
    """A native backend over the packed weights of another, or over quantized copies of them; also batch-invariant."""

    def __init__(self, base: CpuBackend, skip: LayerSkip, bits: int, *, shares: bool) -> None:
        Kernel.__init__(self, base.pool if shares else rows_of(base._hf), base._turns)
        self._warm = base._warm
        self._base, self.guest, self._hf = base, shares, base._hf
        self._layers = (forward.Layer * base._model.layers)(*base._model.layer[: base._model.layers])
        described = forward.Model.from_buffer_copy(base._model)
        described.layer = self._layers
        self.pool.attach(self._layers)
        if bits != 16:
            self._code(described, CODINGS[bits], base._held)
        self.describe(described, base._words, base._weight_bytes)
        self.skip(skip)

    def skip(self, skip: LayerSkip) -> None:
        """Skip these sublayers from now on."""
        if not self.guest:
            self.pool.prefixes.clear()
        for number, layer in enumerate(self._layers):
            layer.skipped = forward.ATTENTION * (number in skip.attention) + forward.MLP * (number in skip.mlp)

    def open(self, id: int, capacity: int, tokens: List[int] = (), tenant: str = "", layers: List[int] = ()) -> int:
        return 0 if self.guest else super().open(id, capacity, tokens, tenant, layers)

    def close(self, id: int) -> None:
        if not self.guest:
            super().close(id)

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        return self._base.embed(tokens)  # embeddings are not quantized

    @property
    def bytes(self) -> int:
        """Bytes of memory that the quantized copies take."""
        return sum(tensor.nbytes for tensor in self._held)


class PooledView(PoolBackend):
    """A pool backend whose skipped sublayers return zero during its own forwards."""

    def __init__(self, base: PoolBackend, skip: LayerSkip, *, shares: bool) -> None:
        self._layers = _decoder_layers(base._model)
        self.guest = shares
        self.mode, self.windows = base.mode, base.windows
        self._model, self._device, self._rope = base._model, base._device, base._rope
        self._tiled = base._tiled
        self.pool = base.pool if shares else KVPool(adjacent=base.pool.adjacent)
        self._skip = skip

    def skip(self, skip: LayerSkip) -> None:
        """Skip these sublayers from now on."""
        if not self.guest:
            self.pool.prefixes.clear()
        self._skip = skip

    def open(self, id: int, capacity: int, tokens: List[int] = (), tenant: str = "", layers: List[int] = ()) -> int:
        return 0 if self.guest else super().open(id, capacity, tokens, tenant, layers)

    def close(self, id: int) -> None:
        if not self.guest:
            super().close(id)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        with _skipping(self._layers, self._skip):
            return super().read(reads)


def _check_sizes(name: str, backend: CpuBackend, bits: int) -> None:
    if bits not in CODINGS:
        raise InvalidRequest(f"'bits' must be one of {', '.join(map(str, CODINGS))}, got {bits}")
    if bits == 16:
        return
    m = backend._model
    depths = (m.hidden, m.experts.contents.inner if m.experts else m.intermediate, m.heads * m.dim)
    if m.coding != forward.WHOLE:
        raise InvalidRequest(
            f"cannot draft with {name} in {bits} bits: its own weights are held in 8 bits. Use another method"
        )
    if bits == 4 and any(depth % forward.GROUP for depth in depths):
        raise InvalidRequest(
            f"cannot read {name} with weights of 4 bits: its sizes {depths} are not multiples of {forward.GROUP}. Use "
            "another method"
        )


def _decoder_layers(model: nn.Module) -> List[nn.Module]:
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList) or not all(
        hasattr(layer, "self_attn") and hasattr(layer, "mlp") for layer in layers
    ):
        raise InvalidRequest(
            f"cannot skip sublayers of {type(model).__name__}: it has no list of layers with self_attn and "
            "mlp. Use another method"
        )
    return list(layers)


@contextmanager
def _skipping(layers: List[nn.Module], skip: LayerSkip) -> Iterator[None]:
    """Make the skipped sublayers return zeros while inside, so that only the residual passes them."""
    sublayers = {layers[number].self_attn: _no_attention for number in skip.attention}
    sublayers |= {layers[number].mlp: torch.zeros_like for number in skip.mlp}
    before = {sublayer: vars(sublayer).get("forward") for sublayer in sublayers}  # the owner may have patched it
    try:
        for sublayer, zeros in sublayers.items():
            vars(sublayer)["forward"] = zeros
        yield
    finally:
        for sublayer, forward in before.items():
            vars(sublayer)["forward"] = forward
            if forward is None:
                del vars(sublayer)["forward"]


def _no_attention(hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
    """Return what self_attn returns, with zeros for the hidden states."""
    return torch.zeros_like(hidden_states), None
