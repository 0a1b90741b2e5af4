"""One C forward (native/llama.c) over packed rows of many sequences: their room, its working memory, its threads.

Knows the C side; knows nothing about where the weights come from, or what they say.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from collections.abc import Sequence as List
from ctypes import byref
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.cache import Extents, grown
from foreword.model.driver import Mode
from foreword.model.names import linears, plain, shape
from foreword.model.packing import Rooms
from foreword.model.panels import LANES, MATRICES, PANEL, products, room, vectors
from foreword.model.plan import Read, Span
from foreword.native import llama
from foreword.native.openmp import threads
from foreword.native.pages import Pages
from foreword.native.scratch import Scratch
from foreword.native.tree import Ask, Gardener, Grown

Turn = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(a tensor of the dtype wanted, positions [1, position]) -> cos and sin of their angles [1, position, dim]."""
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles depend on the position alone; so do those of any that name a fixed `alpha`."""
ACTIVATIONS = {"silu": llama.SILU, "gelu_pytorch_tanh": llama.GELU}
"""What gates may do."""
PLAIN_ACTIVATIONS = {
    **ACTIVATIONS, "gelu_new": llama.GELU, "gelu_fast": llama.GELU, "gelu": llama.GELU_ERF, "relu": llama.RELU,
    "relu2": llama.RELU_SQUARED,
}  # fmt: skip
"""What MLPs without gates may do."""
MOST_DIM, MOST_DEEP = 256, 256
SHARE = 4 * 2**20
"""Bytes of weights, in bfloat16, that make one more thread worth its coming."""
MARGIN = 64
"""Positions beyond a read that a chain may still reach without making room again."""


def unfit(config: Any, layer: Any, head: Any) -> str | None:
    """Why layers like this one, and this matrix after them, are not what the C side computes; None if they are."""
    parts = linears(layer)
    dim, bare = shape(parts["out"][0])[1] // config.num_attention_heads, plain(layer)
    sizes = (head.in_features, inside(layer), dim)
    gates = () if bare else parts.get("gate_up", ())
    if (
        any(size % LANES for size in sizes)
        or dim > MOST_DIM
        or activation(config, plain=bare) is None
        or any(linear.bias is not None for linear in gates)
    ):
        return "its sizes, its activation or its biases are not the usual ones"
    if any(rope.get("rope_type", "default") not in ROPES and not rope.get("alpha") for rope in ropes(config)):
        return "its rotary embedding depends on the length of the text"
    return llama.reason()


def inside(layer: Any) -> int:
    """Numbers within its MLP; 0 where it has experts."""
    return shape(linears(layer)["down"][0])[1] if "down" in linears(layer) else 0


def activation(config: Any, *, plain: bool = False) -> int | None:
    """What the MLPs of its layers do, as the C side calls it; None where that cannot be computed there."""
    names = ("hidden_activation", "hidden_act", "activation_function")
    said = next(filter(None, (getattr(config, name, None) for name in names)), "silu")
    return (PLAIN_ACTIVATIONS if plain else ACTIVATIONS).get(said)


def ropes(config: Any) -> List[dict[str, Any]]:
    """What is said of places: of those of all layers, or of each kind of layer. Nothing where places turn nothing."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [value for value in parameters.values() if isinstance(value, dict)]
    return kinds or [parameters]


def _places(table: Float[Tensor, "*grid position dim"]) -> Float[Tensor, "rows dim"]:
    """The angles of text: some models have them for every direction of a grid, which in text are the same."""
    return table.float().flatten(0, -2)


def lay_words(described: llama.Model, embedding: Any, driver: Any) -> None:
    """Say where embeddings lie: in the module, or where a target's were dropped, in the head that its driver holds."""
    if embedding.weight.numel():
        described.embedding = embedding.weight.data_ptr()
    else:
        described.table, described.tabled = driver._model.table, driver._model.tabled


class Rows(Extents):
    """Keys and values of all layers in the layout of llama.c: keys in blocks of 16 rows, values in blocks of 32."""

    def __init__(self, heads: List[int], dim: int) -> None:
        """`heads` of each layer; 0 = it has no keys and values."""
        super().__init__()
        kind = torch.bfloat16
        self._keys = [torch.zeros(self.rows // LANES, count, dim * LANES, dtype=kind) for count in heads]
        self._values = [torch.zeros(self.rows // PANEL, count, dim * PANEL, dtype=kind) for count in heads]
        self._attached: list[ctypes.Array[llama.Layer]] = []

    def attach(self, layers: ctypes.Array[llama.Layer]) -> None:
        """Tell the C side where the rows are, now and after every growth."""
        self._attached.append(layers)
        self._point(layers)

    def _point(self, layers: ctypes.Array[llama.Layer]) -> None:
        for layer, keys, values in zip(layers, self._keys, self._values, strict=True):
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()

    def resize(self, rows: int) -> None:
        self._keys = [grown(keys, rows // LANES) for keys in self._keys]
        self._values = [grown(values, rows // PANEL) for values in self._values]
        for layers in self._attached:
            self._point(layers)


class Kernel(Rooms[Rows]):
    """Reads packed rows of many sequences in one C call. A row's bits do not depend on the rows beside it."""

    mode = Mode.TREE

    def __init__(self, rows: Rows, turns: List[Turn | None]) -> None:
        """`rows` hold keys and values, `turns` say how each layer turns its heads; `describe` must be told the rest."""
        super().__init__(rows)
        self._library, self._turns = llama.needed(), turns
        self._pages = Pages()
        self._held: list[Tensor] = []  # what the C side points to, always
        self._alive: list[object] = []  # and what it points to during one forward
        self._angles: dict[Turn, tuple[Tensor, ...]] = {}
        self._warm: Callable[[Tensor], Tensor] | None = None
        """Places -> what queries there are multiplied by."""
        self._reached = 0

    def describe(self, model: llama.Model, words: int, weight_bytes: int = 0) -> None:
        """Read with this model from now on; `words` = tokens that texts are made of. What is held is its weights."""
        self._model, self._words = model, words
        self._weight_bytes = weight_bytes or sum(held.nbytes for held in self._held)
        self._scratch, self._gardener = Scratch(model), Gardener(self._library, model)

    def move(self, id: int, source: list[int], start: int) -> None:
        for held, place in self._moves(id, source, start):
            self._library.foreword_move(byref(self._model), held, place)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        logits = torch.empty(sum(read.keep for read in reads), self._model.vocab)
        forward = self._prepare(reads, logits)
        self._library.foreword_forward(byref(self._model), byref(forward), self._threads)
        return logits

    def grow(self, read: Read, ask: Ask) -> Grown:
        """Read the end of a text, then grow a tree of guesses after it, in one call."""
        if read.keep != 1 or (ask.noise is not None and ask.noise.shape < (ask.deep, self._words)):
            raise ModelError("a tree grows after one kept row, and needs noise for every level and token")
        room = self._pool[read.id].capacity - read.start - len(read.tokens)
        reads = max(0, min(ask.reads, room))
        forward = self._prepare([read], self._gardener.room(ask.width), rows=ask.width, beyond=reads)
        return self._gardener.grow(forward, ask, reads, self._threads)

    @property
    def _threads(self) -> int:
        """As many as torch uses, but none that would have less than a few megabytes of weights to read."""
        return max(1, min(threads(), self._weight_bytes // SHARE))

    def _prepare(self, reads: List[Read], logits: Tensor, *, rows: int = 0, beyond: int = MARGIN) -> llama.Forward:
        """Describe a forward to the C side; what it points to lives until the next one is described.

        The C side may go on by itself, with at most `rows` rows at a time, to `beyond` more positions.
        """
        self._alive.clear()
        tokens: list[int] = []
        positions: list[int] = []
        kept: list[int] = []
        longest = 0
        spans = (llama.Span * len(reads))()
        for described, span in zip(spans, self._spans(reads), strict=True):
            read = span.read
            self._describe_span(described, span)
            tokens += read.tokens
            positions += [read.past + depth for depth in read.depths]
            kept += range(span.stop - read.keep, span.stop)
            longest = max(longest, span.length)
        if not 0 <= min(tokens) <= max(tokens) < self._words:
            raise ModelError(f"token ids must be in [0, {self._words}), got {min(tokens)} to {max(tokens)}")
        count, longest = len(tokens), longest + beyond
        self._reach(longest)
        numbers = array("q", tokens + positions + kept)  # a quarter of what an array of ctypes takes
        self._alive.append(numbers)
        (first, _), size = numbers.buffer_info(), numbers.itemsize
        places = (first, first + count * size, first + 2 * count * size)
        scratch = self._scratch.fit(max(count, rows), self._threads, longest)
        return llama.Forward(
            count, len(spans), len(kept), *places, spans, logits.data_ptr(), *scratch, asked=self._scratch.asked
        )

    def _describe_span(self, described: llama.Span, span: Span) -> None:
        read, fresh = span.read, span.stop - span.start
        described.start, described.stop, described.extent = span.start, span.stop, span.extent.start
        described.past, described.held, described.trunk = read.past, read.held, fresh + read.held
        if not read.parents:
            return
        if len(read.parents) > MOST_DEEP:
            raise ModelError(f"a tree may hold {MOST_DEEP} guesses, got {len(read.parents)}")
        described.trunk -= len(read.parents)
        parents = array("i", read.parents)
        self._alive.append(parents)
        described.parents, _ = parents.buffer_info()

    def _reach(self, length: int) -> None:
        """Have the angles of every position up to `length`."""
        if length <= self._reached:
            return
        self._reached = max(1024, 2 * length)
        like, places = torch.zeros(1, dtype=torch.float32), torch.arange(self._reached)[None]
        with torch.inference_mode():
            self._angles = {
                turn: tuple(_places(table)[: self._reached].contiguous() for table in turn(like, places))
                for turn in dict.fromkeys(self._turns)
                if turn is not None
            }
        if self._warm is not None:
            self._warmth = self._warm(places[0]).float().contiguous()
            self._model.warmth = self._warmth.data_ptr()
        for layer, turn in zip(self._model.layer[: self._model.layers], self._turns, strict=True):
            if turn is not None:
                layer.cos, layer.sin = (table.data_ptr() for table in self._angles[turn])
                self._model.turned = self._angles[turn][0].shape[1]

    def _describe_layer(self, described: llama.Layer, layer: Any) -> None:
        for name, weight in products(layer).items():
            setattr(described, name, self._pack(weight))
        for name, vector in vectors(layer).items():
            setattr(described, name, self._keep(vector))

    def _pack(self, weight: Tensor) -> int:
        weight = weight.detach().contiguous()
        packed = self._pages.empty((room(len(weight)), weight.shape[1]), weight.dtype)
        self._library.foreword_pack(weight.data_ptr(), packed.data_ptr(), *weight.shape)
        return self._keep(packed)

    def lighten(self, *others: llama.Model) -> None:
        """Hold every matrix in 8 bits from now on, those of others too: half of the memory, and of the time to read it.

        For guesses. Scores are others then, and what is held cannot be made whole again.
        """
        models, whole = (self._model, *others), self._held
        if self._model.coding != llama.WHOLE:
            return
        layers = [layer for model in models for layer in model.layer[: model.layers]]
        packed = {getattr(layer, name) for layer in layers for name in MATRICES} | {model.head for model in models}
        self._held, self._pages = [held for held in whole if held.data_ptr() not in packed], Pages()
        for model in models:
            self._code(model, llama.BYTES, whole)

    def _code(self, described: llama.Model, coding: int, whole: List[Tensor]) -> None:
        """Have every matrix coded that lies among `whole`; what is described points to the codes then."""
        packed = {matrix.data_ptr(): matrix for matrix in whole}
        for layer in described.layer[: described.layers]:
            for name in MATRICES:
                setattr(layer, name, self._coded(packed[getattr(layer, name)], coding))
        if described.head:
            described.head = self._coded(packed[described.head], coding)
        described.coding = coding

    def _coded(self, packed: Tensor, coding: int) -> int:
        codes = self._pages.empty((self._library.foreword_coded_bytes(*packed.shape, coding),), torch.uint8).zero_()
        self._library.foreword_quantize(packed.data_ptr(), codes.data_ptr(), *packed.shape, coding)
        return self._keep(codes)

    def _keep(self, tensor: Tensor) -> int:
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()
