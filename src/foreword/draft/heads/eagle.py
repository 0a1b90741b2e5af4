"""Drafter with an EAGLE-3 head: one decoder layer on the target's hidden states (Li et
al. 2025, arXiv 2503.01840).

Runs the head (eagle_model.py) for many sequences at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.draft.heads.eagle_checkpoint import load
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.eagle_native import (
    NativeHead,
    unsupported,
)
from foreword.draft.heads.hidden_states import (
    over_target_vocab,
)
from foreword.draft.heads.state_drafter import StateDrafter
from foreword.draft.heads.state_packing import StatePacking
from foreword.model import Model, Read, Tokenizer
from foreword.model.executors.torch.attention import attend
from foreword.model.executors.torch.packed_linear import (
    MIN_ROWS,
)
from foreword.registry import OWN_METHODS


class _TorchHead(StatePacking):
    """The head in torch, the reference implementation of `NativeHead` in
    eagle_native.py.
    """

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
