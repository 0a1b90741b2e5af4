"""Settings of tiny models under the names that most configs use. Test code."""

from typing import Any

Settings = dict[str, Any]
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
"""Types of layers."""
NO_ENDS: Settings = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
"""No token begins, ends or fills a text."""
HEAD: Settings = dict(vocab_size=8192, head_dim=32, max_position_embeddings=1024)
"""A head of the small target."""


def sizes(
    hidden: int,
    inner: int,
    heads: int,
    key_heads: int | None = None,
    layers: int | None = None,
    **others: Any,
) -> Settings:
    """Return the sizes of a transformer; what is None is left to the config."""
    shared = dict(num_key_value_heads=key_heads, num_hidden_layers=layers)
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        **{name: size for name, size in shared.items() if size is not None},
        **others,
    }


def experts(count: int = 4, each: int = 2, inner: int = 32, **others: Any) -> Settings:
    """Return the sizes of a mixture: all experts, and the experts of a token."""
    counts = dict(num_experts=count, num_experts_per_tok=each)
    return dict(counts, moe_intermediate_size=inner, **others)


def routed(**others: Any) -> Settings:
    """Return the sizes of four experts as DeepSeek's configs name them."""
    return dict(
        n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, **others
    )


def latent(**others: Any) -> Settings:
    """Return the sizes of latent attention, with experts."""
    return routed(
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        topk_group=1,
        **others,
    )


def linear(
    values: int, size: int, value_size: int | None = None, **others: Any
) -> Settings:
    """Return the sizes of linear attention of two heads of keys."""
    named = dict(
        linear_num_key_heads=2,
        linear_num_value_heads=values,
        linear_key_head_dim=size,
        linear_value_head_dim=value_size or size,
    )
    return named | others


def decoder(**others: Any) -> Settings:
    """Return the sizes of a decoder of two layers with a context of 1,024 tokens."""
    shared = dict(vocab_size=320, max_position_embeddings=1024, initializer_range=0.15)
    return sizes(64, 96, 4, 2, 2) | shared | others
