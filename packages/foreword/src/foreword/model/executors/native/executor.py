"""One C forward (csrc/forward.c) over packed rows of many sequences: KV pages,
workspace, threads, packed weights.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from ctypes import byref
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.backend import Mode
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.matrices import Matrices
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.executors.native.rows import Rows
from foreword.model.kv.packing import Paged
from foreword.model.kv.reads import Read, Span
from foreword.native import forward
from foreword.native.openmp import threads
from foreword.native.tree import NativeTreeGrower
from foreword.native.workspace import Workspace, multiplied
from foreword.types.growth import GrownTree, TreeRequest

PAIR = 64
"""Outputs of the LM head that are multiplied together."""
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


def lay_words(described: forward.Model, embedding: Any, backend: object) -> None:
    """Point a model to the embeddings: in the module or, if those were dropped, where
    the backend looks them up.
    """
    if embedding.weight.numel():
        described.embedding = embedding.weight.data_ptr()
    else:
        assert isinstance(backend, NativeExecutor), "other backends drop no embeddings"
        described.table = backend.model.table
        described.table_rows = backend.model.table_rows
        described.table_kind = backend.model.table_kind


class NativeExecutor(Paged[Rows]):
    """A C forward over packed rows; a row's bits do not depend on the others."""

    mode = Mode.TREE

    def __init__(
        self,
        rows: Rows,
        angles: Angles,
        matrices: Matrices | None = None,
        memories: Sequence[NativeMemory] = (),
    ) -> None:
        """`rows`: the KV pages; `matrices`: the packed weights, none yet if None.

        Call `describe` before reading.
        """
        super().__init__(rows, memories)
        self.library = forward.needed()
        self.angles = angles
        self.matrices = Matrices() if matrices is None else matrices
        self.checks: list[Callable[[], None]] = []
        """Called after a forward, before its rows are used; one raises if it failed."""
        self._outputs = 0  # of the packed head, once it is limited
        self._head_index: tuple[Tensor, ...] = ()  # which then stays alive
        # what the C structs point to during one forward
        self._alive: list[object] = []

    def describe(
        self,
        model: forward.Model,
        words: int,
        weight_bytes: int = 0,
    ) -> None:
        """Use this model from now on; `words` = number of valid token ids.

        `weight_bytes`: those held, if 0.
        """
        self.model = model
        self.words = words
        model.kv_coding = self.pool.coding
        for memory in self.memories:
            memory.describe_model(model)
        self.weight_bytes = weight_bytes or self.matrices.bytes
        """Bytes of weights that are held."""
        self.scratch = Workspace(model)
        self._tree_grower = NativeTreeGrower(self.library, model)

    def twin(
        self,
        pool: Rows | None = None,
        coding: int = forward.WHOLE,
    ) -> NativeExecutor:
        """Return another executor over the same weights, whose sublayers can be skipped
        apart from this one's; over quantized copies, unless `coding` is WHOLE.

        Its pages are in `pool`; where None, it shares this executor's pages and
        memories, and is a guest there.
        """
        memories = self.memories
        if pool is not None:
            memories = tuple(memory.empty() for memory in memories)
        twin = NativeExecutor(
            self.pool if pool is None else pool, self.angles.again(), None, memories
        )
        twin.guest = pool is None
        count = self.model.layers
        layers = (forward.Layer * count)(*self.model.layer[:count])
        described = forward.Model.from_buffer_copy(self.model)
        described.layer = layers
        twin.pool.attach(layers)
        if coding != forward.WHOLE:
            twin.matrices.code(described, coding, self.matrices.held)
        twin.describe(described, self.words, self.weight_bytes)
        return twin

    def skip(self, attention: Collection[int], mlp: Collection[int]) -> None:
        """Skip the sublayers of these layers from now on."""
        for number, layer in enumerate(self.model.layer[: self.model.layers]):
            skipped = forward.ATTENTION * (number in attention)
            layer.skipped = skipped + forward.MLP * (number in mlp)

    def limit_head(self, first: int, others: Collection[int]) -> Int[Tensor, "kept"]:
        """Compute from now on the logits of the first ids and of some others, with
        their neighbours in the packed head; return all these ids, rising.
        """
        count = self._outputs = max(self._outputs, self.model.vocab)
        pairs = {*range(-(-first // PAIR)), *(token // PAIR for token in others)}
        index = torch.tensor(sorted(pairs))
        ids = (PAIR * index[:, None] + torch.arange(PAIR)).flatten()
        ids = ids[ids < count]
        self._head_index = index.int(), ids.int()
        self.model.pairs, self.model.ids = (i.data_ptr() for i in self._head_index)
        self.model.vocab = len(ids)
        self._tree_grower = NativeTreeGrower(self.library, self.model)
        return ids

    def move(self, id: int, source: list[int], start: int) -> None:
        for held, row in self.pool.moves(id, source, start):
            self.library.foreword_move(
                byref(self.model), self.pool.addresses.buffer_info()[0], held, row
            )
        for memory in self.memories:
            memory.moved(self, id, source, start)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        return self._read(self._after(reads, self._read))

    def _read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        rows = sum(read.keep for read in reads)
        logits = torch.empty(rows, self.model.vocab, dtype=torch.float32)
        if self.pool.early and self._resume(reads, logits):
            return logits
        self._run(self._prepare(reads, logits))
        self._note(reads)
        return logits

    def _resume(
        self, reads: Sequence[Read], logits: Float[Tensor, "kept vocab"]
    ) -> bool:
        """Read on after the layers that a view has run, if it has; return whether."""
        early = self._early(reads)
        if early is None:
            return False
        states = early.complete(reads, self.move)
        call = self._prepare(reads, logits)
        start = states.data_ptr()
        step = states.stride(0) * states.itemsize
        addresses = range(start, start + call.rows * step, step)
        call.given = self.alive(array("q", addresses))
        call.first_layer = early.layers
        self._run(call)
        self._note(reads)
        return True

    def read_hidden(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        before: dict[int, Tensor] = {}

        def keep(part: Sequence[Read]) -> None:
            before[part[0].id] = self._read_hidden(part, layers)[1]

        rest = self._after(reads, keep)
        logits, states = self._read_hidden(rest, layers)
        if before:
            parts = states.split([len(read.tokens) for read in rest])
            joined: list[Tensor] = []
            for read, part in zip(rest, parts, strict=True):
                joined += [before.pop(read.id, part[:0]), part]
            states = torch.cat(joined)
        return logits, states

    def _read_hidden(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        rows = sum(read.keep for read in reads)
        logits = torch.empty(rows, self.model.vocab, dtype=torch.float32)
        call = self._prepare(reads, logits)
        states = self._capture(call, layers, call.rows)
        self._run(call)
        self._note(reads)
        return logits, states

    def _capture(
        self, call: forward.Forward, layers: Sequence[int], rows: int
    ) -> Float[Tensor, "rows features"]:
        """Return where a forward will write the hidden states of so many rows."""
        size = len(layers) * self.model.hidden
        states = torch.empty(rows, size, dtype=torch.float32)
        call.hidden_layer_count = len(layers)
        call.hidden_layers = self.alive(array("q", layers))
        call.hidden_states = states.data_ptr()
        return states

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree:
        """Read the end of a sequence, then grow a draft tree after it, in one call.

        Raises ModelError unless exactly one row is kept.
        """
        if read.keep != 1:
            raise ModelError("cannot grow a tree: it needs one kept row")
        return self.grow_hidden(read, ask)[0]

    def grow_hidden(
        self, read: Read, ask: TreeRequest, layer: int | None = None
    ) -> tuple[GrownTree, Float[Tensor, "rows hidden"] | None]:
        """Run `grow`; return also the hidden states of every token read, the draft
        tokens after the others, if a layer is given.
        """
        (read,) = self._after([read], self._read)
        room = self.pool[read.id].capacity - read.start - len(read.tokens)
        reads = max(0, min(ask.reads, room))
        call = self._prepare(
            [read], self._tree_grower.room(ask.width), rows=ask.width, beyond=reads
        )
        states = None
        if layer is not None:
            states = self._capture(call, (layer,), call.rows + reads)
        grown = self._tree_grower.grow(call, ask, reads, self.threads)
        end = read.start + len(read.tokens)
        drafted = Read(read.id, end, grown.read, grown.read_parents)
        self._note([read, drafted])
        return grown, states

    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        lm_head = forward.Model.from_buffer_copy(self.model)
        lm_head.layers = 0
        lm_head.norm = None
        lm_head.logit_cap = 0
        lm_head.logit_scale = 0
        return multiplied(self.library, lm_head, self.scratch, hidden, self.threads)

    @property
    def threads(self) -> int:
        """Return torch's number of threads, but at most one per `SHARE` bytes of
        weights.
        """
        return max(1, min(threads(), self.weight_bytes // SHARE))

    def quantize(
        self,
        *others: forward.Model,
        coding: int = forward.BYTES,
    ) -> None:
        """Quantize every matrix, also of `others`, to 8 bits, or to 4 bits in groups.

        This halves memory and read time, or does better. Logits change, and the
        bfloat16 weights cannot be recovered.
        """
        if self.model.coding == forward.WHOLE:
            self.matrices.quantize((self.model, *others), coding)

    def _note(self, reads: Sequence[Read]) -> None:
        for check in self.checks:
            check()
        super()._note(reads)

    def _run(self, call: forward.Forward) -> None:
        self.library.foreword_forward(byref(self.model), byref(call), self.threads)

    def _after(
        self, reads: Sequence[Read], first: Callable[[Sequence[Read]], object]
    ) -> Sequence[Read]:
        """Have `first` read the tokens that need a forward of their own; return the
        rest.
        """
        for memory in self.memories:
            reads = [memory.after(read, first) for read in reads]
        return reads

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
        for memory in self.memories:
            memory.prepare(self, reads, beyond if rows else 0)
        self._alive.clear()
        tokens: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        longest = 0
        spans = (forward.Span * len(reads))()
        for described, span in zip(
            spans, self._spans(reads, beyond if rows else 0), strict=True
        ):
            read = span.read
            self._describe_span(described, span)
            tokens += read.tokens
            positions += [read.past + depth for depth in read.depths]
            logit_rows += range(span.stop - read.keep, span.stop)
            longest = max(longest, span.length)
            if span.source is not None:
                longest = max(longest, span.source.length)
        self._check_ids(tokens)
        count, longest = len(tokens), longest + beyond
        self.angles.reach(self.model, longest)
        # a quarter of the time of a ctypes array
        numbers = array("q", tokens + positions + logit_rows)
        first, size = self.alive(numbers), numbers.itemsize
        places = (first, first + count * size, first + 2 * count * size)
        scratch = self.scratch.fit(max(count, rows), self.threads, longest)
        call = forward.Forward(
            count,
            len(spans),
            len(logit_rows),
            *places,
            spans,
            logits.data_ptr(),
            *scratch,
            routing=self.scratch.routing,
            unpacked=self.scratch.unpacked,
            page=self.pool.addresses.buffer_info()[0],
        )
        for memory in self.memories:
            memory.describe(self, call, reads, beyond)
        return call

    def _check_ids(self, tokens: list[int]) -> None:
        if not 0 <= min(tokens) <= max(tokens) < self.words:
            raise ModelError(
                f"cannot read tokens: ids must be in [0, {self.words}), got "
                f"{min(tokens)} to {max(tokens)}"
            )

    def alive(self, numbers: array[int]) -> int:
        """Hold an array until the next forward; return its address."""
        self._alive.append(numbers)
        return numbers.buffer_info()[0]

    def _describe_span(self, described: forward.Span, span: Span) -> None:
        read, fresh = span.read, span.stop - span.start
        described.start = span.start
        described.stop = span.stop
        (described.pages, _) = span.table.pages.buffer_info()
        described.past = read.past
        described.held = read.held
        described.first_chain = fresh + read.held
        if read.parents:
            if len(read.parents) > MOST_DEEP:
                raise ModelError(
                    f"cannot read a tree of {len(read.parents)} draft tokens: at most "
                    f"{MOST_DEEP} fit"
                )
            described.first_chain -= len(read.parents)
            described.parents = self.alive(array("i", read.parents))
        for memory in self.memories:
            memory.describe_span(described, span)
