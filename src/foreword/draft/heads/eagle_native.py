"""The EAGLE-3 head in C (csrc/forward.c): one call runs a forward or grows a whole
tree. Reference: eagle.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.hidden_states import HeadStates, over_target_vocab
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.architectures import drop_weights
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.executor import MARGIN, NativeExecutor, lay_words
from foreword.model.executors.native.layout import LANES
from foreword.model.executors.native.rows import Rows
from foreword.model.executors.native.supported import activation, unfit
from foreword.native import forward
from foreword.native.workspace import Workspace, multiplied


def unsupported(head: EagleHead, target: Model) -> str | None:
    """Return why C cannot run this head; None if it can."""
    embedding = _embedding(head, target)
    weights = [*head.parameters(), *embedding.parameters()]
    if any(
        weight.device.type != "cpu" or weight.dtype != torch.bfloat16
        for weight in weights
    ):
        return "only bfloat16 on CPU is supported"
    if target.ranks is not None:
        return "the target's embeddings are split among processes"
    if type(embedding) is not nn.Embedding or head.fc.in_features % LANES:
        return "the target's embeddings or hidden size are not supported"
    return unfit(head.config.llama, head.midlayer, head.lm_head)


class NativeHead(NativeExecutor):
    """The head in C: reads many sequences and keeps its hidden states at each
    sequence's end and draft tokens.
    """

    def __init__(self, head: EagleHead, target: Model) -> None:
        """Pack the linear layers of `head`, and drop its weights to save memory."""
        llama_config, attention = head.config.llama, head.midlayer.self_attn
        kv_heads = attention.k_proj.out_features // attention.dim
        super().__init__(Rows([kv_heads], attention.dim), Angles([head.rotary]))
        self.context = min(target.context, llama_config.max_position_embeddings)
        self._vocab, self._tokens = target.vocab, head.tokens
        embedding = _embedding(head, target)
        self._read_from = embedding, target  # the C side points into one of them
        self.head_states = HeadStates()
        layers = (forward.Layer * 1)()
        self.matrices.pack_layer(layers[0], head.midlayer)
        layers[0].given_norm = self.matrices.keep(
            head.midlayer.hidden_norm.weight.detach().float()
        )
        layers[0].normed = head.config.norm_before_residual
        self.pool.attach(layers)
        reduced = head.config.draft_vocab < target.vocab
        described = forward.Model(
            1,
            llama_config.hidden_size,
            llama_config.num_attention_heads,
            kv_heads,
            attention.dim,
            llama_config.intermediate_size,
            head.config.draft_vocab,
            llama_config.rms_norm_eps,
            attention.dim**-0.5,
            None,
            self.matrices.keep(head.norm.weight.detach().float()),
            self.matrices.pack(head.lm_head.weight),
            layers,
            forward.WHOLE,
            self.matrices.keep(head.tokens.int()) if reduced else None,
            activation=activation(llama_config),
        )
        lay_words(described, embedding, target.backend)
        fc = head.fc
        self._fc = forward.Model(
            layers=0,
            hidden=fc.in_features,
            vocab=fc.out_features,
            head=self.matrices.pack(fc.weight),
            coding=forward.WHOLE,
        )
        self._fc_scratch = Workspace(self._fc)
        # the state after the final norm, or before
        self._captured = c_int64(1 if head.config.norm_output else 2)
        self.describe(described, min(embedding.num_embeddings, target.vocab))
        drop_weights(head)

    def quantize(self, *others: forward.Model, coding: int = forward.BYTES) -> None:
        super().quantize(self._fc, *others, coding=coding)

    def close(self, id: int) -> None:
        super().close(id)
        self.head_states.forget(id)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        logits = super().read(reads)
        self.head_states.keep(reads, self._hidden)
        return over_target_vocab(logits, self._tokens, self._vocab)

    def _prepare(
        self,
        reads: Sequence[Read],
        logits: Tensor,
        *,
        rows: int = 0,
        beyond: int = MARGIN,
    ) -> forward.Forward:
        forward = super()._prepare(reads, logits, rows=rows, beyond=beyond)
        states = [self._before(read) for read in reads]
        pointers = [
            state.data_ptr() + row * state.stride(0) * 4
            for state, taken in states
            for row in taken
        ]
        given = (c_void_p * len(pointers))(*pointers)
        hidden = torch.empty(
            forward.rows + beyond, self.model.hidden, dtype=torch.float32
        )
        self._hidden = hidden[: forward.rows]
        self._alive += [states, given, hidden]
        forward.given = ctypes.addressof(given)
        forward.hidden_states = hidden.data_ptr()
        forward.hidden_layer_count = 1
        forward.hidden_layers = ctypes.addressof(self._captured)
        return forward

    def _before(
        self, read: Read
    ) -> tuple[Float[Tensor, "states hidden"], Sequence[int]]:
        """Return states and the row read beside each token: the target's for committed
        tokens, else the head's.
        """
        if read.parents:
            held = self.head_states.of(read.id)
            parents = [parent + 1 for parent in read.parents[read.held :]]
            if max(parents) >= len(held):
                raise ModelError(
                    "cannot read draft tokens before their parents: got parents "
                    f"{read.parents}, {read.held} read. Order the tokens parents first"
                )
            return held, parents
        fused = multiplied(
            self.library,
            self._fc,
            self._fc_scratch,
            self.head_states.given(read.id),
            self.threads,
        )
        return fused, range(len(fused))


def _embedding(head: EagleHead, target: Model) -> Any:
    return (
        target.hf.get_input_embeddings()
        if head.embed_tokens is None
        else head.embed_tokens
    )
