"""Drafter with an EAGLE-3 head: one decoder layer on the target's hidden states (Li et
al. 2025, arXiv 2503.01840).

Runs the head (eagle_model.py) for many sequences at once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.eagle_published import load
from foreword.draft.heads.native_head import NativeHead, unfit_head
from foreword.draft.heads.reader import HeadDrafter, HeadOutput, StateReader
from foreword.draft.heads.torch_head import TorchHead
from foreword.draft.vocabulary import over_target_vocab
from foreword.model import Model, Read, Tokenizer
from foreword.model.architectures import drop_weights
from foreword.model.executors.cuda.backend import (
    FixedPlan,
    attend_in_place,
)
from foreword.model.executors.native.supported import unfit
from foreword.model.executors.torch.packed_linear import padded
from foreword.model.executors.torch.packing import Packed
from foreword.model.executors.torch.plan import Plan
from foreword.registry import OWN_METHODS
from foreword.types.growth import (
    GrownTree,
    TreeRequest,
)


class EagleDrafter(HeadDrafter):
    """Drafter whose head reads the target's hidden states; each tree level takes one
    forward of one layer.
    """

    about = OWN_METHODS["eagle"]

    def __init__(self, head: EagleHead, target: Model) -> None:
        """Pack the linear layers of `head` where that is faster; it is in the target's
        dtype, on its device.
        """
        self.executor = executor_for(head, target)
        most = head.config.llama.max_position_embeddings
        reader = StateReader(self.executor, min(target.context, most))
        super().__init__(reader, head.config.states)
        self.vocabulary = head.tokens
        self._vocab = target.vocab

    def logits(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        logits = super().logits(reads)
        return over_target_vocab(logits, self.vocabulary, self._vocab)

    @classmethod
    def load(
        cls,
        source: Source,
        target: Model,
        tokenizer: Tokenizer | None,
    ) -> HeadDrafter:
        """Load a head; one of P-EAGLE drafts in blocks."""
        del tokenizer  # a head uses the target's tokenizer
        head = load(source, target.hf.config)
        target.check_hidden_states(head.config.states)
        nn.Module.to(head, target.device, target.dtype)
        make: Callable[[EagleHead, Model], Any] = cls
        if head.config.mask is not None:
            from foreword.draft.heads.eagle_parallel import ParallelDrafter

            make = ParallelDrafter
        drafter = make(head, target)
        if isinstance(drafter.executor, NativeEagle):
            drafter.executor.quantize()
        return drafter


def executor_for(
    head: EagleHead,
    target: Model,
) -> "TorchEagle | NativeEagle":
    """Return what computes a head: C where it can."""
    head.eval().requires_grad_(False)
    if unsupported(head, target):
        return TorchEagle(head, target)
    return NativeEagle(head, target)


class TorchEagle(TorchHead):
    """The head in torch."""

    def __init__(self, head: EagleHead, target: Model) -> None:
        super().__init__(head, target, head.config.llama, head.config.window)
        self._head = head
        self._embed = target.embed
        if head.embed_tokens is not None:
            self._embed = head.embed_tokens

    def compute(
        self,
        reads: Sequence[Read],
        states: Sequence[Tensor],
        rows: Packed,
        packed: Int[Tensor, "2 padded"],
    ) -> HeadOutput:
        inputs = [
            own if read.parents else self._fused(own)
            for read, own in zip(reads, states, strict=True)
        ]
        hidden = self.advance(padded(torch.cat(inputs)), packed, rows.plan)
        logits = self._head.logits(padded(hidden[rows.kept]))
        return logits[: len(rows.kept)], hidden[: len(rows.tokens)]

    def advance(
        self,
        states: Float[Tensor, "rows hidden"],
        packed: Int[Tensor, "2 rows"],
        plan: Plan | FixedPlan,
    ) -> Float[Tensor, "rows hidden"]:
        window = self._head.config.window

        def attended(
            layer: nn.Module,
            q: Tensor,
            k: Tensor,
            v: Tensor,
        ) -> Tensor:
            options = {"plan": plan, "sliding_window": window}
            return attend_in_place(layer, q, k, v, None, **options)[0]

        embedded = self._embed(packed[:1])
        embedded = embedded.to(states.dtype)
        attends = [partial(attended, layer.self_attn) for layer in self._head.stack]
        return self._head(embedded, states[None], packed[1:], *attends)[0]

    def logits(
        self,
        hidden: Float[Tensor, "rows hidden"],
    ) -> Float[Tensor, "rows vocab"]:
        head = self._head
        vocab = self._target.vocab
        logits = head.logits(hidden)
        return over_target_vocab(logits, head.tokens, vocab)

    def grow_beside(
        self,
        read: Read,
        states: Tensor,
        ask: TreeRequest,
    ) -> GrownTree | None:
        return self.grow_chain(read, ask, self._fused(states))

    def _fused(
        self, states: Float[Tensor, "tokens features"]
    ) -> Float[Tensor, "tokens hidden"]:
        states = states.to(self._head.fc.weight.dtype)
        return self._head.fused(padded(states))[: len(states)]


class NativeEagle(NativeHead):
    """The head in C."""

    def __init__(
        self,
        head: EagleHead,
        target: Model,
    ) -> None:
        """Pack the linear layers of `head`, and drop its weights to save memory."""
        config, attention = head.config, head.midlayer.self_attn
        kv_heads = attention.k_proj.out_features // attention.dim
        rotaries = [head.rotary] * len(head.stack)
        super().__init__(target, rotaries, kv_heads, attention.dim)
        if not config.norm_output:
            self.captured += 1  # before the last norm
        self._before_fc = head.before_fc
        embedding = _embedding(head, target)
        model = self.lay_out(head, head.stack, config.llama, embedding)
        model.layer[0].given_norm = self.norm(head.midlayer.hidden_norm)
        model.layer[0].normed = config.norm_before_residual
        model.vocab = config.draft_vocab
        model.head = self.matrices.pack(head.lm_head.weight)
        if config.draft_vocab < target.vocab:
            model.ids = self.matrices.keep(head.tokens.int())
        self.describe(model, min(embedding.num_embeddings, target.vocab))
        drop_weights(head)

    def fused(
        self, states: Float[Tensor, "tokens features"]
    ) -> Float[Tensor, "tokens hidden"]:
        return super().fused(self._before_fc(states).contiguous())


def unsupported(head: EagleHead, target: Model) -> str | None:
    """Return why C cannot run this head; None if it can."""
    reason = unfit_head(head, _embedding(head, target), target)
    if reason is not None:
        return reason
    if head.config.window is not None:
        return "its layers have a sliding window"
    llama = head.config.llama
    reasons = (unfit(llama, layer, head.lm_head) for layer in head.stack)
    return next(filter(None, reasons), None)


def _embedding(head: EagleHead, target: Model) -> Any:
    return (
        target.hf.get_input_embeddings()
        if head.embed_tokens is None
        else head.embed_tokens
    )
