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
from foreword.model.executors.native.supported import unfit
from foreword.model.executors.torch.attention import attend
from foreword.model.executors.torch.packed_linear import padded
from foreword.model.executors.torch.packing import Packed
from foreword.registry import OWN_METHODS


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
        super().__init__(head, target)
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

        def attended(
            layer: nn.Module,
            q: Tensor,
            k: Tensor,
            v: Tensor,
        ) -> Tensor:
            window = self._head.config.window
            plan = rows.plan
            return attend(layer, q, k, v, None, plan=plan, sliding_window=window)[0]

        before = padded(torch.cat(inputs))
        embedded = self._embed(packed[:1]).to(before.dtype)
        attends = [partial(attended, layer.self_attn) for layer in self._head.stack]
        places = packed[1:]
        hidden = self._head(embedded, before[None], places, *attends)[0]
        logits = self._head.logits(padded(hidden[rows.kept]))
        return logits[: len(rows.kept)], hidden[: len(rows.tokens)]

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
