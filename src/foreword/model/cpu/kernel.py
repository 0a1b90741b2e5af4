"""One C forward (csrc/forward.c) over packed rows of many sequences: KV pages,
workspace, threads, packed weights.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.backend import Mode
from foreword.model.cpu import grouped
from foreword.model.cpu.layout import matrices_of, products, room, vectors
from foreword.model.cpu.offload import Stream
from foreword.model.cpu.rows import Rows
from foreword.model.pool.packing import Paged
from foreword.model.pool.plan import Read, Span
from foreword.native import forward
from foreword.native.huge_pages import Pages
from foreword.native.openmp import threads
from foreword.native.tree import GrownTree, NativeTreeGrower, TreeRequest
from foreword.native.workspace import Workspace

Rotary = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(a tensor of the output dtype, positions [1, position]) -> cos and sin of their
angles [1, position, dim].
"""
MOST_DEEP = 256
"""Most draft tokens of a sequence in one forward."""
SHARE = 4 * 2**20
"""Bytes of bfloat16 weights per thread; with fewer, another thread costs more than it
saves.
"""
MARGIN = 64
"""Positions of headroom beyond a read, so that a chain does not grow the tables each
step.
"""


def lay_words(
    described: forward.Model,
    embedding: Any,
    backend: Any,
) -> None:
    """Point to the embeddings: in the module or, if those were dropped, in the packed
    LM head of the backend.
    """
    if embedding.weight.numel():
        described.embedding = embedding.weight.data_ptr()
    else:
        described.table = backend._model.table
        described.table_rows = backend._model.table_rows


class Kernel(Paged[Rows]):
    """A C forward over packed rows of many sequences.

    A row's bits do not depend on the other rows.
    """

    mode = Mode.TREE

    def __init__(self, rows: Rows, turns: Sequence[Rotary | None]) -> None:
        """`rows`: the KV pages; `turns`: the rotary embedding of each layer.

        Call `describe` before reading.
        """
        super().__init__(rows)
        self._library, self._turns = forward.needed(), turns
        self._pages = Pages()
        # The C structs point to the first always, to the others during one forward.
        self._held: list[Tensor] = []
        self._alive: list[object] = []
        self._angles: dict[Rotary, tuple[Tensor, ...]] = {}
        self._warm: Callable[[Tensor], Tensor] | None = None
        """Positions -> factors of the queries there."""
        self._reached = self._spare = 0
        self._stream: Stream | None = None
        """Thread that reads layers from a file; None = all are in memory."""

    def describe(
        self,
        model: forward.Model,
        words: int,
        weight_bytes: int = 0,
    ) -> None:
        """Use this model from now on; `words` = number of valid token ids.

        `weight_bytes`: those held, if 0.
        """
        self._model, self._words = model, words
        model.kv_coding = self.pool.coding
        self.weight_bytes = weight_bytes or sum(held.nbytes for held in self._held)
        """Bytes of weights that are held."""
        self._scratch = Workspace(model)
        self._tree_grower = NativeTreeGrower(self._library, model)

    def move(self, id: int, source: list[int], start: int) -> None:
        for held, place in self._moves(id, source, start):
            self._library.foreword_move(
                byref(self._model), self.pool.addresses.buffer_info()[0], held, place
            )

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        kept = sum(read.keep for read in reads)
        logits = torch.empty(kept, self._model.vocab, dtype=torch.float32)
        forward = self._prepare(reads, logits)
        self._library.foreword_forward(
            byref(self._model), byref(forward), self._threads
        )
        self._note(reads)
        return logits

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree:
        """Read the end of a sequence, then grow a draft tree after it, in one call.

        Raises ModelError unless exactly one row is kept and noise covers every level
        and token.
        """
        if read.keep != 1 or (
            ask.noise is not None and ask.noise.shape < (ask.deep, self._words)
        ):
            raise ModelError(
                "cannot grow a tree: it needs one kept row, and noise for every level "
                "and token"
            )
        room = self.pool[read.id].capacity - read.start - len(read.tokens)
        reads = max(0, min(ask.reads, room))
        forward = self._prepare(
            [read], self._tree_grower.room(ask.width), rows=ask.width, beyond=reads
        )
        grown = self._tree_grower.grow(forward, ask, reads, self._threads)
        end = read.start + len(read.tokens)
        drafted = Read(read.id, end, grown.read, grown.read_parents)
        self._note([read, drafted])
        return grown

    @property
    def _threads(self) -> int:
        """Return torch's number of threads, but at most one per `SHARE` bytes of
        weights.
        """
        return max(1, min(threads(), self.weight_bytes // SHARE))

    def _prepare(
        self,
        reads: Sequence[Read],
        logits: Tensor,
        *,
        rows: int = 0,
        beyond: int = MARGIN,
    ) -> forward.Forward:
        """Return a forward for the C code; the arrays it points to live until the next
        call.

        The C code may continue by itself, at most `rows` rows at a time, for `beyond`
        more positions.
        """
        self._alive.clear()
        tokens: list[int] = []
        positions: list[int] = []
        kept: list[int] = []
        longest = 0
        spans = (forward.Span * len(reads))()
        for described, span in zip(
            spans, self._spans(reads, beyond if rows else 0), strict=True
        ):
            read = span.read
            self._describe_span(described, span)
            tokens += read.tokens
            positions += [read.past + depth for depth in read.depths]
            kept += range(span.stop - read.keep, span.stop)
            longest = max(longest, span.length)
            if span.source is not None:
                longest = max(longest, span.source.length)
        if not 0 <= min(tokens) <= max(tokens) < self._words:
            raise ModelError(
                f"cannot read tokens: ids must be in [0, {self._words}), got "
                f"{min(tokens)} to {max(tokens)}"
            )
        count, longest = len(tokens), longest + beyond
        self._reach(longest)
        # a quarter of the time of a ctypes array
        numbers = array("q", tokens + positions + kept)
        self._alive.append(numbers)
        (first, _), size = numbers.buffer_info(), numbers.itemsize
        places = (first, first + count * size, first + 2 * count * size)
        scratch = self._scratch.fit(max(count, rows), self._threads, longest)
        return forward.Forward(
            count,
            len(spans),
            len(kept),
            *places,
            spans,
            logits.data_ptr(),
            *scratch,
            routing=self._scratch.routing,
            unpacked=self._scratch.unpacked,
            page=self.pool.addresses.buffer_info()[0],
        )

    def _describe_span(self, described: forward.Span, span: Span) -> None:
        read, fresh = span.read, span.stop - span.start
        described.start = span.start
        described.stop = span.stop
        (described.pages, _) = span.table.pages.buffer_info()
        described.past = read.past
        described.held = read.held
        described.first_chain = fresh + read.held
        if not read.parents:
            return
        if len(read.parents) > MOST_DEEP:
            raise ModelError(
                f"cannot read a tree of {len(read.parents)} draft tokens: at most "
                f"{MOST_DEEP} fit"
            )
        described.first_chain -= len(read.parents)
        parents = array("i", read.parents)
        self._alive.append(parents)
        described.parents, _ = parents.buffer_info()

    def _reach(self, length: int, spare: int = 0) -> None:
        """Compute the angles of every position up to `length`, if not done yet; have as
        many as `spare` after them.
        """
        if length > self._reached:
            self._reached = max(1024, 2 * length)
        elif spare <= self._spare:
            return
        self._spare = max(spare, self._spare)
        like = torch.zeros(1, dtype=torch.float32)
        positions = torch.arange(self._reached + self._spare)[None]
        self._angles = {}
        with torch.inference_mode():
            for rotary in filter(None, dict.fromkeys(self._turns)):
                tables = [
                    table.float().flatten(0, -2) for table in rotary(like, positions)
                ]
                self._angles[rotary] = tuple(table.contiguous() for table in tables)
        if self._warm is not None:
            self._query_scale = self._warm(positions[0]).float().contiguous()
            self._model.query_scale = self._query_scale.data_ptr()
        for layer, rotary in zip(
            self._model.layer[: self._model.layers], self._turns, strict=True
        ):
            if rotary is not None:
                layer.cos, layer.sin = (
                    table.data_ptr() for table in self._angles[rotary]
                )
                self._model.rotary_dim = self._angles[rotary][0].shape[1]

    def _note(self, reads: Sequence[Read]) -> None:
        if self._stream is not None:
            self._stream.check()
        super()._note(reads)

    def _describe_layer(
        self,
        described: forward.Layer,
        layer: Any,
    ) -> None:
        for name, weight in products(layer).items():
            setattr(described, name, self._pack(weight))
        for name, vector in vectors(layer).items():
            setattr(described, name, self._keep(vector))

    def _pack(self, weight: Tensor) -> int:
        weight = weight.detach().contiguous()
        packed = self._pages.empty((room(len(weight)), weight.shape[1]), weight.dtype)
        if not weight.is_meta:  # else it comes from a file
            self._library.foreword_pack(
                weight.data_ptr(), packed.data_ptr(), *weight.shape
            )
        return self._keep(packed)

    def quantize(
        self,
        *others: forward.Model,
        coding: int = forward.BYTES,
    ) -> None:
        """Quantize every matrix, also of `others`, to 8 bits, or to 4 bits in groups.

        This halves memory and read time, or does better. Logits change, and the
        bfloat16 weights cannot be recovered.
        """
        models, whole = (self._model, *others), self._held
        if self._model.coding != forward.WHOLE:
            return
        self._drop_matrices(*models)
        for model in models:
            self._code(model, coding, whole)

    def _drop_matrices(self, *models: forward.Model) -> None:
        """Hold the matrices of these models no longer."""
        layers = [layer for model in models for layer in model.layer[: model.layers]]
        packed = {model.head for model in models}
        for layer in layers:
            packed |= {getattr(layer, name) for name in matrices_of(layer)}
        routers = {layer.router for layer in layers if layer.router}
        apart = {
            held.data_ptr(): held for held in self._held if held.data_ptr() in routers
        }
        gone = packed | routers
        self._held = [held for held in self._held if held.data_ptr() not in gone]
        self._pages = Pages()
        # routers move to new pages, or they would keep the pages of the others
        moved = {address: self._hold(router) for address, router in apart.items()}
        for layer in layers:
            layer.router = moved.get(layer.router, layer.router)

    def _code(
        self,
        described: forward.Model,
        coding: int,
        whole: Sequence[Tensor],
    ) -> None:
        """Quantize every matrix in `whole` that the model points to, and point it to
        the codes.
        """
        packed = {matrix.data_ptr(): matrix for matrix in whole}
        for layer in described.layer[: described.layers]:
            for name in matrices_of(layer):
                setattr(layer, name, self._coded(packed[getattr(layer, name)], coding))
        if described.head:
            described.head = self._coded(packed[described.head], coding)
        described.coding = coding

    def _coded(self, packed: Tensor, coding: int) -> int:
        if coding == forward.GROUPS and packed.shape[1] % forward.GROUP:
            return self._hold(grouped.whole(packed))
        size = self._library.foreword_coded_bytes(*packed.shape, coding)
        codes = self._pages.empty((size,), torch.uint8).zero_()
        self._library.foreword_quantize(
            packed.data_ptr(), codes.data_ptr(), *packed.shape, coding
        )
        return self._keep(codes)

    def _hold(self, tensor: Tensor) -> int:
        """Copy a tensor to pages of its own."""
        return self._keep(self._pages.empty(tensor.shape, tensor.dtype).copy_(tensor))

    def _keep(self, tensor: Tensor) -> int:
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()
