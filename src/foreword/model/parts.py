"""Parts of transformers' Llama that trained heads are made of, so that they need not touch transformers for that."""

from transformers import LlamaConfig
from transformers import PreTrainedConfig as HFConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

__all__ = ["HFConfig", "LlamaConfig", "LlamaMLP", "LlamaRMSNorm", "LlamaRotaryEmbedding", "apply_rotary_pos_emb"]
