"""Kinds of model that C reads beside test_native.py's: scores, bits, weights."""

from typing import Any

import pytest
import torch
import transformers as hf

import tiny_models
from foreword.model.architectures import lm_head
from foreword.model.executors.native.build import build, refused
from foreword.model.kv.reads import Read
from grids import NEEDS_C
from tiny_models import random, with_truth
from tiny_native import check_near_truth, owned
from tiny_sizes import FULL, LINEAR, SLIDING, decoder, experts, linear, sizes

pytestmark = NEEDS_C

EYES: dict[str, Any] = sizes(32, 32, 2, layers=1, image_size=28, patch_size=14)
QWEN_EYES: dict[str, Any] = dict(
    depth=1, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=64
)
GRANITE: dict[str, Any] = decoder(
    layer_types=["attention"] * 2, num_local_experts=0, shared_intermediate_size=96
)


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 100.0, **more}


GRID = rope("default", mrope_section=[2, 3, 3])
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
YARN |= dict(llama_4_scaling_beta=0.5, max_position_embeddings=1024)
YARN |= dict(mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0)
HEAD, UNTIED = dict(head_dim=32), dict(tie_word_embeddings=False)
BIASED: dict[str, Any] = decoder(head_dim=32, attention_bias=True)
WINDOW: dict[str, Any] = dict(sliding_window=40, layer_types=[SLIDING, FULL])
SCALED: dict[str, Any] = dict(residual_multiplier=0.3, logits_scaling=4.0)
STRANGE: dict[str, Any] = {
    "qwen3.5, experts, one of which all ask": hf.Qwen3_5MoeTextConfig(
        **decoder(initializer_range=0.05, **HEAD),
        layer_types=[LINEAR, FULL],
        **linear(8, 16),
        **experts(20, 3, 48, shared_expert_intermediate_size=48),
    ),
    "lfm2, experts by sigmoids, some preferred": hf.Lfm2MoeConfig(
        **decoder(),
        num_dense_layers=1,
        layer_types=["conv", FULL],
        **experts(6, routed_scaling_factor=1.5),
        tie_word_embeddings=False,
    ),
    "olmoe, weights not normalized": hf.OlmoeConfig(
        **decoder(), num_experts=17, num_experts_per_tok=5
    ),
    "granite, experts": hf.GraniteMoeConfig(
        **decoder(),
        num_local_experts=8,
        num_experts_per_tok=8,
        **SCALED,
        tie_word_embeddings=True,
    ),
    "experts in one layer of two, four all ask": hf.Qwen2MoeConfig(
        **decoder(),
        **experts(5, shared_expert_intermediate_size=128),
        mlp_only_layers=[0],
    ),
    "pythia, one half after the other, odd size": hf.GPTNeoXConfig(
        **sizes(64, 96, heads=4, layers=2, vocab_size=331, initializer_range=0.15),
        max_position_embeddings=1024,
        use_parallel_residual=False,
    ),
    "stablelm, both halves at once": hf.StableLmConfig(
        **decoder(), use_parallel_residual=True, use_qkv_bias=True
    ),
    "nemotron, squares": hf.NemotronConfig(**BIASED, mlp_bias=True),
    "arcee": hf.ArceeConfig(**decoder()),
    "jais2": hf.Jais2Config(**decoder()),
    "olmo, norms without weights": hf.OlmoConfig(**decoder()),
    "ernie, biases": hf.Ernie4_5Config(**decoder(), **HEAD, **UNTIED),
    "helium": hf.HeliumConfig(**decoder(), head_dim=16),
    "glm": hf.GlmConfig(**BIASED, pad_token_id=0),
    "seed": hf.SeedOssConfig(**BIASED, attention_out_bias=True),
    "exaone4": hf.Exaone4Config(**decoder(), **WINDOW),
    "hunyuan, normed once turned": hf.HunYuanDenseV1Config(
        **decoder(),
        head_dim=32,
        rope_parameters=rope("dynamic", alpha=50.0, factor=1.0),
    ),
    "granite 4, without states": hf.GraniteMoeHybridConfig(
        **GRANITE, **SCALED, position_embedding_type="rope"
    ),
    "granite 4, without places": hf.GraniteMoeHybridConfig(**GRANITE),
    "ministral": hf.MinistralConfig(**decoder(), **HEAD, **WINDOW),
    "ministral 3, which sees, warmer every 32 places": hf.Mistral3Config(
        text_config=hf.Ministral3Config(**decoder(), head_dim=16, rope_parameters=YARN),
        vision_config=hf.PixtralVisionConfig(**EYES),
        **UNTIED,
    ),
    "llava": hf.LlavaConfig(
        text_config=hf.LlamaConfig(**decoder()),
        vision_config=hf.CLIPVisionConfig(**EYES),
    ),
    "qwen 2 vl": hf.Qwen2VLConfig(
        text_config=dict(**decoder(), rope_parameters=GRID),
        vision_config=dict(
            depth=1, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=1
        ),
    ),
    "qwen 2.5 vl": hf.Qwen2_5_VLConfig(
        text_config=dict(**decoder(), rope_parameters=GRID), vision_config=QWEN_EYES
    ),
    "qwen 3 vl": hf.Qwen3VLConfig(
        text_config=dict(**decoder(), head_dim=16, rope_parameters=GRID),
        vision_config=dict(**QWEN_EYES, deepstack_visual_indexes=[0]),
    ),
    "qwen 3 vl, experts": hf.Qwen3VLMoeConfig(
        text_config=dict(**decoder(), **experts(6), head_dim=16, rope_parameters=GRID),
        vision_config=dict(**QWEN_EYES, deepstack_visual_indexes=[0]),
    ),
    "a llama whose config names a window that it does not use": hf.LlamaConfig(
        **decoder(), sliding_window=20
    ),
    "gpt2, tied": hf.GPT2Config(
        vocab_size=320,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=1024,
        initializer_range=0.15,
        activation_function="gelu",
    ),
}
NAMES = """
mixtral qwen2-moe qwen3-moe phi gpt2 gpt-neox opt cohere cohere2 starcoder2 glm4 stablelm
"""
PARENTS = [-1, 0, 1, -1, 3, 3, 5]
LENGTH = 64


@pytest.fixture(scope="module", params=[*NAMES.split(), *STRANGE])
def models(request):
    """A model in bfloat16 for the backend; the same weights in float32 as truth."""
    name = request.param
    kind = STRANGE.get(name)
    return with_truth(random(kind) if kind else tiny_models.build(name))


@pytest.fixture
def text():
    noise = torch.Generator().manual_seed(1)
    return torch.randint(300, (LENGTH,), generator=noise).tolist()


def test_kind_keeps_every_promise(models, registers, text):
    assert refused(models[0]) is None
    backend = build(models[0])
    for name in (1, 2, 3):
        backend.open(name, 2 * LENGTH)
    check_near_truth(models, backend, text)
    check_bits(backend, text)
    check_weights(models[0], backend, text)


def check_bits(backend, text: list[int]) -> None:
    """A row's are its own: alone, among others, beside a text, in a tree."""
    more = text[50 : 50 + len(PARENTS)]
    backend.read([Read(1, 0, text[:50], keep=0)])
    steps = [Read(1, 50 + i, [token], keep=1) for i, token in enumerate(more)]
    alone = torch.cat([backend.read([step]) for step in steps])
    whole = Read(2, 0, text[:50] + more, keep=len(more))
    together = backend.read([whole, Read(3, 0, text[9:41], keep=1)])
    assert torch.equal(together[: len(more)], alone)
    tree = backend.read([Read(1, 50, more, PARENTS, keep=len(more))])
    branch = backend.read([Read(2, 50, [more[node] for node in (3, 5, 6)], keep=3)])
    assert torch.equal(tree[[3, 5, 6]], branch)


def check_weights(source, kept, text: list[int]) -> None:
    """An owned model is held once, and gets its weights back."""
    with owned(source, kept, text) as (model, _):
        assert lm_head(model).weight.numel() == 0
