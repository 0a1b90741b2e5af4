"""What the C side would not compute as a model does is refused; what it reads in another order has one of its own."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GPT2Config,
    OlmoConfig,
    OPTConfig,
    PhiConfig,
    StableLmConfig,
)

import architectures
from foreword.model import names
from foreword.model.listen import layers_of
from foreword.model.native import refused
from foreword.native.llama import reason

SIZES = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
SMALL_GPT2 = dict(vocab_size=320, n_embd=64, n_layer=2, n_head=4)
SMALL_OPT = dict(vocab_size=320, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4)
MEAN = "it takes the mean away from queries and keys"
AROUND = "its embeddings have another size than its layers, or no norm comes after these"
STRANGE = [
    (GPT2Config(**SMALL_GPT2, scale_attn_by_inverse_layer_idx=True), "its config says scale_attn_by_inverse_layer_idx"),
    (
        GPT2Config(**SMALL_GPT2, activation_function="tanh"),
        "its sizes, its activation or its biases are not the usual ones",
    ),
    (OlmoConfig(**SIZES, clip_qkv=8.0), "its config says clip_qkv"),
    (OPTConfig(**SMALL_OPT, word_embed_proj_dim=64, do_layer_norm_before=False), AROUND),
    (OPTConfig(**SMALL_OPT, word_embed_proj_dim=32), AROUND),
    (CohereConfig(**SIZES, use_qk_norm=True), MEAN),
    (StableLmConfig(**SIZES, qk_layernorm=True), MEAN),
    (PhiConfig(**SIZES, qk_layernorm=True), MEAN),
]


@pytest.mark.parametrize(
    ("config", "why"), STRANGE, ids=[f"{type(config).__name__}-{n}" for n, (config, _) in enumerate(STRANGE)]
)
def test_what_the_c_side_does_not_compute_is_refused(config, why):
    assert refused(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)) == why


@pytest.mark.skipif(reason() is not None, reason=f"no native kernel here: {reason()}")
@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "opt", "phi", "cohere", "starcoder2", "glm4"])
def test_their_usual_kinds_are_not(kind):
    assert refused(architectures.build(kind).to(torch.bfloat16)) is None


class Adapted(torch.nn.Linear):
    """As whoever fine-tunes a model may put in place of a layer."""


@pytest.mark.parametrize("how", ["replaced", "hooked", "overruled"])
def test_layers_that_somebody_changed_are_not_read_past_him(how):
    model = architectures.build("llama").to(torch.bfloat16)
    mlp = model.model.layers[0].mlp
    if how == "replaced":
        mlp.down_proj = Adapted(mlp.down_proj.in_features, mlp.down_proj.out_features, bias=False).to(torch.bfloat16)
    elif how == "hooked":
        mlp.down_proj.register_forward_hook(lambda *_: None)
    else:
        mlp.down_proj.forward = mlp.down_proj.forward
    assert refused(model) == "its linear layers are not ordinary ones"


@pytest.mark.parametrize("kind", ["gpt-neox", "cohere", "glm4"])
def test_every_output_has_one_place_in_the_order_of_the_c_side(kind):
    layer = layers_of(architectures.build(kind))[0]
    order = names.order(layer)
    assert order is not None
    outputs = list(range(sum(names.shape(part)[0] for part in names.linears(layer)["qkv"])))
    assert order.sort().values.tolist() == outputs
    assert order.tolist() != outputs
