"""Blocks of a masked head for all sequences that request one, computed in torch
(reference) or in C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as List
from ctypes import byref, c_int64
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.block import BlockPredictor, BlockRequest
from foreword.draft.heads.masked import MaskedHead
from foreword.model import Model, Read
from foreword.model.architectures import drop_weights, head_dim
from foreword.model.cpu.kernel import Kernel, lay_words
from foreword.model.cpu.layout import LANES
from foreword.model.cpu.rows import Rows
from foreword.model.cpu.supported import activation, unfit
from foreword.model.pool.kv_pool import KVPool, taken
from foreword.model.pool.packed_linear import MIN_ROWS
from foreword.model.pool.packing import Paged
from foreword.native import forward
from foreword.native.workspace import Workspace, multiplied


class MaskedBlocks(BlockPredictor):
    """Block predictor with a masked head; stores keys and values of each sequence, but
    none of blocks.
    """

    def __init__(self, head: MaskedHead, target: Model) -> None:
        self.layout = head.layout
        self._stack: TorchLayers | NativeLayers = TorchLayers(head, target)
        super().__init__(head, target, head.layout.draft_tokens)

    def lay_out(self, head: nn.Module) -> None:
        if not isinstance(head, MaskedHead) or unsupported(head, self.target):
            super().lay_out(head)
        else:
            self._stack = NativeLayers(head, self.target)
            for name, part in head.named_children():
                if name not in NativeLayers.TAKES:
                    super().lay_out(part)

    def quantize_int8(self) -> None:
        """Quantize the layers to int8 where that is faster; draft tokens may then
        differ slightly.
        """
        if isinstance(self._stack, NativeLayers):
            self._stack.quantize()

    def open(self, id: int, capacity: int) -> None:
        super().open(id, capacity)
        self._stack.open(id, capacity + self.layout.block)

    def close(self, id: int) -> None:
        super().close(id)
        self._stack.close(id)

    @torch.inference_mode()
    def compute(
        self, requests: List[BlockRequest]
    ) -> Float[Tensor, "requests draft_tokens vocab"]:
        with_states = [one for one in requests if len(one.states)]
        if with_states:
            self._stack.read_target_states(with_states)
        hidden = self._stack.hidden_states(requests)[
            :, self.layout.block - self.draft_tokens :
        ]
        return self.target.lm_head(hidden.flatten(0, 1)).unflatten(
            0, (len(requests), -1)
        )


class TorchLayers(Paged[KVPool]):
    """The layers in torch; the reference implementation of `NativeLayers`."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        super().__init__(KVPool())
        self.head = head
        self.layout = head.layout
        self.target = target
        self._lengths: dict[int, int] = {}

    def open(
        self,
        id: int,
        capacity: int,
        tokens: List[int] = (),
        tenant: str = "",
        layers: List[int] = (),
    ) -> int:
        self._lengths[id] = 0
        return super().open(id, capacity, tokens, tenant, layers)

    def close(self, id: int) -> None:
        super().close(id)
        self._lengths.pop(id, None)

    def read_target_states(self, requests: List[BlockRequest]) -> None:
        """Store keys and values of the target states that are new since the
        last block.
        """
        rows, positions = self._rows({one.id: len(one.states) for one in requests})
        states = torch.cat([one.states for one in requests]).to(self.target.dtype)
        short = max(0, MIN_ROWS - len(states))
        remembered = self.head.remembered(
            F.pad(states, (0, 0, 0, short)), F.pad(positions, (0, short))
        )
        for number, (key, value) in enumerate(remembered):
            self.pool.write(number, key, value, rows)
        for one in requests:
            self._lengths[one.id] += len(one.states)

    def hidden_states(
        self, requests: List[BlockRequest]
    ) -> Float[Tensor, "requests block hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        block, masks = self.layout.block, [self.layout.mask] * (self.layout.block - 1)
        tokens = torch.tensor(
            [token for one in requests for token in (one.anchor, *masks)],
            device=self.target.device,
        )
        written, positions = self._rows({one.id: block for one in requests})
        lengths = [self._lengths[one.id] + block for one in requests]
        held = [
            self.pool.where(self.pool[one.id], n, n)
            for one, n in zip(requests, lengths, strict=True)
        ]

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            pool = self.pool.write(number, key, value, written)
            several = zip(query.split(block), held, lengths, strict=True)
            return torch.cat(
                [
                    _attention(rows, *(taken(part, at)[:n] for part in pool))
                    for rows, at, n in several
                ]
            )

        x = self.target.embed(tokens).to(self.target.dtype)
        return self.head(x, positions, attend).unflatten(0, (len(requests), block))

    def _rows(
        self, counts: dict[int, int]
    ) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
        """Return pool rows and positions of the next `counts` tokens of each
        sequence.
        """
        positions = [
            range(self._lengths[one], self._lengths[one] + count)
            for one, count in counts.items()
        ]
        tables = [
            self.pool.extend(one, at.start, at.stop)
            for one, at in zip(counts, positions, strict=True)
        ]
        rows = [
            row
            for table, at in zip(tables, positions, strict=True)
            for row in table.rows(at.start, at.stop)
        ]
        both = torch.tensor(
            [rows, [position for span in positions for position in span]],
            device=self.target.device,
        )
        return both[0], both[1]


def _attention(
    query: Float[Tensor, "rows heads dim"],
    keys: Float[Tensor, "held kv dim"],
    values: Float[Tensor, "held kv dim"],
) -> Float[Tensor, "rows heads dim"]:
    """Return unmasked attention; query heads that share a key head become rows of one
    product.
    """
    rows, heads, dim = query.shape
    folded = query.transpose(0, 1).reshape(1, keys.shape[1], -1, dim)
    out = F.scaled_dot_product_attention(
        folded, keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    )
    return out.reshape(heads, rows, dim).transpose(0, 1)


def unsupported(head: MaskedHead, target: Model) -> str | None:
    """Return why C cannot run this head; None if it can."""
    embedding = target.hf.get_input_embeddings()
    weights = [*head.parameters(), *embedding.parameters()]
    if any(
        weight.device.type != "cpu" or weight.dtype != torch.bfloat16
        for weight in weights
    ):
        return "only bfloat16 on CPU is supported"
    if type(embedding) is not nn.Embedding or head.fc.in_features % LANES:
        return "the target's embeddings or hidden size are not supported"
    return next(
        filter(
            None, (unfit(head.layout.sizes, layer, head.fc) for layer in head.layers)
        ),
        None,
    )


class NativeLayers(Kernel):
    """The layers in C, with the keys and values of each sequence."""

    TAKES = ("fc", "layers")
    """Submodules of a head whose weights are dropped once packed."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        layout, sizes = head.layout, head.layout.sizes
        dim, heads = head_dim(sizes), sizes.num_attention_heads
        kv_heads, stack = sizes.num_key_value_heads or heads, [*head.layers]
        super().__init__(
            Rows([kv_heads] * len(stack), dim), [head.rotary.angles] * len(stack)
        )
        self._block, self._masks = layout.block, [layout.mask] * (layout.block - 1)
        self._lengths: dict[int, int] = {}
        embedding: Any = target.hf.get_input_embeddings()
        self._read_from = embedding, target  # the C side points into one of them
        layers = (forward.Layer * len(stack))()
        for described, layer in zip(layers, stack, strict=True):
            self._describe_layer(described, layer)
        self.pool.attach(layers)
        norms: list[Any] = [head.hidden_norm, head.norm]
        self._hidden_norm, norm = (
            self._keep(one.weight.detach().float()) for one in norms
        )
        model = forward.Model(
            len(stack),
            sizes.hidden_size,
            heads,
            kv_heads,
            dim,
            sizes.intermediate_size,
            0,
            sizes.rms_norm_eps,
            dim**-0.5,
            None,
            norm,
            None,
            layers,
            activation=activation(sizes),
        )
        lay_words(model, embedding, target.backend)
        self._fc = forward.Model(
            hidden=head.fc.in_features,
            vocab=head.fc.out_features,
            head=self._pack(head.fc.weight),
        )
        self._fc_scratch = Workspace(self._fc)
        self._captured = c_int64(len(stack))  # the state that the LM head reads
        self.describe(model, embedding.num_embeddings)
        for name in self.TAKES:
            drop_weights(head.get_submodule(name))

    def quantize(self, *others: forward.Model, coding: int = forward.BYTES) -> None:
        super().quantize(self._fc, *others, coding=coding)

    def open(
        self,
        id: int,
        capacity: int,
        tokens: List[int] = (),
        tenant: str = "",
        layers: List[int] = (),
    ) -> int:
        self._lengths[id] = 0
        return super().open(id, capacity, tokens, tenant, layers)

    def close(self, id: int) -> None:
        super().close(id)
        self._lengths.pop(id, None)

    def read_target_states(self, requests: List[BlockRequest]) -> None:
        """Store keys and values of the target states that are new since the
        last block.
        """
        states = torch.cat([one.states for one in requests])
        fused = multiplied(
            self._library, self._fc, self._fc_scratch, states, self._threads
        )
        reads = [
            Read(one.id, self._lengths[one.id], [0] * len(one.states), keep=0)
            for one in requests
        ]
        call = self._prepare(reads, fused[:0])
        call.residual, call.kv_only = fused.data_ptr(), 1
        reader = forward.Model.from_buffer_copy(self._model)
        reader.norm = self._hidden_norm
        self._library.foreword_forward(byref(reader), byref(call), self._threads)
        for one in requests:
            self._lengths[one.id] += len(one.states)

    def hidden_states(
        self, requests: List[BlockRequest]
    ) -> Float[Tensor, "requests block hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        hidden = torch.empty(
            len(requests), self._block, self._model.hidden, dtype=torch.float32
        )
        reads = [
            Read(one.id, self._lengths[one.id], [one.anchor, *self._masks], keep=0)
            for one in requests
        ]
        call = self._prepare(reads, hidden[:0])
        for span in call.span[: call.spans]:
            span.mutual = 1
        call.hidden_layer_count = 1
        call.hidden_layers = ctypes.addressof(self._captured)
        call.hidden_states = hidden.data_ptr()
        self._library.foreword_forward(byref(self._model), byref(call), self._threads)
        return hidden
