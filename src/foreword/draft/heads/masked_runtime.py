"""Blocks of a masked head for all sequences that request one, computed in torch
(reference) or in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import byref
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.block import BlockRequest, HeadBlocks
from foreword.draft.heads.hidden_states import over_target_vocab
from foreword.draft.heads.masked import MaskedHead
from foreword.draft.heads.native_head import NativeHead, unfit_head
from foreword.model import Model, Read
from foreword.model.architectures import drop_weights, head_dim
from foreword.model.executors.native.supported import unfit
from foreword.model.executors.torch.kv_pool import KVPool, taken
from foreword.model.executors.torch.packed_linear import MIN_ROWS, swap_in
from foreword.model.kv.packing import Paged
from foreword.native import forward


class MaskedBlocks(HeadBlocks):
    """Block predictor with a masked head; stores keys and values of each sequence, but
    none of blocks.
    """

    def __init__(self, head: MaskedHead, target: Model) -> None:
        self.layout = head.layout
        self.hidden_layers = head.layout.states
        self._lm_head: nn.ModuleDict | None = None
        if head.lm_head is not None:
            self._lm_head = nn.ModuleDict({"lm_head": head.lm_head})
            self._tokens = head.tokens.to(target.device)
            head.lm_head = None
            self._lm_head.to(target.device, target.dtype)
            swap_in(self._lm_head)
        super().__init__(head, target, head.layout.draft_tokens)
        self._stack: TorchLayers | NativeLayers
        if unsupported(head, target):
            swap_in(head)
            self._stack = TorchLayers(head, target)
            return
        self._stack = NativeLayers(head, target)
        for name, part in head.named_children():
            if name not in NativeLayers.TAKES:
                swap_in(part)

    @classmethod
    def quantized(cls, head: MaskedHead, target: Model) -> MaskedBlocks:
        """Return a predictor whose layers are int8 where that is faster; draft tokens
        may then differ slightly.
        """
        blocks = cls(head, target)
        if isinstance(blocks._stack, NativeLayers):
            blocks._stack.quantize()
        return blocks

    def open(self, id: int, capacity: int) -> None:
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
        if self._lm_head is None:
            return self.target.lm_head(hidden)
        short = max(0, MIN_ROWS - len(hidden))
        padded = F.pad(hidden.to(self.target.dtype), (0, 0, 0, short))
        logits = self._lm_head["lm_head"](padded)[: len(hidden)].float()
        return over_target_vocab(logits, self._tokens, self.target.vocab)


class TorchLayers(Paged[KVPool]):
    """The layers in torch; the reference implementation of `NativeLayers`."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        super().__init__(KVPool())
        self.head = head
        self.target = target

    def read_target_states(self, requests: Sequence[BlockRequest]) -> None:
        """Store keys and values of the target states that are new since the last
        block.
        """
        rows, positions = self._rows((r.id, r.start, r.end) for r in requests)
        states = torch.cat([request.states for request in requests])
        states = states.to(self.target.dtype)
        short = max(0, MIN_ROWS - len(states))
        remembered = self.head.remembered(
            F.pad(states, (0, 0, 0, short)), F.pad(positions, (0, short))
        )
        for number, (key, value) in enumerate(remembered):
            self.pool.write(number, key, value, rows)

    def hidden_states(
        self, requests: Sequence[BlockRequest]
    ) -> Float[Tensor, "requests block hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        block, mask = self.head.layout.block, self.head.layout.mask
        ids = [[request.anchor, *[mask] * (block - 1)] for request in requests]
        tokens = torch.tensor(ids, device=self.target.device).flatten()
        lengths = [request.end + block for request in requests]
        written, positions = self._rows((r.id, r.end, r.end + block) for r in requests)
        tables = [self.pool[request.id] for request in requests]
        places = [
            self.pool.where(table, length, length)
            for table, length in zip(tables, lengths, strict=True)
        ]

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.pool.write(number, key, value, written)
            attended: list[Tensor] = []
            for rows, at, n in zip(query.split(block), places, lengths, strict=True):
                row_keys, row_values = taken(keys, at)[:n], taken(values, at)[:n]
                attended.append(_attention(rows, row_keys, row_values))
            return torch.cat(attended)

        x = self.target.embed(tokens).to(self.target.dtype)
        return self.head(x, positions, attend).unflatten(0, (len(requests), block))

    def _rows(
        self, spans: Iterable[tuple[int, int, int]]
    ) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
        """Return pool rows and positions of (id, start, stop) spans of sequences."""
        rows: list[int] = []
        positions: list[int] = []
        for name, start, stop in spans:
            rows += self.pool.extend(name, start, stop).rows(start, stop)
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
        folded, keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    )
    return out.reshape(heads, rows, dim).transpose(0, 1)


def unsupported(head: MaskedHead, target: Model) -> str | None:
    """Return why C cannot run this head; None if it can."""
    embedding = target.hf.get_input_embeddings()
    reasons = (unfit(head.layout.sizes, layer, head.fc) for layer in head.layers)
    return unfit_head(head, embedding, target) or next(filter(None, reasons), None)


class NativeLayers(NativeHead):
    """The layers in C, with the keys and values of each sequence."""

    TAKES = ("fc", "layers")
    """Submodules of a head whose weights are dropped once packed."""

    def __init__(self, head: MaskedHead, target: Model) -> None:
        layout, sizes = head.layout, head.layout.sizes
        kv_heads = sizes.num_key_value_heads or sizes.num_attention_heads
        rotaries = [head.rotary.angles] * len(head.layers)
        super().__init__(target, rotaries, kv_heads, head_dim(sizes))
        self.context = target.context
        self._masks = [layout.mask] * (layout.block - 1)
        embedding: Any = target.hf.get_input_embeddings()
        self._hidden_norm = self.norm(head.hidden_norm)
        model = self.lay_out(head, [*head.layers], sizes, embedding)
        self.describe(model, embedding.num_embeddings)
        for name in self.TAKES:
            drop_weights(head.get_submodule(name))

    def read_target_states(self, requests: Sequence[BlockRequest]) -> None:
        """Store keys and values of the target states that are new since the last
        block.
        """
        fused = self.fused(torch.cat([request.states for request in requests]))
        reads = [Read(r.id, r.start, [0] * len(r.states), keep=0) for r in requests]
        call = self._prepare(reads, fused[:0])
        call.residual, call.kv_only = fused.data_ptr(), 1
        reader = forward.Model.from_buffer_copy(self.model)
        reader.norm = self._hidden_norm
        self.library.foreword_forward(byref(reader), byref(call), self.threads)

    def hidden_states(
        self, requests: Sequence[BlockRequest]
    ) -> Float[Tensor, "requests block hidden"]:
        """Return the normed hidden states of every row of these blocks."""
        reads = [
            Read(request.id, request.end, [request.anchor, *self._masks], keep=0)
            for request in requests
        ]
        call = self._prepare(reads, torch.empty(0))
        for span in call.span[: call.spans]:
            span.mutual = 1
        hidden = self._capture(call, (self.captured,), call.rows)
        self._run(call)
        return hidden.unflatten(0, (len(requests), -1))
