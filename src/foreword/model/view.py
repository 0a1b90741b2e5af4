"""A model read another way: with halves of layers left out, or with its weights in fewer bits. For self-speculation.

Knows drivers and their memory; knows nothing about drafting. A view is for guessing: its scores are not the model's.
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
from foreword.model.cache import KVPool
from foreword.model.kernel import Kernel
from foreword.model.model import Model
from foreword.model.native import NativeDriver, rows_of
from foreword.model.plan import Read
from foreword.model.pooled import PooledDriver
from foreword.model.recurrent import RecurrentDriver
from foreword.native import llama

CODINGS = {16: llama.WHOLE, 8: llama.BYTES, 4: llama.NIBBLES}
"""Bits of a weight -> its name on the C side."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Halves of layers that are left out, by the number of the layer; what they would add is taken for zero."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)


@runtime_checkable
class Skipping(Protocol):
    """What the driver of a view offers beside reading."""

    def skip(self, skip: Skip) -> None:
        """Leave out these halves of layers from now on."""
        ...


def view(target: Model, *, skip: Skip | None = None, bits: int = 16, spare: int = 0) -> Model:
    """The same model, read with halves of layers left out and its weights in 16, 8 or 4 bits.

    With `spare` > 0 it reads and writes the target's own keys and values: what the target has read need not be read
    again, and what the view writes after it is overwritten by the target's next forward. Every sequence that is opened
    from then on gets that many places for it. With 0 it has a memory of its own.

    Raises InvalidRequest where the target is driven in a way that has no such view.
    """
    driver, skip = target.driver, skip or Skip()
    layers = target.hf.config.get_text_config().num_hidden_layers
    if any(not 0 <= layer < layers for layer in skip.attention | skip.mlp):
        raise InvalidRequest(f"{target.name} has layers 0 to {layers - 1}; leave out none but those")
    if isinstance(driver, RecurrentDriver):
        raise InvalidRequest(
            f"layers of {target.name} remember in a state, which cannot be shared with guesses; use another method"
        )
    if isinstance(driver, NativeDriver):
        _check_sizes(target.name, driver, bits)
        made = NativeView(driver, skip, bits, shares=spare > 0)
    elif isinstance(driver, PooledDriver) and bits == 16:
        made = PooledView(driver, skip, shares=spare > 0)
    elif bits != 16:
        raise InvalidRequest(
            f"weights of {bits} bits are read by the native CPU driver alone, and {target.name} is driven the way "
            f"'{target.capability.way}'. Use bfloat16 on a CPU with a C compiler, or another method"
        )
    else:
        raise InvalidRequest(
            f"cannot leave out halves of layers of {target.name}: only backends 'native' and 'pool' can, and it runs "
            f"on '{target.capability.way}' ({target.capability.reason}). Use another method"
        )
    driver._pool.spare = max(driver._pool.spare, spare)
    twin = copy(target)
    way = f"{target.capability.way}, {bits} bits, without {sorted(skip.attention)} and {sorted(skip.mlp)}"
    twin.driver, twin.capability, twin._cost = made, replace(target.capability, way=way), None  # it has its own cost
    return twin


class NativeView(NativeDriver):
    """Reads the packed weights of another driver, or coded copies of them; a row's bits are its own here too."""

    def __init__(self, base: NativeDriver, skip: Skip, bits: int, *, shares: bool) -> None:
        Kernel.__init__(self, base._pool if shares else rows_of(base._hf), base._turns)
        self._warm = base._warm
        self._base, self._shares, self._hf = base, shares, base._hf
        self._layers = (llama.Layer * base._model.layers)(*base._model.layer[: base._model.layers])
        described = llama.Model.from_buffer_copy(base._model)
        described.layer = self._layers
        self._pool.attach(self._layers)
        if bits != 16:
            self._code(described, CODINGS[bits], base._held)
        self.describe(described, base._words, base._weight_bytes)
        self.skip(skip)

    def skip(self, skip: Skip) -> None:
        """Leave out these halves of layers from now on."""
        for number, layer in enumerate(self._layers):
            layer.skipped = llama.ATTENTION * (number in skip.attention) + llama.MLP * (number in skip.mlp)

    def open(self, id: int, capacity: int) -> None:
        if not self._shares:
            super().open(id, capacity)

    def close(self, id: int) -> None:
        if not self._shares:
            super().close(id)

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        return self._base.embed(tokens)  # they are not coded

    @property
    def bytes(self) -> int:
        """Memory that the coded copies take."""
        return sum(held.nbytes for held in self._held)


class PooledView(PooledDriver):
    """Reads a Hugging Face model whose skipped halves say zero while it reads."""

    def __init__(self, base: PooledDriver, skip: Skip, *, shares: bool) -> None:
        self._layers = _decoder_layers(base._model)
        self._shares = shares
        self.mode, self.asked = base.mode, base.asked
        self._model, self._device, self._length = base._model, base._device, base._length
        self._tiled = base._tiled
        self._pool = base._pool if shares else KVPool()
        self._skip = skip

    def skip(self, skip: Skip) -> None:
        """Leave out these halves of layers from now on."""
        self._skip = skip

    def open(self, id: int, capacity: int) -> None:
        if not self._shares:
            super().open(id, capacity)

    def close(self, id: int) -> None:
        if not self._shares:
            super().close(id)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        with _silent(self._layers, self._skip):
            return super().read(reads)


def _check_sizes(name: str, driver: NativeDriver, bits: int) -> None:
    if bits not in CODINGS:
        raise InvalidRequest(f"weights can be read in {', '.join(map(str, CODINGS))} bits, got {bits}")
    m = driver._model
    depths = (m.hidden, m.experts.contents.inner if m.experts else m.intermediate, m.heads * m.dim)
    if m.coding != llama.WHOLE:
        raise InvalidRequest(f"the weights of {name} are held in 8 bits, for guesses alone; load it again for a view")
    if bits == 4 and any(depth % llama.GROUP for depth in depths):
        raise InvalidRequest(f"the sizes of {name}, {depths}, are not multiples of {llama.GROUP}; use another method")


def _decoder_layers(model: nn.Module) -> List[nn.Module]:
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList) or not all(
        hasattr(layer, "self_attn") and hasattr(layer, "mlp") for layer in layers
    ):
        raise InvalidRequest(
            f"cannot leave out halves of layers of {type(model).__name__}: it has no list of layers with self_attn and "
            "mlp. Use another method"
        )
    return list(layers)


@contextmanager
def _silent(layers: List[nn.Module], skip: Skip) -> Iterator[None]:
    """While inside, the skipped halves return zeros, so that a layer hands on what came in."""
    halves = {layers[number].self_attn: _no_attention for number in skip.attention}
    halves |= {layers[number].mlp: torch.zeros_like for number in skip.mlp}
    before = {half: vars(half).get("forward") for half in halves}  # an owner may have put one there
    try:
        for half, nothing in halves.items():
            vars(half)["forward"] = nothing
        yield
    finally:
        for half, forward in before.items():
            vars(half)["forward"] = forward
            if forward is None:
                del vars(half)["forward"]


def _no_attention(hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
    """What self_attn returns, for an attention that saw nothing."""
    return torch.zeros_like(hidden_states), None
