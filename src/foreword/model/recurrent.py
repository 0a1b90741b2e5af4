"""Drives models some of whose layers remember in a state, as native.py does the others (native/recurrent.c).

Knows what is held of every sequence, and when a text must be read anew; knows nothing about what is remembered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as List
from ctypes import byref
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model import native
from foreword.model.kernel import MARGIN
from foreword.model.listen import layers_of
from foreword.model.names import remembers
from foreword.model.native import NativeDriver
from foreword.model.panels import LANES
from foreword.model.plan import Read, Span
from foreword.native import llama
from foreword.native.llama import Recurrence, State
from foreword.native.tree import Ask, Grown

MOST_DIM, MOST_TAPS = 256, 8
SLOTS = 16
"""Slots that a sequence has at first."""
MOST_BACK = 64
"""Tokens at most that are left out of a state for texts that are taken back."""
MOST_GUESSES = 256
"""A longer chain of which every row is asked for is no chain of guesses."""
PIECE = 512
"""Tokens at a time of a text that is read again."""


def refused(model: PreTrainedModel) -> str | None:
    """Why this model cannot be driven in C, whether it has such layers or not; None if it can."""
    return native.refused(model) or next(filter(None, map(_unfit, _states(model))), None)


def drive(model: PreTrainedModel, *, owned: bool = False) -> NativeDriver:
    """The driver in C of any model that is not refused."""
    return RecurrentDriver(model, owned=owned) if _states(model) else NativeDriver(model, owned=owned)


def _states(model: Any) -> list[Any]:
    """The layers that remember in a state."""
    return [layer for layer in layers_of(model) if remembers(layer)]


def _sizes(layer: Any) -> Recurrence:
    if hasattr(layer, "conv"):
        channels = layer.conv.conv.in_channels
        return Recurrence(taps=layer.conv.conv_kernel_size, channels=channels, spread=3 * channels)
    mixer = layer.linear_attn
    channels = 2 * mixer.key_dim + mixer.value_dim
    return Recurrence(
        mixer.num_k_heads, mixer.num_v_heads, mixer.head_k_dim, mixer.head_v_dim, mixer.conv_kernel_size, channels,
        channels + mixer.value_dim + 2 * mixer.num_v_heads,
    )  # fmt: skip


def _unfit(layer: Any) -> str | None:
    """Why the C side does not compute layers like this one; None if it does."""
    sizes = _sizes(layer)
    dims = (sizes.key_dim, sizes.dim)
    if (
        any(dim % LANES or dim > MOST_DIM for dim in dims)
        or (sizes.heads and sizes.heads % sizes.key_heads)
        or sizes.channels % LANES
        or sizes.spread % LANES
        or not 2 <= sizes.taps <= MOST_TAPS
    ):
        return "its layers that remember in a state have unusual sizes"
    if (sizes.heads and layer.linear_attn.activation != "silu") or (not sizes.heads and layer.conv.bias):
        return "its layers that remember in a state have another activation, or biases"
    return None


class Memory:
    """What all such layers hold of one sequence."""

    def __init__(self, sizes: Recurrence, layers: int) -> None:
        self._sizes, self._layers = sizes, layers
        self._held = torch.zeros(layers, sizes.heads, sizes.key_dim, sizes.dim)
        self._tail = torch.zeros(layers, sizes.taps - 1, sizes.channels, dtype=torch.bfloat16)
        self.state = State(held=self._held.data_ptr(), tail=self._tail.data_ptr())
        self.tokens: list[int] = []
        """What was read, guesses too, by where it lies."""
        self._widen(SLOTS, 0)

    def forget(self, past: int) -> list[int]:
        """Begin anew, because the text after `past` is taken back and has been taken in; returns what was before it.

        From here on so many of the last tokens are left out that this need not happen again.
        """
        self._held.zero_()
        self._tail.zero_()
        back = 2 * (self.state.folded - past)
        self.state.back = min(max(self.state.back, back, 8), MOST_BACK)
        self.state.folded = 0
        return self.tokens[:past]

    def expect(self, read: Read, beyond: int) -> int:
        """Have room for a read and for `beyond` guesses after it. Returns how many guesses that are, those held too."""
        sure = sure_rows(read)
        end, state = read.start + len(read.tokens), self.state
        # As `folded_after` has it in recurrent.c: what is not taken in then needs a slot.
        folded = max(state.folded, read.past + sure - state.back) if sure else state.folded
        if (needed := end + beyond - folded) > state.slots:
            self._widen(max(needed, 2 * state.slots), min(read.start, state.folded + state.slots))
        self.tokens[read.start :] = read.tokens
        return read.held + len(read.tokens) - sure + beyond

    def _widen(self, slots: int, end: int) -> None:
        """Have so many slots; those of the tokens before `end` keep what they hold."""
        sizes, state = self._sizes, self.state
        size = sizes.key_dim + sizes.dim + LANES
        taken = torch.zeros(self._layers, slots, sizes.heads, size)
        inputs = torch.zeros(self._layers, slots, sizes.channels, dtype=torch.bfloat16)
        for position in range(state.folded, end):
            old, new = position % state.slots, position % slots
            taken[:, new], inputs[:, new] = self._taken[:, old], self._inputs[:, old]
        self._taken, self._inputs, state.slots = taken, inputs, slots
        state.taken, state.inputs = taken.data_ptr(), inputs.data_ptr()


class RecurrentDriver(NativeDriver):
    """A model whose states hold the text alone: guesses go on from copies, so a rejected one leaves no trace.

    A text that is taken back has been taken in already, and is read again from its beginning.
    """

    copies = False

    def __init__(self, model: PreTrainedModel, *, owned: bool = False) -> None:
        states = _states(model)
        self._sizes, self._count = _sizes(states[0]), len(states)
        self._memories: dict[int, Memory] = {}
        self._copies = torch.empty(0)  # of states, where guesses branch
        super().__init__(model, owned=owned)

    def open(self, id: int, capacity: int) -> None:
        super().open(id, capacity)
        self._memories[id] = Memory(self._sizes, self._count)

    def close(self, id: int) -> None:
        super().close(id)
        self._memories.pop(id, None)

    def move(self, id: int, source: list[int], start: int) -> None:
        super().move(id, source, start)
        memory = self._memories[id]
        for place, held in enumerate(source, start):
            if held != place:
                memory.tokens[place] = memory.tokens[held]
                self._library.foreword_shift(byref(self._model), byref(memory.state), held, place)

    def grow(self, read: Read, ask: Ask) -> Grown:
        grown = super().grow(read, ask)
        self._memories[read.id].tokens += grown.read
        return grown

    def _prepare(self, reads: List[Read], logits: Tensor, *, rows: int = 0, beyond: int = MARGIN) -> llama.Forward:
        more = beyond if rows else 0  # a tree that grows on the C side
        nodes = 0
        for read in reads:
            memory = self._memories[read.id]
            if read.past < memory.state.folded:
                self._read_again(read.id, memory.forget(read.past))
            nodes = max(nodes, memory.expect(read, more))
        forward = super()._prepare(reads, logits, rows=rows, beyond=beyond)
        forward.room = (nodes + 1) * self._sizes.key_dim * self._sizes.dim
        if self._copies.numel() < self._threads * forward.room:
            self._copies = torch.empty(self._threads * forward.room)
        forward.states = self._copies.data_ptr()
        return forward

    def _read_again(self, id: int, tokens: list[int]) -> None:
        for start in range(0, len(tokens), PIECE):
            self.read([Read(id, start, tokens[start : start + PIECE], keep=0)])

    def _describe_span(self, described: llama.Span, span: Span) -> None:
        super()._describe_span(described, span)
        described.sure, described.state = sure_rows(span.read), ctypes.pointer(self._memories[span.read.id].state)

    def _describe(self, model: PreTrainedModel) -> llama.Model:
        described = super()._describe(model)
        described.recurrence = ctypes.pointer(self._sizes)
        states = [layer for layer in described.layer[: described.layers] if layer.taps]
        for number, layer in enumerate(states):
            layer.number = number
        return described


def sure_rows(read: Read) -> int:
    """How many of the first rows of a read are text, not guesses."""
    if read.parents is not None:
        return read.held + len(read.tokens) - len(read.parents)
    guesses = max(read.keep - 1, 0)
    return len(read.tokens) - (guesses if guesses <= MOST_GUESSES else 0)
