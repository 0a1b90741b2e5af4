"""The layers of a head that fills in blocks, in C (native/llama.c). Plain definition: Stack in masked_blocks.py.

Knows the head's weights as the C side reads them; knows nothing about drafting.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as List
from ctypes import byref, c_int64
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.block import Wanted
from foreword.draft.masked import MaskedHead
from foreword.model import Model, Read
from foreword.model.kernel import Kernel, Rows, activation, lay_words, unfit
from foreword.model.names import drop_weights, head_dim
from foreword.model.panels import LANES
from foreword.native import llama
from foreword.native.scratch import Scratch, multiplied


def refused(head: MaskedHead, target: Model) -> str | None:
    """Why this head cannot be computed this way; None if it can."""
    embedding = target.hf.get_input_embeddings()
    weights = [*head.parameters(), *embedding.parameters()]
    if any(weight.device.type != "cpu" or weight.dtype != torch.bfloat16 for weight in weights):
        return "it is made for bfloat16 on CPU"
    if type(embedding) is not nn.Embedding or head.fc.in_features % LANES:
        return "its target's embeddings or states are not the usual ones"
    return next(filter(None, (unfit(head.layout.sizes, layer, head.fc) for layer in head.layers)), None)


class NativeStack(Kernel):
    """Computes blocks, and holds the keys and values of every text that they follow."""

    TAKES = ("fc", "layers")
    """The parts of a head whose linear layers lose their weights once these are packed."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        layout, sizes = head.layout, head.layout.sizes
        dim, heads = head_dim(sizes), sizes.num_attention_heads
        kv_heads, stack = sizes.num_key_value_heads or heads, [*head.layers]
        super().__init__(Rows([kv_heads] * len(stack), dim), [head.rotary.angles] * len(stack))
        self._block, self._masks = layout.block, [layout.mask] * (layout.block - 1)
        self._lengths: dict[int, int] = {}
        embedding: Any = target.hf.get_input_embeddings()
        self._read_from = embedding, target  # the C side points into one of them
        layers = (llama.Layer * len(stack))()
        for described, layer in zip(layers, stack, strict=True):
            self._describe_layer(described, layer)
        self._pool.attach(layers)
        norms: list[Any] = [head.hidden_norm, head.norm]
        self._hidden_norm, norm = (self._keep(one.weight.detach().float()) for one in norms)
        model = llama.Model(
            len(stack), sizes.hidden_size, heads, kv_heads, dim, sizes.intermediate_size, 0, sizes.rms_norm_eps,
            dim**-0.5, None, norm, None, layers, activation=activation(sizes),
        )  # fmt: skip
        lay_words(model, embedding, target.driver)
        self._fc = llama.Model(hidden=head.fc.in_features, vocab=head.fc.out_features, head=self._pack(head.fc.weight))
        self._fc_scratch = Scratch(self._fc)
        self._heed = c_int64(len(stack))  # what an output matrix reads
        self.describe(model, embedding.num_embeddings)
        for name in self.TAKES:
            drop_weights(head.get_submodule(name))

    def lighten(self, *others: llama.Model) -> None:
        super().lighten(self._fc, *others)

    def open(self, id: int, capacity: int) -> None:
        super().open(id, capacity)
        self._lengths[id] = 0

    def close(self, id: int) -> None:
        super().close(id)
        self._lengths.pop(id, None)

    def listen(self, wanted: List[Wanted]) -> None:
        """Remember what the target thought since the last block."""
        states = torch.cat([one.states for one in wanted])
        fused = multiplied(self._library, self._fc, self._fc_scratch, states, self._threads)
        reads = [Read(one.id, self._lengths[one.id], [0] * len(one.states), keep=0) for one in wanted]
        forward = self._prepare(reads, fused[:0])
        forward.residual, forward.remembered = fused.data_ptr(), 1
        listener = llama.Model.from_buffer_copy(self._model)
        listener.norm = self._hidden_norm
        self._library.foreword_forward(byref(listener), byref(forward), self._threads)
        for one in wanted:
            self._lengths[one.id] += len(one.states)

    def think(self, wanted: List[Wanted]) -> Float[Tensor, "wanted block hidden"]:
        """The normed hidden states of every row of these blocks."""
        hidden = torch.empty(len(wanted), self._block, self._model.hidden)
        reads = [Read(one.id, self._lengths[one.id], [one.anchor, *self._masks], keep=0) for one in wanted]
        forward = self._prepare(reads, hidden[:0])
        for span in forward.span[: forward.spans]:
            span.mutual = 1
        forward.heeded, forward.heed, forward.heard = 1, ctypes.addressof(self._heed), hidden.data_ptr()
        self._library.foreword_forward(byref(self._model), byref(forward), self._threads)
        return hidden
