"""The recurrent layers of the C forward (csrc/layers/recurrent.c): states of open
sequences, and rereading.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from copy import copy
from ctypes import byref
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from foreword.model.architectures import is_recurrent
from foreword.model.executors.native.cross import parts_of
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.executors.native.layout import LANES
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.executors.native.states import SequenceState
from foreword.model.kv.pages import PagePool
from foreword.model.kv.prefixes import PAGE, Prefix
from foreword.model.kv.reads import Read, Span
from foreword.native import forward
from foreword.native.forward import Recurrence

MOST_DIM, MOST_TAPS = 256, 8
PIECE = 512
"""Tokens per forward when a sequence is reread."""


def refused(model: PreTrainedModel) -> str | None:
    """Return why the C code does not compute the recurrent layers of a model; None if
    it does, or there are none.
    """
    return next(filter(None, map(_unfit, recurrent_layers(model))), None)


def recurrent_layers(model: PreTrainedModel) -> list[Any]:
    """Return the recurrent layers of a model."""
    layers = parts_of(model)
    return [layer for layer in layers if is_recurrent(layer)]


def sizes_of(layer: Any) -> Recurrence:
    """Return the sizes of a recurrent layer."""
    if hasattr(layer, "conv"):
        channels = layer.conv.conv.in_channels
        return Recurrence(
            taps=layer.conv.conv_kernel_size, channels=channels, spread=3 * channels
        )
    mixer = layer.linear_attn
    channels = 2 * mixer.key_dim + mixer.value_dim
    return Recurrence(
        mixer.num_k_heads,
        mixer.num_v_heads,
        mixer.head_k_dim,
        mixer.head_v_dim,
        mixer.conv_kernel_size,
        channels,
        channels + mixer.value_dim + 2 * mixer.num_v_heads,
    )


def _unfit(layer: Any) -> str | None:
    """Return why the C code does not compute layers like this one; None if it does."""
    sizes = sizes_of(layer)
    dims = (sizes.key_dim, sizes.dim)
    if (
        any(dim % LANES or dim > MOST_DIM for dim in dims)
        or (sizes.heads and sizes.heads % sizes.key_heads)
        or sizes.channels % LANES
        or sizes.spread % LANES
        or not 2 <= sizes.taps <= MOST_TAPS
    ):
        return "its recurrent layers have unusual sizes"
    if (sizes.heads and layer.linear_attn.activation != "silu") or (
        not sizes.heads and layer.conv.bias
    ):
        return "its recurrent layers have another activation, or biases"
    return None


class StateMemory(NativeMemory):
    """The recurrent states of open sequences; they hold committed tokens only: draft
    tokens use copies, so rejection needs no undo.

    A sequence truncated to before its state is reread from its beginning.

    States are saved with the page that they follow: at the last page border of the
    prompt, at the last one of the text so far, and where a text diverges from a known
    one. A forward stops at such a border and the next one reads the rest, with the same
    sums.
    """

    def __init__(self, sizes: Recurrence, count: int) -> None:
        """`sizes`: of each of the `count` recurrent layers."""
        self.sizes = sizes
        self.states: dict[int, SequenceState] = {}
        """By sequence."""
        self._count = count
        # of states, for draft tokens
        self._copies = torch.empty(0, dtype=torch.float32)

    def empty(self) -> StateMemory:
        fresh = copy(self)
        fresh.states = {}
        return fresh

    def describe_model(self, model: forward.Model) -> None:
        model.recurrence = ctypes.pointer(self.sizes)
        states = [layer for layer in model.layer[: model.layers] if layer.taps]
        for number, layer in enumerate(states):
            layer.number = number

    def opening(
        self, pool: PagePool, id: int, text: Sequence[int], tenant: str
    ) -> None:
        state = self.states[id] = SequenceState(self.sizes, self._count)
        if text:
            state.branch = pool.prefixes.known(text, tenant)
            state.prompt = (len(text) - 1) // PAGE * PAGE

    def opened(self, pool: PagePool, id: int, held: Sequence[int]) -> None:
        if held and (kept := pool[id].path[-1].state) is not None:
            self.states[id].resume(held, kept)

    def close(self, pool: PagePool | None, id: int) -> None:
        self.states.pop(id, None)

    def moved(
        self, executor: NativeExecutor, id: int, source: list[int], start: int
    ) -> None:
        state = self.states[id]
        for position, held in enumerate(source, start):
            if held != position:
                state.tokens[position] = state.tokens[held]
                executor.library.foreword_shift(
                    byref(executor.model), byref(state.state), held, position
                )

    def after(self, read: Read, first: Callable[[Sequence[Read]], object]) -> Read:
        """Have `first` read up to where another text went on otherwise, if that is
        within a read; return the rest.
        """
        if not (count := self.states[read.id].before_branch(read)):
            return read
        first([Read(read.id, read.past, read.tokens[:count], keep=0)])
        return replace(read, past=read.past + count, tokens=read.tokens[count:])

    def prepare(
        self, executor: NativeExecutor, reads: Sequence[Read], more: int
    ) -> None:
        nodes = 0
        for read in reads:
            state = self.states[read.id]
            if read.past < state.state.folded:
                _read_again(executor, read.id, state.forget(read.past))
            nodes = max(nodes, state.expect(read, more))
        self._nodes = nodes

    def describe(
        self,
        executor: NativeExecutor,
        call: forward.Forward,
        reads: Sequence[Read],
        beyond: int,
    ) -> None:
        call.room = (self._nodes + 1) * self.sizes.key_dim * self.sizes.dim
        size = executor.threads * call.room
        if self._copies.numel() < size:
            self._copies = torch.empty(size, dtype=torch.float32)
        call.states = self._copies.data_ptr()

    def describe_span(self, described: forward.Span, span: Span) -> None:
        described.committed = len(span.read.tokens) - span.read.drafted
        described.state = ctypes.pointer(self.states[span.read.id].state)

    def noted(self, pool: PagePool, reads: Sequence[Read]) -> None:
        for read in reads:
            state = self.states[read.id]
            # C has read draft tokens of its own after those it was given
            state.tokens[read.start :] = read.tokens
            self._keep(pool, state, pool[read.id].path)

    def _keep(
        self, pool: PagePool, state: SequenceState, path: Sequence[Prefix]
    ) -> None:
        """Keep a state with the page it comes after, if it is to be kept there; one
        after the prompt replaces it.
        """
        at = state.state.folded
        number, over = divmod(at, PAGE)
        if over or not 0 < number < len(path):
            return
        if at != state.branch and at < state.prompt:
            return
        most = sys.maxsize
        if pool.limit is not None:
            most = pool.limit * pool.row_bytes // state.bytes
        if path[number].state is not None or not most:
            return
        prefixes = pool.prefixes
        prefixes.keep_state(path[number], state.copied(), most)
        if at > state.prompt:
            if state.latest is not None:
                prefixes.drop_state(state.latest)
            state.latest = path[number]


def _read_again(executor: NativeExecutor, id: int, tokens: list[int]) -> None:
    for start in range(0, len(tokens), PIECE):
        executor.read([Read(id, start, tokens[start : start + PIECE], keep=0)])
