"""Drafter with an EAGLE-3 head: one decoder layer on the target's hidden states (Li et
al. 2025, arXiv 2503.01840).

Runs the head (eagle_model.py) for many sequences at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.draft.heads.eagle_checkpoint import load
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.hidden_states import over_target_vocab
from foreword.draft.heads.native_states import NativeStateHead, unfit_head
from foreword.draft.heads.state_drafter import StateDrafter
from foreword.draft.heads.state_packing import StatePacking
from foreword.model import Model, Read, Tokenizer
from foreword.model.architectures import drop_weights
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.executor import lay_words
from foreword.model.executors.native.rows import Rows
from foreword.model.executors.native.supported import (
    activation,
    unfit,
)
from foreword.model.executors.torch.attention import attend
from foreword.model.executors.torch.packed_linear import MIN_ROWS
from foreword.native import forward
from foreword.native.workspace import Workspace, multiplied
from foreword.registry import OWN_METHODS


class _TorchHead(StatePacking):
    """The head in torch, the reference implementation of `NativeHead`."""

    def __init__(self, head: EagleHead, target: Model) -> None:
        super().__init__(head, target)
        self._head = head
        self._vocab = target.vocab
        self._embed = target.embed if head.embed_tokens is None else head.embed_tokens
        self.context = min(target.context, head.config.llama.max_position_embeddings)

    @torch.inference_mode()
    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        with self._threads():
            rows = self._pack(reads)
            packed = self._padded(rows)
            states = _at_least(
                torch.cat([self._before(read) for read in reads]), MIN_ROWS
            )

            def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                layer = self._head.midlayer.self_attn
                return attend(
                    layer,
                    q,
                    k,
                    v,
                    None,
                    plan=rows.plan,
                    sliding_window=self._head.config.window,
                )[0]

            embedded = self._embed(packed[:1]).to(states.dtype)
            hidden = self._head(embedded, states[None], packed[1:], attended)[
                0, : len(rows.tokens)
            ]
            self.head_states.keep(reads, hidden)
            if not rows.kept:
                return hidden.new_empty(0, self._vocab)
            logits = self._head.logits(_at_least(hidden[rows.kept], MIN_ROWS))[
                : len(rows.kept)
            ]
            return over_target_vocab(logits, self._head.tokens, self._vocab)

    def _before(self, read: Read) -> Float[Tensor, "tokens hidden"]:
        """Return the state read beside each token: the target's for committed tokens,
        the head's for draft tokens.
        """
        if not read.parents:
            given = self.head_states.given(read.id).to(self._head.fc.weight.dtype)
            return self._head.fused(_at_least(given, MIN_ROWS))[: len(given)]
        parents = read.parents[read.held :]
        return self.head_states.of(read.id)[[parent + 1 for parent in parents]]


class EagleDrafter(StateDrafter):
    """Drafter whose head reads the target's hidden states; each tree level takes one
    forward of one layer.
    """

    about = OWN_METHODS["eagle"]

    def __init__(self, head: EagleHead, target: Model) -> None:
        """Pack the linear layers of `head` where that is faster; it is in the target's
        dtype, on its device.
        """
        head.eval().requires_grad_(False)
        reader = (
            _TorchHead(head, target)
            if unsupported(head, target)
            else NativeHead(head, target)
        )
        super().__init__(reader, head.config.states)
        self.vocabulary = head.tokens

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> EagleDrafter:
        del tokenizer  # a head uses the target's tokenizer
        head = load(source, target.hf.config)
        target.check_hidden_states(head.config.states)
        nn.Module.to(head, target.device, target.dtype)
        drafter = cls(head, target)
        if isinstance(drafter._reader, NativeHead):
            drafter._reader.quantize()
        return drafter


def _at_least(rows: Tensor, count: int) -> Tensor:
    """Return the rows, padded to `count` with copies of the last."""
    return (
        rows
        if len(rows) >= count
        else torch.cat([rows, rows[-1:].expand(count - len(rows), -1)])
    )


def unsupported(head: EagleHead, target: Model) -> str | None:
    """Return why C cannot run this head; None if it can."""
    reason = unfit_head(head, _embedding(head, target), target)
    if reason is not None:
        return reason
    if head.config.window is not None:
        return "its layer has a sliding window"
    return unfit(head.config.llama, head.midlayer, head.lm_head)


class NativeHead(NativeStateHead):
    """The head in C: reads many sequences and keeps its hidden states at each
    sequence's end and draft tokens.
    """

    def __init__(self, head: EagleHead, target: Model) -> None:
        """Pack the linear layers of `head`, and drop its weights to save memory."""
        llama_config, attention = head.config.llama, head.midlayer.self_attn
        kv_heads = attention.k_proj.out_features // attention.dim
        super().__init__(
            Rows([kv_heads], attention.dim),
            Angles([head.rotary]),
            normed=head.config.norm_output,
        )
        self.context = min(target.context, llama_config.max_position_embeddings)
        self._vocab, self._tokens = target.vocab, head.tokens
        embedding = _embedding(head, target)
        self._read_from = embedding, target  # the C side points into one of them
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
        self._pack_fc(head)
        self.describe(described, min(embedding.num_embeddings, target.vocab))
        drop_weights(head)

    def _pack_fc(self, head: EagleHead) -> None:
        fc = head.fc
        self._before_fc = head.before_fc
        self._fc = forward.Model(
            layers=0,
            hidden=fc.in_features,
            vocab=fc.out_features,
            head=self.matrices.pack(fc.weight),
            coding=forward.WHOLE,
        )
        self._fc_scratch = Workspace(self._fc)

    def quantize(self, *others: forward.Model, coding: int = forward.BYTES) -> None:
        super().quantize(self._fc, *others, coding=coding)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        return over_target_vocab(super().read(reads), self._tokens, self._vocab)

    def fused(
        self, given: Float[Tensor, "tokens features"]
    ) -> Float[Tensor, "tokens hidden"]:
        return multiplied(
            self.library,
            self._fc,
            self._fc_scratch,
            self._before_fc(given).contiguous(),
            self.threads,
        )


def _embedding(head: EagleHead, target: Model) -> Any:
    return (
        target.hf.get_input_embeddings()
        if head.embed_tokens is None
        else head.embed_tokens
    )
