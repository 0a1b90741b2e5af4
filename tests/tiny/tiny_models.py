"""Tiny random causal language models, float32, one for each way of building them."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tiny_sizes import FULL, LINEAR, NO_ENDS, SLIDING, experts, latent, linear, sizes

VOCAB = 320
WINDOW = 8
"""Small enough that a sliding window hides part of every prompt a test uses."""


class Support(Enum):
    """The most that a family allows, best first."""

    TREE = "tree, own attention and cache"
    MASK = "tree, through a 4-D float mask and the cache of transformers"
    CHAIN = "chain, several tokens in one forward from a saved state"
    PLAIN = "one token at a time"


@dataclass(frozen=True)
class Family:
    """A config class, how it departs from the sizes all share, and what it allows."""

    config: type[PreTrainedConfig]
    expected: Support = Support.TREE
    options: Mapping[str, Any] = field(default_factory=dict)
    llama_names: bool = True
    """Sizes are called as in Llama; otherwise `options` names all of them."""


_SIZES = sizes(64, 96, 4, 2, 2, max_position_embeddings=256, initializer_range=0.3)
_GPT = dict(n_embd=64, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3)
_OPT = dict(hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4)
_OPT |= dict(word_embed_proj_dim=64, max_position_embeddings=256, init_std=0.3)
_LOCAL_GLOBAL = dict(num_hidden_layers=4, sliding_window=WINDOW)
_LOCAL_GLOBAL["layer_types"] = [SLIDING, FULL] * 2
_HEAD = dict(head_dim=16)
"""For families whose heads do not follow from hidden size and head count."""
_GEMMA = dict(query_pre_attn_scalar=8, tie_word_embeddings=False, **_HEAD)
_GEMMA |= _LOCAL_GLOBAL
"""Untied: Gemma scales its embedding up and would repeat its last token."""
_DELTA_NET = linear(8, 16, num_hidden_layers=4, layer_types=[LINEAR, FULL] * 2)
_DELTA_NET |= dict(_HEAD, shared_expert_intermediate_size=32)
_FEW_EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
_UNTIED = dict(initializer_range=0.3, tie_word_embeddings=False)
_BLOOM = dict(_UNTIED, hidden_size=64, n_layer=2, n_head=4)
_MPT = dict(_UNTIED, d_model=64, n_layers=2, n_heads=4, max_seq_len=256)
_LFM2 = dict(_UNTIED, num_hidden_layers=3, layer_types=["conv", FULL, "conv"])
_MAMBA = dict(hidden_size=64, num_hidden_layers=2, state_size=8, initializer_range=0.3)

FAMILIES: dict[str, Family] = {
    "llama": Family(hf.LlamaConfig, options=dict(num_key_value_heads=4)),
    "llama-gqa": Family(hf.LlamaConfig, options=dict(tie_word_embeddings=True)),
    "qwen2": Family(hf.Qwen2Config),
    "qwen3": Family(hf.Qwen3Config, options=_HEAD),
    "mistral": Family(hf.MistralConfig, options=dict(sliding_window=WINDOW)),
    "gemma": Family(hf.GemmaConfig, options=_HEAD),
    "gemma2": Family(hf.Gemma2Config, options=dict(_GEMMA, attn_logit_softcapping=2.0)),
    "gemma3": Family(hf.Gemma3TextConfig, options=_GEMMA),
    "phi": Family(hf.PhiConfig),
    "phi3": Family(hf.Phi3Config),
    "gpt2": Family(hf.GPT2Config, options=_GPT, llama_names=False),
    "gpt-neox": Family(hf.GPTNeoXConfig),
    "opt": Family(hf.OPTConfig, options=_OPT, llama_names=False),
    "olmo2": Family(hf.Olmo2Config),
    "cohere": Family(hf.CohereConfig, options=dict(logit_scale=1.0)),
    "cohere2": Family(hf.Cohere2Config, options=dict(_LOCAL_GLOBAL, logit_scale=1.0)),
    "mixtral": Family(hf.MixtralConfig, options=_FEW_EXPERTS),
    "qwen2-moe": Family(
        hf.Qwen2MoeConfig, options=experts(shared_expert_intermediate_size=32)
    ),
    "qwen3-moe": Family(hf.Qwen3MoeConfig, options=experts(**_HEAD)),
    "deepseek-v3": Family(
        hf.DeepseekV3Config,
        options=latent(n_group=2, n_shared_experts=1, moe_intermediate_size=32),
    ),
    "gpt-oss": Family(hf.GptOssConfig, options=_LOCAL_GLOBAL | _HEAD | _FEW_EXPERTS),
    "granite": Family(hf.GraniteConfig),
    "starcoder2": Family(hf.Starcoder2Config),
    "smollm3": Family(hf.SmolLM3Config, options=dict(num_hidden_layers=4)),
    "glm4": Family(hf.Glm4Config, options=_HEAD),
    "stablelm": Family(hf.StableLmConfig, Support.MASK),
    "falcon": Family(hf.FalconConfig, Support.MASK),
    "gptj": Family(hf.GPTJConfig, Support.MASK, dict(_GPT, rotary_dim=8), False),
    "bloom": Family(hf.BloomConfig, Support.CHAIN, _BLOOM, llama_names=False),
    "mpt": Family(hf.MptConfig, Support.CHAIN, _MPT, llama_names=False),
    "qwen3-next": Family(hf.Qwen3NextConfig, Support.CHAIN, experts(**_DELTA_NET)),
    "qwen3.5": Family(hf.Qwen3_5TextConfig, Support.CHAIN, _DELTA_NET),
    "lfm2": Family(
        hf.Lfm2Config, Support.CHAIN, dict(_LFM2, block_auto_adjust_ff_dim=False)
    ),
    "mamba": Family(hf.MambaConfig, Support.PLAIN, _MAMBA, llama_names=False),
}


def extended(name: str) -> PreTrainedModel:
    """`build`, with three tokens added to its vocabulary: it is then of odd size."""
    model = build(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model.resize_token_embeddings(VOCAB + 3, mean_resizing=False)
        torch.nn.init.normal_(model.get_output_embeddings().weight, std=0.3)
    return model


def build(name: str) -> PreTrainedModel:
    """The model of this name in FAMILIES: float32, CPU, eval; no text ends early."""
    family = FAMILIES[name]
    named = dict(_SIZES if family.llama_names else {}, **family.options)
    config = family.config(vocab_size=VOCAB, **NO_ENDS, **named)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(name.encode()))
        # transformers before 5.21 leaves soft caps out by its default, SDPA
        eager = getattr(config, "attn_logit_softcapping", None) is not None
        options = dict(attn_implementation="eager") if eager else {}
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
        disturb(model)
    return model.eval()


def random(config: PreTrainedConfig) -> PreTrainedModel:
    """A model of this config: float32, CPU, also of one that sees."""
    causal = type(config) in hf.MODEL_FOR_CAUSAL_LM_MAPPING
    kind = AutoModelForCausalLM if causal else hf.AutoModelForImageTextToText
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        model = kind.from_config(config, dtype=torch.float32)
        disturb(model)
    return model


def with_truth(model: PreTrainedModel) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The model in bfloat16, and another with the same weights in float32."""
    rounded = model.to(torch.bfloat16).eval()
    truth = type(model)(model.config).eval()
    weights = rounded.state_dict()
    truth.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return rounded, truth.float()


def differing(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors of only one, or not equal bit for bit."""
    both = before.keys() & after.keys()
    other = {name for name in both if not torch.equal(before[name], after[name])}
    return sorted((before.keys() ^ after.keys()) | other)


@lru_cache(maxsize=1)
def references(
    models: tuple[PreTrainedModel, PreTrainedModel], text: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Scores of a text in bfloat16 and float32, by the models' own code."""
    with torch.inference_mode():
        rounded, truth = (
            model(torch.tensor([text])).logits[0].float() for model in models
        )
    return rounded, truth


def near_truth(
    models: tuple[PreTrainedModel, PreTrainedModel], text: list[int], found: Tensor
) -> tuple[Tensor, Tensor]:
    """How far these scores are from the truth, and the model's in bfloat16, in
    deviations; of a middling row with experts.
    """
    rounded, truth = references(models, tuple(text))
    experts = any(name.endswith(".experts") for name, _ in models[0].named_modules())
    both = (found, rounded)
    each = ((scores - truth).pow(2).mean(-1) / truth.var() for scores in both)
    ours, theirs = ((rows.median() if experts else rows.mean()).sqrt() for rows in each)
    return ours, theirs


def disturb(model: PreTrainedModel) -> None:
    """Move biases and norms off 0 and 1, so that leaving them out is noticed."""
    with torch.no_grad():
        for name, held in model.state_dict().items():
            if held.dim() == 1 or name.endswith("_bias"):
                held.add_(torch.randn_like(held), alpha=0.1)


def of_bytes(words: dict[str, int]) -> RawTokenizer:
    """Return a tokenizer of these tokens, letters for bytes among them."""
    raw = RawTokenizer(BPE(words, []))
    raw.pre_tokenizer = ByteLevel(add_prefix_space=False)
    raw.decoder = ByteLevelDecoder()
    return raw


ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    name: partial(build, name) for name in FAMILIES
}
EXPECTED: dict[str, Support] = {
    name: family.expected for name, family in FAMILIES.items()
}


def mistral3() -> PreTrainedModel:
    """A tiny model that reads images too."""
    vision = hf.PixtralVisionConfig(**sizes(32, 32, 2, layers=1, image_size=28))
    text = build("mistral").config
    return random(hf.Mistral3Config(text_config=text, vision_config=vision))
