"""The head of EAGLE-3 in C (native/llama.c): a forward, or a whole tree, in one call. Plain definition: eagle.py.

Knows the head's weights as the C side reads them; knows nothing about drafting.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as List
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.eagle_head import EagleHead
from foreword.draft.eagle_thoughts import Thoughts, spread
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.kernel import MARGIN, Kernel, Rows, activation, lay_words, unfit
from foreword.model.names import drop_weights
from foreword.model.panels import LANES
from foreword.native import llama
from foreword.native.scratch import Scratch, multiplied


def refused(head: EagleHead, target: Model) -> str | None:
    """Why this head cannot be computed this way; None if it can."""
    embedding = _embedding(head, target)
    weights = [*head.parameters(), *embedding.parameters()]
    if any(weight.device.type != "cpu" or weight.dtype != torch.bfloat16 for weight in weights):
        return "it is made for bfloat16 on CPU"
    if type(embedding) is not nn.Embedding or head.fc.in_features % LANES:
        return "its target's embeddings or states are not the usual ones"
    return unfit(head.config.llama, head.midlayer, head.lm_head)


class NativeHead(Kernel):
    """Reads many sequences through one head, and remembers what it thought at the end of each text and its guesses."""

    def __init__(self, head: EagleHead, target: Model) -> None:
        """The head's linear layers lose their weights once these are packed."""
        llama_config, attention = head.config.llama, head.midlayer.self_attn
        kv_heads = attention.k_proj.out_features // attention.dim
        super().__init__(Rows([kv_heads], attention.dim), [head.rotary])
        self.context = min(target.context, llama_config.max_position_embeddings)
        self._vocab, self._tokens = target.vocab, head.tokens
        embedding = _embedding(head, target)
        self._read_from = embedding, target  # the C side points into one of them
        self.thoughts = Thoughts()
        layers = (llama.Layer * 1)()
        self._describe_layer(layers[0], head.midlayer)
        layers[0].given_norm = self._keep(head.midlayer.hidden_norm.weight.detach().float())
        layers[0].normed = head.config.norm_before_residual
        self._pool.attach(layers)
        reduced = head.config.draft_vocab < target.vocab
        described = llama.Model(
            1, llama_config.hidden_size, llama_config.num_attention_heads, kv_heads, attention.dim,
            llama_config.intermediate_size, head.config.draft_vocab, llama_config.rms_norm_eps, attention.dim**-0.5,
            None, self._keep(head.norm.weight.detach().float()), self._pack(head.lm_head.weight),
            layers, llama.WHOLE, self._keep(head.tokens.int()) if reduced else None,
            activation=activation(llama_config),
        )  # fmt: skip
        lay_words(described, embedding, target.driver)
        fc = head.fc
        self._fc = llama.Model(
            layers=0, hidden=fc.in_features, vocab=fc.out_features, head=self._pack(fc.weight), coding=llama.WHOLE
        )
        self._fc_scratch = Scratch(self._fc)
        self._heed = c_int64(1 if head.config.norm_output else 2)  # what the head reads of it, or that before its norm
        self.describe(described, min(embedding.num_embeddings, target.vocab))
        drop_weights(head)

    def lighten(self, *others: llama.Model) -> None:
        super().lighten(self._fc, *others)

    def close(self, id: int) -> None:
        super().close(id)
        self.thoughts.forget(id)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        logits = super().read(reads)
        self.thoughts.keep(reads, self._heard)
        return spread(logits, self._tokens, self._vocab)

    def _prepare(self, reads: List[Read], logits: Tensor, *, rows: int = 0, beyond: int = MARGIN) -> llama.Forward:
        forward = super()._prepare(reads, logits, rows=rows, beyond=beyond)
        states = [self._before(read) for read in reads]
        places = [state.data_ptr() + row * state.stride(0) * 4 for state, taken in states for row in taken]
        given = (c_void_p * len(places))(*places)
        thoughts = torch.empty(forward.rows + beyond, self._model.hidden)
        self._heard = thoughts[: forward.rows]
        self._alive += [states, given, thoughts]
        forward.given, forward.heard = ctypes.addressof(given), thoughts.data_ptr()
        forward.heeded, forward.heed = 1, ctypes.addressof(self._heed)
        return forward

    def _before(self, read: Read) -> tuple[Float[Tensor, "states hidden"], List[int]]:
        """What was thought before each token, by the target along the text, by this head after a guess: rows of it."""
        if read.parents:
            held, parents = self.thoughts.of(read.id), [parent + 1 for parent in read.parents[read.held :]]
            if max(parents) >= len(held):
                raise ModelError(
                    f"guesses must be read after their parents, got {read.parents}, {read.held} of them read"
                )
            return held, parents
        fused = multiplied(self._library, self._fc, self._fc_scratch, self.thoughts.given(read.id), self._threads)
        return fused, range(len(fused))


def _embedding(head: EagleHead, target: Model) -> Any:
    return target.hf.get_input_embeddings() if head.embed_tokens is None else head.embed_tokens
