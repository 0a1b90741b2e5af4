"""Drives Llama-like models on a CPU with AVX512-bf16: one C call a forward (native/llama.c), from the same weights.

Knows the layout of those models; knows nothing about drafting. The probe compares its scores with the model's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as List
from ctypes import byref, c_int64
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.cache import Extents, grown
from foreword.model.driver import Mode
from foreword.model.linear import drop_weights
from foreword.model.panels import LANES, products, vectors
from foreword.model.plan import Read
from foreword.model.unpack import restore
from foreword.native import llama, tree
from foreword.native.openmp import threads
from foreword.native.tree import Ask, Grown

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles depend on the position alone."""
MOST_DIM, MOST_DEEP, QUERIES = 256, 256, 4
SHARE = 4 * 2**20
"""Bytes of weights that make one more thread worth its coming."""
MARGIN = 64
"""Positions beyond a read that a chain may still reach without making room again."""


def refused(model: PreTrainedModel) -> str | None:
    """Why this model cannot be driven this way; None if it can."""
    config, kind = model.config, type(model).__name__
    if kind not in SUPPORTED:
        return f"{kind} is not one of {', '.join(SUPPORTED)}"
    if model.device.type != "cpu" or model.dtype != torch.bfloat16:
        return "it is made for bfloat16 on CPU"
    layer = model.model.layers[0]
    dim = layer.self_attn.head_dim
    sizes = (config.hidden_size, config.intermediate_size, config.vocab_size, dim)
    biases = (layer.self_attn.o_proj.bias, layer.mlp.gate_proj.bias, layer.mlp.down_proj.bias, model.lm_head.bias)
    if (
        any(size % LANES for size in sizes)
        or dim > MOST_DIM
        or config.hidden_act != "silu"
        or any(bias is not None for bias in biases)
    ):
        return "its sizes, its activation or its biases are not the usual ones"
    if (config.rope_parameters or {}).get("rope_type", "default") not in ROPES:
        return "its rotary embedding depends on the length of the text"
    made = llama.library()
    return made if isinstance(made, str) else None


class NativeDriver:
    """Reads packed rows of many sequences in one C call. A row's bits do not depend on the rows beside it."""

    mode = Mode.TREE

    def __init__(self, model: PreTrainedModel, *, owned: bool = False) -> None:
        """A model that is `owned` loses each weight once it is packed, so that none is held twice; see `restore`."""
        made = llama.library()
        if isinstance(made, str):
            raise ModelError(made)
        self._library = made
        self._hf, self._owned = model, owned
        self._pool = _Rows(model)
        self._held: list[Tensor] = []  # what the C side points to, always
        self._alive: list[object] = []  # and what it points to during one forward
        self._model = self._describe(model)
        self._angles: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        self._weight_bytes = sum(held.nbytes for held in self._held)
        self._scratch = _Scratch(self._model)

    def restore(self, model: PreTrainedModel | None = None) -> None:
        """Give the model its weights back, for another way to drive it; or give them to another one of its kind."""
        restore(self._hf if model is None else model, self._model, self._held)

    def open(self, id: int, capacity: int) -> None:
        self._pool.open(id, capacity)

    def close(self, id: int) -> None:
        self._pool.close(id)

    def move(self, id: int, source: list[int], start: int) -> None:
        base = self._pool[id].start
        for i, held in enumerate(source):
            if held != start + i:
                self._library.foreword_move(byref(self._model), base + held, base + start + i)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        logits = torch.empty(sum(read.keep for read in reads), self._model.vocab)
        forward = self._prepare(reads, logits)
        self._library.foreword_forward(byref(self._model), byref(forward), self._threads)
        return logits

    def hear(
        self, reads: List[Read], layers: List[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        logits = torch.empty(sum(read.keep for read in reads), self._model.vocab)
        forward = self._prepare(reads, logits)
        heard = torch.empty(forward.rows, len(layers) * self._model.hidden)
        heed = (c_int64 * len(layers))(*layers)
        forward.heeded, forward.heed, forward.heard = len(layers), ctypes.addressof(heed), heard.data_ptr()
        self._library.foreword_forward(byref(self._model), byref(forward), self._threads)
        return logits, heard

    def speak(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        rows, mouth = len(hidden), llama.Model.from_buffer_copy(self._model)
        mouth.layers, mouth.norm = 0, None
        given = hidden.float().contiguous()
        logits = torch.empty(rows, self._model.vocab)
        keep = (c_int64 * rows)(*range(rows))
        _, *scratch = self._scratch.fit(rows, self._threads, 1)
        forward = llama.Forward(
            rows, 0, rows, None, None, ctypes.addressof(keep), None, logits.data_ptr(), given.data_ptr(), *scratch
        )
        self._library.foreword_forward(byref(mouth), byref(forward), self._threads)
        return logits

    def grow(self, read: Read, ask: Ask) -> Grown:
        """Read the end of a text, then grow a tree of guesses after it, in one call."""
        if read.keep != 1 or (ask.noise is not None and ask.noise.shape < (ask.deep, self._model.vocab)):
            raise ModelError("a tree grows after one kept row, and needs noise for every level and token")
        room = self._pool[read.id].capacity - read.start - len(read.tokens)
        ask = replace(ask, reads=max(0, min(ask.reads, room)))
        logits = torch.empty(ask.width + 1, self._model.vocab)
        forward = self._prepare([read], logits, rows=ask.width, beyond=ask.reads)
        return tree.grow(self._library, self._model, forward, ask, logits[-1], self._threads)

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
        spans = (llama.Span * len(reads))()
        for span, read in zip(spans, reads, strict=True):
            self._describe_span(span, read, len(tokens))
            tokens += read.tokens
            positions += [read.past + depth for depth in read.depths]
            kept += range(len(tokens) - read.keep, len(tokens))
        if not 0 <= min(tokens) <= max(tokens) < self._model.vocab:
            raise ModelError(f"token ids must be in [0, {self._model.vocab}), got {min(tokens)} to {max(tokens)}")
        longest = max(read.start + len(read.tokens) for read in reads) + beyond
        self._reach(longest)
        arrays = [(c_int64 * len(numbers))(*numbers) for numbers in (tokens, positions, kept)]
        scratch = self._scratch.fit(max(len(tokens), rows), self._threads, longest)
        self._alive += arrays
        pointers = (ctypes.addressof(array) for array in arrays)
        return llama.Forward(len(tokens), len(spans), len(kept), *pointers, spans, logits.data_ptr(), *scratch)

    def _describe_span(self, span: llama.Span, read: Read, start: int) -> None:
        extent = self._pool[read.id]
        if len(read.parents or ()) > MOST_DEEP:
            raise ModelError(f"a tree may hold {MOST_DEEP} guesses, got {len(read.parents or ())}")
        if read.start + len(read.tokens) > extent.capacity:
            raise ModelError(f"sequence {read.id} outgrew its room of {extent.capacity} tokens")
        span.start, span.stop = start, start + len(read.tokens)
        span.extent, span.past = extent.start, read.past
        span.held = read.held
        span.trunk = len(read.tokens) + read.held - (len(read.parents) if read.parents else 0)
        if read.parents is not None:
            parents = (ctypes.c_int32 * len(read.parents))(*read.parents)
            self._alive.append(parents)
            span.parents = ctypes.addressof(parents)

    def _reach(self, length: int) -> None:
        """Have the angles of every position up to `length`."""
        if length > self._angles[0].shape[0]:
            self._angles = self._rotary(max(1024, 2 * length))
            self._model.cos, self._model.sin = (table.data_ptr() for table in self._angles)

    def _describe(self, model: PreTrainedModel) -> llama.Model:
        config, layers = model.config, model.model.layers
        attention = layers[0].self_attn
        array = (llama.Layer * len(layers))()
        for described, layer in zip(array, layers, strict=True):
            self._describe_layer(described, layer)
        self._pool.attach(array)
        vocab, hidden = model.lm_head.weight.shape
        head = self._pack(model.lm_head.weight)
        if self._owned:
            drop_weights(model.lm_head)
        return llama.Model(
            len(layers), hidden, config.num_attention_heads, config.num_key_value_heads, attention.head_dim,
            config.intermediate_size, vocab, config.rms_norm_eps, attention.scaling,
            self._keep(model.model.embed_tokens.weight.detach()), self._keep(model.model.norm.weight.detach().float()),
            head, None, None, array,
        )  # fmt: skip

    def _describe_layer(self, described: llama.Layer, layer: Any) -> None:
        for name, weight in products(layer).items():
            setattr(described, name, self._pack(weight))
        for name, vector in vectors(layer).items():
            setattr(described, name, self._keep(vector))
        if self._owned:
            drop_weights(layer)
        # Where a layer does not say whether its window is open, all layers of the model have the same.
        attention = layer.self_attn
        described.window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)) or 0

    def _pack(self, weight: Tensor) -> int:
        weight = weight.detach().contiguous()
        packed = torch.empty_like(weight)
        self._library.foreword_pack(weight.data_ptr(), packed.data_ptr(), *weight.shape)
        return self._keep(packed)

    def _keep(self, tensor: Tensor) -> int:
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()

    def _rotary(self, length: int) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            cos, sin = self._hf.model.rotary_emb(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None])
        return cos[0].float().contiguous(), sin[0].float().contiguous()


class _Rows(Extents):
    """Keys and values of all layers in the layout of llama.c: keys in blocks of 16 rows, values row by row."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        heads, dim = model.config.num_key_value_heads, model.model.layers[0].self_attn.head_dim
        kind = torch.bfloat16
        self._keys = [torch.zeros(self.rows // LANES, heads, dim * LANES, dtype=kind) for _ in model.model.layers]
        self._values = [torch.zeros(self.rows, heads, dim, dtype=kind) for _ in model.model.layers]
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
        self._values = [grown(values, rows) for values in self._values]
        for layers in self._attached:
            self._point(layers)


class _Scratch:
    """Working memory of a forward, kept from one to the next and grown when needed."""

    def __init__(self, model: llama.Model) -> None:
        self._model = model
        self._rows = self._longest = self._threads = 0
        self._tensors: tuple[Tensor, ...] = ()

    def fit(self, rows: int, threads: int, longest: int) -> tuple[int, int, int, int, int]:
        """Addresses of (residual, wide, scores, narrow) and the length of a row of scores."""
        if rows > self._rows or threads > self._threads or longest + LANES > self._longest:
            self._rows, self._threads = max(rows, self._rows), max(threads, self._threads)
            self._longest = max(2 * longest + LANES, 1024)
            m = self._model
            wide, inner = (m.heads + 2 * m.kv_heads) * m.dim, max(m.hidden, m.heads * m.dim)
            self._tensors = (
                torch.empty(self._rows, m.hidden),
                torch.empty(self._rows, wide),
                torch.empty(QUERIES * self._threads, self._longest),
                torch.empty(self._rows, inner + m.intermediate, dtype=torch.bfloat16),
            )
        residual, wide_rows, scores, narrow = (tensor.data_ptr() for tensor in self._tensors)
        return residual, wide_rows, scores, narrow, self._longest
