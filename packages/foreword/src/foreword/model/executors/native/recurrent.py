"""The recurrent layers of the C forward (csrc/layers/recurrent.c): states of open
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
from torch import Tensor

from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.executors.native.layout import LANES
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.kv.pages import PagePool
from foreword.model.kv.prefixes import PAGE, Prefix
from foreword.model.kv.reads import Read, Span
from foreword.native import forward
from foreword.native.forward import Recurrence, State

SLOTS = 16
"""Tokens. Initial slots of a sequence."""
MOST_BACK = 64
"""Tokens. Most that the state leaves out, to be truncated without rereading."""
NEVER = 2**62
"""A row that no text reaches."""


class SequenceState:
    """The state of one sequence in all recurrent layers."""

    def __init__(self, sizes: Recurrence, layers: int) -> None:
        self._sizes, self._layers = sizes, layers
        self._held = torch.zeros(
            layers, sizes.heads, sizes.key_dim, sizes.dim, dtype=torch.float32
        )
        self._tail = torch.zeros(
            layers, sizes.taps - 1, sizes.channels, dtype=torch.bfloat16
        )
        self.state = State(held=self._held.data_ptr(), tail=self._tail.data_ptr())
        self.tokens: list[int] = []
        """Tokens read, draft tokens too, by position."""
        self.back = 0
        """Last tokens that the state leaves out; `state.back` is that of one
        forward.
        """
        self.branch, self.prompt = 0, NEVER
        """Rows, at borders of pages, at which the state is to be kept: where another
        text went on otherwise, and the last border of the prompt. After it, every
        border that is reached is one."""
        self.latest: Prefix | None = None
        """The last page after the prompt whose state this sequence has kept."""
        self._widen(SLOTS, 0)

    @property
    def bytes(self) -> int:
        """Return the size of the state after a token."""
        return self._held.nbytes + self._tail.nbytes

    def copied(self) -> tuple[Tensor, ...]:
        """Return a copy of the state after the first `state.folded` tokens."""
        return self._held.clone(), self._tail.clone()

    def resume(self, tokens: Sequence[int], state: tuple[Tensor, ...]) -> None:
        """Begin after these tokens, with a copy of the state there."""
        for buffer, part in zip((self._held, self._tail), state, strict=True):
            buffer.copy_(part)
        # placeholders of images have numbers below 0, which the C code cannot read
        self.tokens = [max(0, token) for token in tokens]
        self.state.folded = len(tokens)

    def before_branch(self, read: Read) -> int:
        """Return how many tokens of a read to read first, so that the state stops at
        the branch; 0 = all at once.
        """
        count = self.branch + self.back - read.past
        fits = (
            self.state.folded < self.branch
            and 0 < count < len(read.tokens) - read.drafted
        )
        return (
            count
            if fits and not read.held and read.keep <= len(read.tokens) - count
            else 0
        )

    def _stop(self, most: int) -> int:
        """Return the row at which the state is to stop, in a forward after which it
        could have `most`.
        """
        border = most // PAGE * PAGE
        if self.state.folded < self.prompt <= most:
            return self.prompt
        return border if border > max(self.prompt, self.state.folded) else most

    def forget(self, past: int) -> list[int]:
        """Reset the state, which includes tokens after `past` that were removed; return
        the tokens before it.

        From now on the state leaves out more of the last tokens, so that this does not
        recur.
        """
        self._held.zero_()
        self._tail.zero_()
        back = 2 * (self.state.folded - past)
        self.back = min(max(self.back, back, 8), MOST_BACK)
        self.state.folded = 0
        return self.tokens[:past]

    def expect(self, read: Read, beyond: int) -> int:
        """Make room for a read and `beyond` drafts; return how many, with held ones."""
        committed = len(read.tokens) - read.drafted
        end, state = read.start + len(read.tokens), self.state
        state.back = (
            read.past + committed - self._stop(read.past + committed - self.back)
        )
        # As `folded_after` in recurrent.c: each token after `folded` needs a slot.
        folded = (
            max(state.folded, read.past + committed - state.back)
            if committed
            else state.folded
        )
        if (needed := end + beyond - folded) > state.slots:
            self._widen(
                max(needed, 2 * state.slots),
                min(read.start, state.folded + state.slots),
            )
        self.tokens[read.start :] = read.tokens
        return read.held + len(read.tokens) - committed + beyond

    def _widen(self, slots: int, end: int) -> None:
        """Reallocate `slots` slots and copy the slots of the tokens before `end`."""
        sizes, state = self._sizes, self.state
        size = sizes.key_dim + sizes.dim + LANES
        taken = torch.zeros(self._layers, slots, sizes.heads, size, dtype=torch.float32)
        inputs = torch.zeros(self._layers, slots, sizes.channels, dtype=torch.bfloat16)
        for position in range(state.folded, end):
            old, new = position % state.slots, position % slots
            taken[:, new], inputs[:, new] = self._taken[:, old], self._inputs[:, old]
        self._taken = taken
        self._inputs = inputs
        state.slots = slots
        state.taken, state.inputs = taken.data_ptr(), inputs.data_ptr()


MOST_DIM, MOST_TAPS = 256, 8
PIECE = 512
"""Tokens per forward when a sequence is reread."""


def refused(layers: Sequence[Any]) -> str | None:
    """Return why the C code does not compute these recurrent layers; None if it
    does.
    """
    return next(filter(None, map(_unfit, layers)), None)


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

    sequences: dict[int, SequenceState]

    def __init__(self, sizes: Recurrence, count: int) -> None:
        """`sizes`: of each of the `count` recurrent layers."""
        super().__init__()
        self.sizes = sizes
        self._count = count
        # of states, for draft tokens
        self._copies = torch.empty(0, dtype=torch.float32)

    def describe_model(self, model: forward.Model) -> None:
        model.recurrence = ctypes.pointer(self.sizes)
        states = [layer for layer in model.layer[: model.layers] if layer.taps]
        for number, layer in enumerate(states):
            layer.number = number

    def opening(
        self, pool: PagePool, id: int, text: Sequence[int], tenant: str
    ) -> None:
        state = self.sequences[id] = SequenceState(self.sizes, self._count)
        if text:
            state.branch = pool.prefixes.known(text, tenant)
            state.prompt = (len(text) - 1) // PAGE * PAGE

    def opened(self, pool: PagePool, id: int, held: Sequence[int]) -> None:
        if held and (state := pool[id].path[-1].state) is not None:
            self.sequences[id].resume(held, state)

    def moved(
        self, executor: NativeExecutor, id: int, source: list[int], start: int
    ) -> None:
        state = self.sequences[id]
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
        if not (count := self.sequences[read.id].before_branch(read)):
            return read
        first([Read(read.id, read.past, read.tokens[:count], keep=0)])
        return replace(read, past=read.past + count, tokens=read.tokens[count:])

    def prepare(
        self, executor: NativeExecutor, reads: Sequence[Read], more: int
    ) -> None:
        nodes = 0
        for read in reads:
            state = self.sequences[read.id]
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
        described.state = ctypes.pointer(self.sequences[span.read.id].state)

    def noted(self, pool: PagePool, reads: Sequence[Read]) -> None:
        for read in reads:
            state = self.sequences[read.id]
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
