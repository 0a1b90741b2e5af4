"""Blocks of a masked head for all sequences that request one, computed in torch
(reference) or in C.
"""

from collections.abc import Sequence
from ctypes import byref
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foreword.draft.heads.block import BlockRequest, HeadBlocks
from foreword.draft.heads.masked import MaskedHead
from foreword.draft.heads.native_head import NativeHead, unfit_head
from foreword.draft.vocabulary import over_target_vocab
from foreword.model import Model, Read
from foreword.model.architectures import head_dim
from foreword.model.executors.native.supported import unfit
from foreword.model.executors.torch.kv_pool import taken
from foreword.model.executors.torch.packed_linear import padded, swap_in
from foreword.model.executors.torch.packing import Packing
from foreword.model.head_layers import Layer
from foreword.native import forward


class MaskedBlocks(HeadBlocks):
    """Block predictor with a masked head; stores keys and values of each sequence, but
    none of blocks.
    """

    def __init__(self, head: MaskedHead, target: Model) -> None:
        self.layout = head.layout
        self.hidden_layers = head.layout.states
        super().__init__(head, target, head.layout.draft_tokens)
        self._head = head
        self.executor: TorchLayers | NativeLayers
        if unsupported(head, target):
            self.executor = TorchLayers(head, target)
        else:
            self.executor = NativeLayers(head, target)
            del head.fc, head.layers  # the executor holds the only, packed copy
        swap_in(head)

    def quantize(self) -> None:
        if isinstance(self.executor, NativeLayers):
            self.executor.quantize()

    def open(self, id: int, capacity: int) -> None:
        super().open(id, capacity)
        self.executor.open(id, capacity + self.layout.block)

    def close(self, id: int) -> None:
        super().close(id)
        self.executor.close(id)

    @torch.inference_mode()
    def compute(
        self, pending: Sequence[BlockRequest]
    ) -> Float[Tensor, "pending draft_tokens vocab"]:
        fresh = [request for request in pending if len(request.states)]
        if fresh:
            texts = [Read(r.id, r.start, [0] * len(r.states), keep=0) for r in fresh]
            states = [request.states for request in fresh]
            self.executor.store(texts, torch.cat(states))
        masks = [self.layout.mask] * (self.layout.block - 1)
        blocks = [Read(r.id, r.end, [r.anchor, *masks], keep=0) for r in pending]
        hidden = self.executor.hidden_states(blocks)
        hidden = hidden.unflatten(0, (len(pending), -1))
        drafted = hidden[:, -self.draft_tokens :]
        logits = self._logits(drafted.flatten(0, 1))
        return logits.unflatten(0, (len(pending), -1))

    def _logits(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return logits from the target's LM head, or from the head's own."""
        lm_head = self._head.lm_head
        if lm_head is None:
            return self.target.lm_head(hidden)
        rows = padded(hidden.to(self.target.dtype))
        logits = lm_head(rows)[: len(hidden)].float()
        return over_target_vocab(logits, self._head.tokens, self.target.vocab)


class TorchLayers(Packing):
    """The layers in torch; the reference implementation of `NativeLayers`."""

    def __init__(
        self,
        head: MaskedHead,
        target: Model,
    ) -> None:
        super().__init__(target.device)
        self.head = head
        self.target = target

    def store(
        self,
        reads: Sequence[Read],
        states: Float[Tensor, "rows features"],
    ) -> None:
        """Store keys and values of the target's states at these tokens."""
        packed = self._pack(reads)
        rows = padded(states.to(self.target.dtype))
        positions = [*packed.positions, *[0] * (len(rows) - len(states))]
        stored = self.head.remembered(
            rows, torch.tensor(positions, device=self._device)
        )
        for number, (key, value) in enumerate(stored):
            self.pool.write(number, key, value, packed.plan.rows)

    def hidden_states(
        self,
        reads: Sequence[Read],
    ) -> Float[Tensor, "rows hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        packed = self._pack(reads)
        spans = packed.plan.spans
        places = [self.pool.where(s.table, s.length, s.length) for s in spans]
        reach = self.head.layout.reach

        def attend(
            number: int,
            query: Tensor,
            key: Tensor,
            value: Tensor,
        ) -> Tensor:
            keys, values = self.pool.write(number, key, value, packed.plan.rows)
            attended: list[Tensor] = []
            for span, index in zip(spans, places, strict=True):
                held = (taken(rows, index)[: span.length] for rows in (keys, values))
                rows = query[span.start : span.stop]
                mask = reach.mask(number, len(rows), span.length, rows.device)
                attended.append(_attention(rows, *held, mask=mask))
            return torch.cat(attended)

        numbers = [packed.tokens, packed.positions]
        tokens, positions = torch.tensor(numbers, device=self._device)
        x = self.target.embed(tokens)
        x = self.head.embedding_scale * x.to(self.target.dtype)
        return self.head(x, positions, attend)


def _attention(
    query: Float[Tensor, "rows heads dim"],
    keys: Float[Tensor, "held kv dim"],
    values: Float[Tensor, "held kv dim"],
    mask: Bool[Tensor, "rows held"] | None,
) -> Float[Tensor, "rows heads dim"]:
    """Return attention; query heads of a key head are rows of a product."""
    rows, heads, dim = query.shape
    folded = query.transpose(0, 1).reshape(1, keys.shape[1], -1, dim)
    if mask is not None:
        mask = mask.repeat(heads // keys.shape[1], 1)
    out = F.scaled_dot_product_attention(
        folded,
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        mask,
    )
    return out.reshape(heads, rows, dim).transpose(0, 1)


def unsupported(head: MaskedHead, target: Model) -> str | None:
    """Return why C cannot run this head; None if it can."""
    reach = head.layout.reach
    if not (reach.ordinary or reach.in_order):
        return "its layers have windows, and some attend both ways"
    if any(type(layer) is not Layer for layer in head.layers):
        return "its layers have convolutions"
    embedding = target.hf.get_input_embeddings()
    reasons = (unfit(head.layout.sizes, layer, head.fc) for layer in head.layers)
    return unfit_head(head, embedding, target) or next(filter(None, reasons), None)


class NativeLayers(NativeHead):
    """The layers in C, with the keys and values of each sequence."""

    def __init__(
        self,
        head: MaskedHead,
        target: Model,
    ) -> None:
        sizes = head.layout.sizes
        kv_heads = sizes.num_key_value_heads or sizes.num_attention_heads
        rotaries = [head.rotary.angles] * len(head.layers)
        super().__init__(target, rotaries, kv_heads, head_dim(sizes))
        embedding: Any = target.hf.get_input_embeddings()
        self._hidden_norm = self.norm(head.hidden_norm)
        model = self.lay_out(head, [*head.layers], sizes, embedding)
        reach = head.layout.reach
        for number, (window, _) in enumerate(reach.layers):
            model.layer[number].window = window
        self._mutual = int(reach.ordinary)
        self.describe(model, embedding.num_embeddings)

    def store(
        self,
        reads: Sequence[Read],
        states: Float[Tensor, "rows features"],
    ) -> None:
        """Store keys and values of the target's states at these tokens."""
        fused = self.fused(states)
        call = self._prepare(reads, fused[:0])
        call.residual, call.kv_only = fused.data_ptr(), 1
        reader = forward.Model.from_buffer_copy(self.model)
        reader.norm = self._hidden_norm
        self.library.foreword_forward(byref(reader), byref(call), self.threads)

    def hidden_states(
        self,
        reads: Sequence[Read],
    ) -> Float[Tensor, "rows hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        call = self._prepare(reads, torch.empty(0))
        for span in call.span[: call.spans]:
            span.mutual = self._mutual
        hidden = self._capture(call, (self.captured,), call.rows)
        self._run(call)
        return hidden
