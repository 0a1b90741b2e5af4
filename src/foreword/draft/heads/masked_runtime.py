"""Blocks of a masked head for all sequences that request one, computed in torch
(reference) or in C.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from ctypes import byref, c_int64
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.block import BlockRequest, HeadBlocks
from foreword.draft.heads.hidden_states import over_target_vocab
from foreword.draft.heads.masked import MaskedHead
from foreword.draft.heads.native_states import unfit_head
from foreword.model import Model, Read
from foreword.model.architectures import drop_weights, head_dim
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.executor import NativeExecutor, lay_words
from foreword.model.executors.native.rows import Rows
from foreword.model.executors.native.supported import activation, unfit
from foreword.model.executors.torch.kv_pool import KVPool, taken
from foreword.model.executors.torch.packed_linear import MIN_ROWS
from foreword.model.kv.packing import Paged
from foreword.native import forward
from foreword.native.workspace import Workspace, multiplied


class MaskedBlocks(HeadBlocks):
    """Block predictor with a masked head; stores keys and values of each sequence, but
    none of blocks.
    """

    def __init__(
        self,
        head: MaskedHead,
        target: Model,
    ) -> None:
        self.layout = head.layout
        self.hidden_layers = head.layout.states
        self._own: nn.ModuleDict | None = None
        if head.lm_head is not None:
            self._own = nn.ModuleDict({"lm_head": head.lm_head})
            self._tokens = head.tokens.to(target.device)
            head.lm_head = None
            self._own.to(target.device, target.dtype)
        self._stack: TorchLayers | NativeLayers = TorchLayers(head, target)
        super().__init__(head, target, head.layout.draft_tokens)
        if self._own is not None:
            super().lay_out(self._own)

    @classmethod
    def quantized(cls, head: MaskedHead, target: Model) -> MaskedBlocks:
        """Return a predictor whose layers are int8 where that is faster; draft tokens
        may then differ slightly.
        """
        blocks = cls(head, target)
        blocks.quantize_int8()
        return blocks

    def lay_out(self, head: nn.Module) -> None:
        if not isinstance(head, MaskedHead) or unsupported(head, self.target):
            super().lay_out(head)
        else:
            self._stack = NativeLayers(head, self.target)
            for name, part in head.named_children():
                if name not in NativeLayers.TAKES:
                    super().lay_out(part)

    def quantize_int8(self) -> None:
        """Quantize the layers that C computes."""
        if isinstance(self._stack, NativeLayers):
            self._stack.quantize()

    def open(
        self,
        id: int,
        capacity: int,
    ) -> None:
        super().open(id, capacity)
        self._stack.open(id, capacity + self.layout.block)

    def close(self, id: int) -> None:
        super().close(id)
        self._stack.close(id)

    @torch.inference_mode()
    def compute(
        self, requests: Sequence[BlockRequest]
    ) -> Float[Tensor, "requests draft_tokens vocab"]:
        with_states = [request for request in requests if len(request.states)]
        if with_states:
            self._stack.read_target_states(with_states)
        first = self.layout.block - self.draft_tokens
        hidden = self._stack.hidden_states(requests)[:, first:]
        logits = self._logits(hidden.flatten(0, 1))
        return logits.unflatten(0, (len(requests), -1))

    def _logits(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return logits from the target's LM head, or from the head's own."""
        if self._own is None:
            return self.target.lm_head(hidden)
        short = max(0, MIN_ROWS - len(hidden))
        padded = F.pad(hidden.to(self.target.dtype), (0, 0, 0, short))
        logits = self._own["lm_head"](padded)[: len(hidden)].float()
        return over_target_vocab(logits, self._tokens, self.target.vocab)


class TorchLayers(Paged[KVPool]):
    """The layers in torch; the reference implementation of `NativeLayers`."""

    def __init__(
        self,
        head: MaskedHead,
        target: Model,
    ) -> None:
        super().__init__(KVPool())
        self.head = head
        self.layout = head.layout
        self.target = target
        self._lengths = defaultdict[int, int](int)

    def close(self, id: int) -> None:
        super().close(id)
        self._lengths.pop(id, None)

    def read_target_states(
        self,
        requests: Sequence[BlockRequest],
    ) -> None:
        """Store keys and values of the target states that are new since the last
        block.
        """
        counts = {request.id: len(request.states) for request in requests}
        rows, positions = self._rows(counts)
        states = torch.cat([request.states for request in requests])
        states = states.to(self.target.dtype)
        short = max(0, MIN_ROWS - len(states))
        remembered = self.head.remembered(
            F.pad(states, (0, 0, 0, short)), F.pad(positions, (0, short))
        )
        for number, (key, value) in enumerate(remembered):
            self.pool.write(number, key, value, rows)
        for request in requests:
            self._lengths[request.id] += len(request.states)

    def hidden_states(
        self, requests: Sequence[BlockRequest]
    ) -> Float[Tensor, "requests block hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        block = self.layout.block
        masks = [self.layout.mask] * (block - 1)
        ids = [token for request in requests for token in (request.anchor, *masks)]
        tokens = torch.tensor(ids, device=self.target.device)
        written, positions = self._rows({request.id: block for request in requests})
        lengths = [self._lengths[request.id] + block for request in requests]
        held = [
            self.pool.where(self.pool[request.id], length, length)
            for request, length in zip(requests, lengths, strict=True)
        ]

        def attend(
            number: int,
            query: Tensor,
            key: Tensor,
            value: Tensor,
        ) -> Tensor:
            keys, values = self.pool.write(number, key, value, written)
            attended: list[Tensor] = []
            for rows, at, n in zip(query.split(block), held, lengths, strict=True):
                row_keys, row_values = taken(keys, at)[:n], taken(values, at)[:n]
                attended.append(_attention(rows, row_keys, row_values))
            return torch.cat(attended)

        x = self.target.embed(tokens).to(self.target.dtype)
        return self.head(x, positions, attend).unflatten(0, (len(requests), block))

    def _rows(
        self, counts: dict[int, int]
    ) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
        """Return pool rows and positions of the next `counts` tokens of each
        sequence.
        """
        rows: list[int] = []
        positions: list[int] = []
        for sequence_id, count in counts.items():
            start = self._lengths[sequence_id]
            stop = start + count
            rows += self.pool.extend(sequence_id, start, stop).rows(start, stop)
            positions += range(start, stop)
        # one copy to the device
        both = torch.tensor([rows, positions], device=self.target.device)
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
        folded,
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
    )
    return out.reshape(heads, rows, dim).transpose(0, 1)


def unsupported(
    head: MaskedHead,
    target: Model,
) -> str | None:
    """Return why C cannot run this head; None if it can."""
    embedding = target.hf.get_input_embeddings()
    reasons = (unfit(head.layout.sizes, layer, head.fc) for layer in head.layers)
    return unfit_head(head, embedding, target) or next(filter(None, reasons), None)


class NativeLayers(NativeExecutor):
    """The layers in C, with the keys and values of each sequence."""

    TAKES = ("fc", "layers")
    """Submodules of a head whose weights are dropped once packed."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        layout, sizes = head.layout, head.layout.sizes
        dim, heads = head_dim(sizes), sizes.num_attention_heads
        kv_heads, stack = sizes.num_key_value_heads or heads, [*head.layers]
        super().__init__(
            Rows([kv_heads] * len(stack), dim),
            Angles([head.rotary.angles] * len(stack)),
        )
        self._block, self._masks = layout.block, [layout.mask] * (layout.block - 1)
        self._lengths = defaultdict[int, int](int)
        embedding: Any = target.hf.get_input_embeddings()
        self._read_from = embedding, target  # the C side points into one of them
        layers = (forward.Layer * len(stack))()
        for described, layer in zip(layers, stack, strict=True):
            self.matrices.pack_layer(described, layer)
        self.pool.attach(layers)
        norms: list[Any] = [head.hidden_norm, head.norm]
        self._hidden_norm, norm = (
            self.matrices.keep(one.weight.detach().float()) for one in norms
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
        self._fc = self._fusion(head.fc)
        self._fc_scratch = Workspace(self._fc)
        self._captured = c_int64(len(stack))  # the state that the LM head reads
        self.describe(model, embedding.num_embeddings)
        for name in self.TAKES:
            drop_weights(head.get_submodule(name))

    def _fusion(self, fc: nn.Linear) -> forward.Model:
        """Return the layer that fuses hidden states of the target, as a C model."""
        return forward.Model(
            hidden=fc.in_features,
            vocab=fc.out_features,
            head=self.matrices.pack(fc.weight),
        )

    def quantize(
        self,
        *others: forward.Model,
        coding: int = forward.BYTES,
    ) -> None:
        super().quantize(self._fc, *others, coding=coding)

    def close(self, id: int) -> None:
        super().close(id)
        self._lengths.pop(id, None)

    def read_target_states(
        self,
        requests: Sequence[BlockRequest],
    ) -> None:
        """Store keys and values of the target states that are new since the last
        block.
        """
        states = torch.cat([request.states for request in requests])
        fused = multiplied(
            self.library, self._fc, self._fc_scratch, states, self.threads
        )
        reads: list[Read] = []
        for request in requests:
            placeholders = [0] * len(request.states)
            start = self._lengths[request.id]
            reads.append(Read(request.id, start, placeholders, keep=0))
        call = self._prepare(reads, fused[:0])
        call.residual, call.kv_only = fused.data_ptr(), 1
        reader = forward.Model.from_buffer_copy(self.model)
        reader.norm = self._hidden_norm
        self.library.foreword_forward(byref(reader), byref(call), self.threads)
        for request in requests:
            self._lengths[request.id] += len(request.states)

    def hidden_states(
        self, requests: Sequence[BlockRequest]
    ) -> Float[Tensor, "requests block hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        hidden = torch.empty(
            len(requests), self._block, self.model.hidden, dtype=torch.float32
        )
        reads: list[Read] = []
        for request in requests:
            block = [request.anchor, *self._masks]
            start = self._lengths[request.id]
            reads.append(Read(request.id, start, block, keep=0))
        call = self._prepare(reads, hidden[:0])
        for span in call.span[: call.spans]:
            span.mutual = 1
        call.hidden_layer_count = 1
        call.hidden_layers = ctypes.addressof(self._captured)
        call.hidden_states = hidden.data_ptr()
        self.library.foreword_forward(byref(self.model), byref(call), self.threads)
        return hidden
