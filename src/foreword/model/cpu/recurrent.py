"""The CPU backend of models with recurrent layers (native/csrc/recurrent.c): states of
sequences, and rereading.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model.architectures import is_recurrent
from foreword.model.cpu import decoders, supported
from foreword.model.cpu.backend import CpuBackend
from foreword.model.cpu.kernel import MARGIN
from foreword.model.cpu.layout import LANES
from foreword.model.cpu.states import Memory
from foreword.model.pool.hooks import layers_of
from foreword.model.pool.plan import Read, Span
from foreword.model.pool.prefixes import PAGE, Prefix
from foreword.model.seq2seq import is_seq2seq
from foreword.model.vision.rows import ImageRows
from foreword.native import forward
from foreword.native.forward import Recurrence
from foreword.native.tree import GrownTree, TreeRequest

MOST_DIM, MOST_TAPS = 256, 8
PIECE = 512
"""Tokens per forward when a sequence is reread."""


def refused(model: PreTrainedModel) -> str | None:
    """Return why the C backends cannot run this model, recurrent or not; None if they
    can.
    """
    if is_seq2seq(model.config):
        return decoders.refused(model)
    return supported.refused(model) or next(
        filter(None, map(_unfit, _states(model))), None
    )


def drive(model: PreTrainedModel, *, owned: bool = False) -> CpuBackend:
    """Return the C backend of any model that `refused` accepts."""
    if is_seq2seq(model.config):
        return decoders.DecoderBackend(model, owned=owned)
    return (
        RecurrentBackend(model, owned=owned)
        if _states(model)
        else CpuBackend(model, owned=owned)
    )


def _states(model: Any) -> list[Any]:
    """Return the recurrent layers."""
    return [layer for layer in layers_of(model) if is_recurrent(layer)]


def _sizes(layer: Any) -> Recurrence:
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
    sizes = _sizes(layer)
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


class RecurrentBackend(CpuBackend):
    """A backend whose states hold committed tokens only: draft tokens use copies, so
    rejection needs no undo.

    A sequence truncated to before its state is reread from its beginning.

    States are saved with the page that they follow: at the last page border of the
    prompt, at the last one of the text so far, and where a text diverges from a known
    one. A forward stops at such a border and the next one reads the rest, with the same
    sums.
    """

    copies = False

    def __init__(self, model: PreTrainedModel, *, owned: bool = False) -> None:
        states = _states(model)
        self._sizes, self._count = _sizes(states[0]), len(states)
        self._memories: dict[int, Memory] = {}
        # of states, for draft tokens
        self._copies = torch.empty(0, dtype=torch.float32)
        super().__init__(model, owned=owned)
        self.pool.prefixes.recurrent = True

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        known = self.pool.prefixes.known(tokens, tenant)
        held = super().open(id, capacity, tokens, tenant, layers)
        memory = self._memories[id] = Memory(self._sizes, self._count)
        if tokens:
            memory.branch = known
            memory.prompt = (len(tokens) - 1) // PAGE * PAGE
        if held and (state := self.pool[id].path[-1].state) is not None:
            memory.resume(tokens[:held], state)
        return held

    def see(self, id: int, images: ImageRows) -> None:
        super().see(id, images)
        memory = self._memories[id]
        # placeholders of images have numbers below 0, which the C code cannot read
        memory.tokens = [max(0, token) for token in memory.tokens]

    def close(self, id: int) -> None:
        super().close(id)
        self._memories.pop(id, None)

    def move(self, id: int, source: list[int], start: int) -> None:
        super().move(id, source, start)
        memory = self._memories[id]
        for position, held in enumerate(source, start):
            if held != position:
                memory.tokens[position] = memory.tokens[held]
                self._library.foreword_shift(
                    byref(self._model), byref(memory.state), held, position
                )

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        read_part = super().read
        return read_part([self._after(read, read_part) for read in reads])

    def read_hidden(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        read_part = super().read_hidden
        before: dict[int, Tensor] = {}

        def keep(part: Sequence[Read]) -> None:
            before[part[0].id] = read_part(part, layers)[1]

        rest = [self._after(read, keep) for read in reads]
        logits, states = read_part(rest, layers)
        if before:
            parts = states.split([len(read.tokens) for read in rest])
            joined: list[Tensor] = []
            for read, part in zip(rest, parts, strict=True):
                joined += [before.pop(read.id, part[:0]), part]
            states = torch.cat(joined)
        return logits, states

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree:
        grown = super().grow(self._after(read, super().read), ask)
        self._memories[read.id].tokens += grown.read
        return grown

    def _prepare(
        self,
        reads: Sequence[Read],
        logits: Tensor,
        *,
        rows: int = 0,
        beyond: int = MARGIN,
    ) -> forward.Forward:
        more = beyond if rows else 0  # a tree that grows in C
        nodes = 0
        for read in reads:
            memory = self._memories[read.id]
            if read.past < memory.state.folded:
                self._read_again(read.id, memory.forget(read.past))
            nodes = max(nodes, memory.expect(read, more))
        forward = super()._prepare(reads, logits, rows=rows, beyond=beyond)
        forward.room = (nodes + 1) * self._sizes.key_dim * self._sizes.dim
        if self._copies.numel() < self._threads * forward.room:
            self._copies = torch.empty(
                self._threads * forward.room, dtype=torch.float32
            )
        forward.states = self._copies.data_ptr()
        return forward

    def _after(self, read: Read, first: Callable[[Sequence[Read]], object]) -> Read:
        """Have `first` read up to where another text went on otherwise, if that is
        within a read; return the rest.
        """
        if not (count := self._memories[read.id].before_branch(read)):
            return read
        first([Read(read.id, read.past, read.tokens[:count], keep=0)])
        return replace(read, past=read.past + count, tokens=read.tokens[count:])

    def _note(self, reads: Sequence[Read]) -> None:
        super()._note(reads)
        for read in reads:
            self._keep_state(self._memories[read.id], self.pool[read.id].path)

    def _keep_state(self, memory: Memory, path: Sequence[Prefix]) -> None:
        """Keep the state with the page it comes after, if it is to be kept there; one
        after the prompt replaces it.
        """
        at = memory.state.folded
        number, over = divmod(at, PAGE)
        if over or not 0 < number < len(path):
            return
        if at != memory.branch and at < memory.prompt:
            return
        prefixes = self.pool.prefixes
        most = sys.maxsize
        if self.pool.limit is not None:
            most = self.pool.limit * self.pool.row_bytes // memory.bytes
        if path[number].state is not None or not most:
            return
        prefixes.keep_state(path[number], memory.copied(), most)
        if at > memory.prompt:
            if memory.latest is not None:
                prefixes.drop_state(memory.latest)
            memory.latest = path[number]

    def _read_again(self, id: int, tokens: list[int]) -> None:
        for start in range(0, len(tokens), PIECE):
            self.read([Read(id, start, tokens[start : start + PIECE], keep=0)])

    def _describe_span(self, described: forward.Span, span: Span) -> None:
        super()._describe_span(described, span)
        described.committed = len(span.read.tokens) - span.read.drafted
        described.state = ctypes.pointer(self._memories[span.read.id].state)

    def _describe(self, model: PreTrainedModel) -> forward.Model:
        described = super()._describe(model)
        described.recurrence = ctypes.pointer(self._sizes)
        states = [layer for layer in described.layer[: described.layers] if layer.taps]
        for number, layer in enumerate(states):
            layer.number = number
        return described
