"""The EAGLE-3 head: one decoder layer that reads a target's hidden states (Li et al.

2025, arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword.model.head_layers import (
    LlamaConfig,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

Rows = Float[Tensor, "batch row hidden"]
Angles = tuple[Tensor, Tensor]
Attend = Callable[
    [
        Float[Tensor, "batch heads row dim"],
        Float[Tensor, "batch kv row dim"],
        Float[Tensor, "batch kv row dim"],
    ],
    Float[Tensor, "batch row heads dim"],
]
"""Maps queries, keys and values, rotated by position, to the attention output of each
row.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """Sizes and options of a head."""

    llama: LlamaConfig
    """Config of the one layer; its vocabulary is the target's."""
    states: tuple[int, ...]
    """Target hidden states that the head reads, numbered as in transformers."""
    target_hidden: int
    draft_vocab: int
    """Size of the draft vocabulary."""
    embeds: bool = False
    """The head has its own embeddings; else it uses the target's."""
    norm_before_residual: bool = False
    """The residual stream starts from the normed state."""
    norm_output: bool = False
    """The final norm is applied before the hidden state is fed back."""


class _Attention(nn.Module):
    """Attention projections whose input is [embedding, hidden state]."""

    layer_idx = 0

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        heads = config.num_attention_heads
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        self.dim = config.head_dim or config.hidden_size // heads
        wide, bias = 2 * config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(wide, heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(wide, kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(wide, kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.dim, config.hidden_size, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch row wide"], angles: Angles, attend: Attend
    ) -> Rows:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *angles)
        return self.o_proj(attend(q, k, v).flatten(-2))


class _Layer(nn.Module):
    """A Llama layer whose attention also reads token embeddings."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)


class EagleHead(nn.Module):
    """Maps target states and the tokens after them to logits of the next token, then
    continues on its own states.

    Row t reads the embedding of token t + 1 and the state of token t, and predicts
    token t + 2. Tensor names are as in other engines (`LlamaForCausalLMEagle3`).
    """

    d2t: Int[Tensor, "draft_vocab"]
    """Offset from a draft-vocabulary index to the target's token id."""
    t2d: Bool[Tensor, "vocab"]
    """Mask of the target's tokens that are in the draft vocabulary."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        llama, size = config.llama, config.llama.hidden_size
        self.config = config
        self.fc = nn.Linear(config.target_hidden * len(config.states), size, bias=False)
        self.midlayer = _Layer(llama)
        self.norm = LlamaRMSNorm(size, llama.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.draft_vocab, bias=False)
        self.embed_tokens = (
            nn.Embedding(llama.vocab_size, size) if config.embeds else None
        )
        self.rotary = LlamaRotaryEmbedding(llama)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(llama.vocab_size) < config.draft_vocab)

    @property
    def tokens(self) -> Int[Tensor, "draft_vocab"]:
        """Target ids of the draft vocabulary."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def forward(
        self,
        embedded: Rows,
        states: Rows,
        positions: Int[Tensor, "batch row"],
        attend: Attend,
    ) -> Rows:
        """Return each row's hidden state, before the final norm unless `norm_output`.

        Draft tokens read it in place of the target's states.
        """
        layer, config = self.midlayer, self.config
        normed = layer.hidden_norm(states)
        states = normed if config.norm_before_residual else states
        angles = self.rotary(states, positions)
        attended = layer.self_attn(
            torch.cat([layer.input_layernorm(embedded), normed], -1), angles, attend
        )
        states = states + attended
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        return self.norm(states) if config.norm_output else states

    def normed(
        self, states: Float[Tensor, "*rows hidden"]
    ) -> Float[Tensor, "*rows hidden"]:
        """Return hidden states as the LM head reads them."""
        return states if self.config.norm_output else self.norm(states)

    def logits(
        self, states: Float[Tensor, "*rows hidden"]
    ) -> Float[Tensor, "*rows draft_vocab"]:
        """Return logits over the draft vocabulary."""
        return self.lm_head(self.normed(states))
