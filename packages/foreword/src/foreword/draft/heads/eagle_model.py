"""The EAGLE-3 head: one decoder layer that reads a target's hidden states (Li et al.
2025, arXiv 2503.01840); several in P-EAGLE (arXiv 2602.01469).
"""

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
"""Maps rotated queries, keys and values to the attention output of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """Sizes and options of a head."""

    llama: LlamaConfig
    """Config of the layers; its vocabulary is the target's."""
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
    """The final norm is applied before the hidden state is fed back (EAGLE-3.1)."""
    norm_before_fc: bool = False
    """One norm over the target's states side by side, before they are fused."""
    fc_norm: bool = False
    """A norm for each of the target's states, before they are fused (EAGLE-3.1)."""
    head_norms: bool = False
    """Norms over each query and key, before they are rotated (Qwen3)."""
    window: int | None = None
    """Tokens that the layers attend to; None for all."""
    layers: int = 1
    """Only heads of P-EAGLE have more."""
    mask: int | None = None
    """Mask token id of a head that drafts all tokens in one forward (P-EAGLE)."""
    draft_tokens: int = 0
    """Draft tokens of one forward of such a head."""


class _Attention(nn.Module):
    """Attention projections; the input of layer 0 is [embedding, hidden state]."""

    def __init__(self, config: LlamaConfig, number: int, *, head_norms: bool) -> None:
        super().__init__()
        self.layer_idx = number
        heads = config.num_attention_heads
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        self.dim = config.head_dim or config.hidden_size // heads
        wide, bias = config.hidden_size, config.attention_bias
        wide *= 1 if number else 2
        self.q_proj = nn.Linear(wide, heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(wide, kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(wide, kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.dim, config.hidden_size, bias=bias)
        eps = config.rms_norm_eps
        self.q_norm = LlamaRMSNorm(self.dim, eps) if head_norms else None
        self.k_norm = LlamaRMSNorm(self.dim, eps) if head_norms else None

    def forward(
        self, x: Float[Tensor, "batch row wide"], angles: Angles, attend: Attend
    ) -> Rows:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = apply_rotary_pos_emb(q, k, *angles)
        return self.o_proj(attend(q, k, v).flatten(-2))


class _Layer(nn.Module):
    """A Llama layer; the attention of layer 0 also reads token embeddings."""

    def __init__(self, config: LlamaConfig, number: int, *, head_norms: bool) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = _Attention(config, number, head_norms=head_norms)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(size, eps)
        if number == 0:
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
        wide, eps = config.target_hidden * len(config.states), llama.rms_norm_eps
        self.input_norm = LlamaRMSNorm(wide, eps) if config.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(
                LlamaRMSNorm(config.target_hidden, eps) for _ in config.states
            )
            if config.fc_norm
            else None
        )
        self.fc = nn.Linear(wide, size, bias=False)
        self.stack = [
            _Layer(llama, number, head_norms=config.head_norms)
            for number in range(config.layers)
        ]
        self.midlayer, others = self.stack[0], enumerate(self.stack[1:], 1)
        self.layers = nn.ModuleDict({str(place): layer for place, layer in others})
        state = torch.zeros(wide, dtype=torch.float32)
        self.mask_hidden = None if config.mask is None else nn.Parameter(state)
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

    def fused(
        self, states: Float[Tensor, "*rows features"]
    ) -> Float[Tensor, "*rows hidden"]:
        """Return the target's states of each row fused into one."""
        return self.fc(self.before_fc(states))

    def before_fc(
        self, states: Float[Tensor, "*rows features"]
    ) -> Float[Tensor, "*rows features"]:
        """Return the target's states as `fc` reads them."""
        if self.input_norm is not None:
            return self.input_norm(states)
        if self.fc_norm is None:
            return states
        parts = states.chunk(len(self.fc_norm), -1)
        return torch.cat(
            [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1
        )

    def forward(
        self,
        embedded: Rows,
        states: Rows,
        positions: Int[Tensor, "batch row"],
        attend: Attend,
        *attends: Attend,
    ) -> Rows:
        """Return each row's hidden state, before the final norm unless `norm_output`.

        Draft tokens read it in place of the target's states. `attends`: for the layers
        after the first.
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
        for layer, attend_in in zip(self.stack[1:], attends, strict=True):
            normed = layer.input_layernorm(states)
            states = states + layer.self_attn(normed, angles, attend_in)
            normed = layer.post_attention_layernorm(states)
            states = states + layer.mlp(normed)
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
