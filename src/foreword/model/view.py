"""Provides views for self-speculation: the same model with skipped sublayers, or with
weights in fewer bits.

A view is for drafting: its scores are not the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model.cpu.backend import CpuBackend
from foreword.model.cpu.decoders import DecoderBackend
from foreword.model.cpu.images import ImageKernel
from foreword.model.cpu.recurrent import RecurrentBackend
from foreword.model.cpu.rows import rows_of
from foreword.model.model import Model
from foreword.model.pool.backend import PoolBackend
from foreword.model.pool.hooks import layer_count
from foreword.model.pool.kv_pool import KVPool
from foreword.model.pool.plan import Read
from foreword.model.pool.seq2seq import Seq2SeqPoolBackend, Sources
from foreword.model.skip import LayerSkip, skipping, sublayers_of
from foreword.native import forward
from foreword.types import Encoded

CODINGS = {16: forward.WHOLE, 8: forward.BYTES, 4: forward.GROUPS}
"""Bits of a weight -> its coding on the C side."""


@runtime_checkable
class Skipping(Protocol):
    """The backend of a view, whose skipped sublayers can be changed."""

    def skip(self, skip: LayerSkip) -> None:
        """Skip these sublayers from now on."""
        ...


def view(
    target: Model, *, skip: LayerSkip | None = None, bits: int = 16, spare: int = 0
) -> Model:
    """Return the same model with skipped sublayers and its weights in 8 or 4 bits, or
    with 16 as the target has them.

    With `spare` > 0 the view shares the target's keys and values: it need not read
    again what the target has read, and the target's next forward overwrites what the
    view wrote. Every sequence opened from then on gets `spare` more rows for it. With 0
    the view has a pool of its own.

    Raises InvalidRequest where the target's backend has no such view.
    """
    backend, skip = target.backend, skip or LayerSkip()
    layers = layer_count(target.hf.config)
    if any(not 0 <= layer < layers for layer in skip.attention | skip.mlp):
        raise InvalidRequest(
            f"cannot skip other layers than 0 to {layers - 1} of {target.name}. Give "
            "numbers in that range"
        )
    if isinstance(backend, RecurrentBackend):
        raise InvalidRequest(
            f"cannot draft with layers of {target.name}: they keep a recurrent state, "
            "which draft tokens cannot share. Use another method"
        )
    reader = _reader(target, skip, bits, shares=spare > 0)
    pool = backend.pool
    assert pool is not None, "backends without pages have no views"
    if not spare:
        reader.pool.limit = pool.limit
    pool.spare = max(pool.spare, spare)
    twin = copy(target)
    label = (
        f"{target.capability.backend}, {bits} bits, without {sorted(skip.attention)} "
        f"and {sorted(skip.mlp)}"
    )
    twin.backend = reader
    twin.capability = replace(target.capability, backend=label)
    twin._cost = None  # a view has its own cost
    return twin


def _reader(
    target: Model, skip: LayerSkip, bits: int, *, shares: bool
) -> NativeView | PooledView:
    """Return the backend of a view. Raises InvalidRequest where there can be none."""
    backend = target.backend
    if isinstance(backend, CpuBackend):
        _check_sizes(target.name, backend, bits)
        if isinstance(backend, DecoderBackend):
            return NativeSeq2SeqView(backend, skip, bits, shares=shares)
        return NativeView(backend, skip, bits, shares=shares)
    if bits != 16:
        raise InvalidRequest(
            f"cannot read {target.name} with weights of {bits} bits: only backend "
            f"'native' can, and it runs on '{target.capability.backend}'. Use bfloat16 "
            "on a CPU with a C compiler, or another method"
        )
    if isinstance(backend, Seq2SeqPoolBackend):
        return PooledSeq2SeqView(backend, skip, shares=shares)
    if isinstance(backend, PoolBackend):
        return PooledView(backend, skip, shares=shares)
    raise InvalidRequest(
        f"cannot skip sublayers of {target.name}: only backends 'native' and 'pool' "
        f"can, and it runs on '{target.capability.backend}' "
        f"({target.capability.reason}). Use another method"
    )


class NativeView(CpuBackend):
    """A native backend over the packed weights of another, or over quantized copies of
    them; also batch-invariant.
    """

    def __init__(
        self, base: CpuBackend, skip: LayerSkip, bits: int, *, shares: bool
    ) -> None:
        pool = base.pool if shares else rows_of(base._hf, base.pool.coding)
        ImageKernel.__init__(self, pool, base._turns)
        self._warm = base._warm
        self._images = base._images if shares else {}
        self._base = base
        self.guest = shares
        self._hf = base._hf
        count = base._model.layers
        self._layers = (forward.Layer * count)(*base._model.layer[:count])
        described = forward.Model.from_buffer_copy(base._model)
        described.layer = self._layers
        self.pool.attach(self._layers)
        if bits != 16:
            self._code(described, CODINGS[bits], base._held)
        self.describe(described, base._words, base.weight_bytes)
        self.skip(skip)

    def skip(self, skip: LayerSkip) -> None:
        """Skip these sublayers from now on."""
        if not self.guest:
            self.pool.prefixes.clear()
        for number, layer in enumerate(self._layers):
            attention = forward.ATTENTION * (number in skip.attention)
            layer.skipped = attention + forward.MLP * (number in skip.mlp)

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
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


class NativeSeq2SeqView(NativeView, DecoderBackend):
    """A native view of a decoder, which always attends to the source; it may share the
    sources of its base.
    """

    def __init__(
        self, base: DecoderBackend, skip: LayerSkip, bits: int, *, shares: bool
    ) -> None:
        self.encoder = base.encoder
        self._parts = base._parts
        self._biases = []
        self._sources = base._sources if shares else {}
        super().__init__(base, skip, bits, shares=shares)

    def encode(self, id: int, source: Sequence[int] | Encoded) -> None:
        if not self.guest:
            super().encode(id, source)


class PooledView(PoolBackend):
    """A pool backend whose skipped sublayers return zero during its own forwards."""

    def __init__(self, base: PoolBackend, skip: LayerSkip, *, shares: bool) -> None:
        self._layers = sublayers_of(base._model)
        self.guest = shares
        self.mode = base.mode
        self.windows = base.windows
        self._model = base._model
        self._device = base._device
        self._rope = base._rope
        self._tiled = base._tiled
        self._images = base._images if shares else {}
        self.pool = base.pool if shares else KVPool(adjacent=base.pool.adjacent)
        self._skip = skip

    def skip(self, skip: LayerSkip) -> None:
        """Skip these sublayers from now on."""
        if not self.guest:
            self.pool.prefixes.clear()
        self._skip = skip

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        return 0 if self.guest else super().open(id, capacity, tokens, tenant, layers)

    def close(self, id: int) -> None:
        if not self.guest:
            super().close(id)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        with skipping(self._layers, self._skip):
            return super().read(reads)


class PooledSeq2SeqView(PooledView, Seq2SeqPoolBackend):
    """A pooled view of a decoder, which always attends to the source; it may share the
    sources of its base.
    """

    def __init__(
        self, base: Seq2SeqPoolBackend, skip: LayerSkip, *, shares: bool
    ) -> None:
        super().__init__(base, skip, shares=shares)
        self.encoder = base.encoder
        self._own = base._own
        self._positions = base._positions
        self._sources = base._sources if shares else Sources()

    def encode(self, id: int, source: Sequence[int] | Encoded) -> None:
        if not self.guest:
            super().encode(id, source)


def _check_sizes(name: str, backend: CpuBackend, bits: int) -> None:
    if bits not in CODINGS:
        raise InvalidRequest(
            f"'bits' must be one of {', '.join(map(str, CODINGS))}, got {bits}"
        )
    if bits == 16:
        return
    m = backend._model
    inner = m.experts.contents.inner if m.experts else m.intermediate
    depths = (m.hidden, inner, m.heads * m.dim)
    if m.coding != forward.WHOLE:
        raise InvalidRequest(
            f"cannot draft with {name} in {bits} bits: its own weights are "
            "quantized. Use another method"
        )
    if bits == 4 and any(depth % forward.GROUP for depth in depths):
        raise InvalidRequest(
            f"cannot read {name} with weights of 4 bits: its sizes {depths} are not "
            f"multiples of {forward.GROUP}. Use another method"
        )
