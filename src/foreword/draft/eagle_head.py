"""The head of EAGLE-3: one decoder layer that reads a target's thoughts (Li et al. 2025, arXiv 2503.01840).

Knows tensors; knows nothing about sequences, files or training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword.model.parts import LlamaConfig, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

Rows = Float[Tensor, "batch row hidden"]
Angles = tuple[Tensor, Tensor]
Attend = Callable[
    [Float[Tensor, "batch heads row dim"], Float[Tensor, "batch kv row dim"], Float[Tensor, "batch kv row dim"]],
    Float[Tensor, "batch row heads dim"],
]
"""Queries, keys and values, turned by their positions, to what each row sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """What a head is made for, and of."""

    llama: LlamaConfig
    """Its one layer; the vocabulary is the target's."""
    states: tuple[int, ...]
    """Hidden states of the target that it reads, as transformers numbers them."""
    target_hidden: int
    draft_vocab: int
    """Tokens that it can guess."""
    embeds: bool = False
    """It has embeddings of its own; without them it uses the target's."""
    norm_before_residual: bool = False
    """The residual stream begins with the normed state."""
    norm_output: bool = False
    """What it thinks is normed before it reads it again."""


class _Attention(nn.Module):
    """Projections of an attention whose input is a token's embedding beside a state."""

    layer_idx = 0

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
        self.dim = config.head_dim or config.hidden_size // heads
        wide, bias = 2 * config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(wide, heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(wide, kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(wide, kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.dim, config.hidden_size, bias=bias)

    def forward(self, x: Float[Tensor, "batch row wide"], angles: Angles, attend: Attend) -> Rows:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *angles)
        return self.o_proj(attend(q, k, v).flatten(-2))


class _Layer(nn.Module):
    """A Llama layer whose attention also reads embeddings."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)


class EagleHead(nn.Module):
    """From the target's states and the tokens after them to the law of the next token, and from its own states on.

    Row t reads the embedding of token t + 1 beside what was thought at token t, and says what comes after token t + 1.
    Its tensors have the names that other engines know (`LlamaForCausalLMEagle3`).
    """

    d2t: Int[Tensor, "draft_vocab"]
    """What is to be added to a guess's number for the target's id of it."""
    t2d: Bool[Tensor, "vocab"]
    """The target's tokens that can be guessed."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        llama, size = config.llama, config.llama.hidden_size
        self.config = config
        self.fc = nn.Linear(config.target_hidden * len(config.states), size, bias=False)
        self.midlayer = _Layer(llama)
        self.norm = LlamaRMSNorm(size, llama.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.draft_vocab, bias=False)
        self.embed_tokens = nn.Embedding(llama.vocab_size, size) if config.embeds else None
        self.rotary = LlamaRotaryEmbedding(llama)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(llama.vocab_size) < config.draft_vocab)

    @property
    def tokens(self) -> Int[Tensor, "draft_vocab"]:
        """The target's ids of the tokens that can be guessed."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def think(self, embedded: Rows, states: Rows, positions: Int[Tensor, "batch row"], attend: Attend) -> Rows:
        """What is thought in each row; in place of the target's states, once there are none. Not normed."""
        layer, config = self.midlayer, self.config
        normed = layer.hidden_norm(states)
        states = normed if config.norm_before_residual else states
        angles = self.rotary(states, positions)
        seen = layer.self_attn(torch.cat([layer.input_layernorm(embedded), normed], -1), angles, attend)
        states = states + seen
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        return self.norm(states) if config.norm_output else states

    def ready(self, states: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        """What is thought, as it is read to be said."""
        return states if self.config.norm_output else self.norm(states)

    def say(self, states: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows draft_vocab"]:
        """Logits of the tokens that can be guessed, from what is thought."""
        return self.lm_head(self.ready(states))
