"""What the C side would compute otherwise is refused; other orders have their own."""

import pytest
import torch
import transformers as hf

import tiny_models
from foreword.model import architectures
from foreword.model.executors.native.supported import refused
from foreword.model.layers import layers_of
from grids import NEEDS_C
from tiny_sizes import sizes

SIZES = sizes(64, 96, 4, layers=2, vocab_size=320)
SMALL_GPT2 = dict(vocab_size=320, n_embd=64, n_layer=2, n_head=4)
SMALL_OPT = dict(vocab_size=320, hidden_size=64, ffn_dim=96)
SMALL_OPT |= dict(num_hidden_layers=2, num_attention_heads=4)
MEAN = "its query and key norms subtract the mean"
AROUND = "its embeddings differ in size from its layers, or it has no final norm"
UNUSUAL = "its sizes, its activation or its biases are not the usual ones"
NORM_LAST = dict(word_embed_proj_dim=64, do_layer_norm_before=False)
STRANGE = [
    (
        hf.GPT2Config(**SMALL_GPT2, scale_attn_by_inverse_layer_idx=True),
        "its config sets scale_attn_by_inverse_layer_idx, which is not supported",
    ),
    (hf.GPT2Config(**SMALL_GPT2, activation_function="tanh"), UNUSUAL),
    (
        hf.OlmoConfig(**SIZES, clip_qkv=8.0),
        "its config sets clip_qkv, which is not supported",
    ),
    (hf.OPTConfig(**SMALL_OPT, **NORM_LAST), AROUND),
    (hf.OPTConfig(**SMALL_OPT, word_embed_proj_dim=32), AROUND),
    (hf.CohereConfig(**SIZES, use_qk_norm=True), MEAN),
    (hf.StableLmConfig(**SIZES, qk_layernorm=True), MEAN),
    (hf.PhiConfig(**SIZES, qk_layernorm=True), MEAN),
]


@pytest.mark.parametrize(
    ("config", "why"),
    STRANGE,
    ids=[f"{type(config).__name__}-{n}" for n, (config, _) in enumerate(STRANGE)],
)
def test_what_the_c_side_does_not_compute_is_refused(config, why):
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert refused(model) == why


@NEEDS_C
@pytest.mark.parametrize(
    "kind", ["gpt2", "gpt-neox", "opt", "phi", "cohere", "starcoder2", "glm4"]
)
def test_their_usual_kinds_are_not(kind):
    assert refused(tiny_models.build(kind).to(torch.bfloat16)) is None


class Adapted(torch.nn.Linear):
    """A layer that fine-tuning puts in place of another."""


@pytest.mark.parametrize("how", ["replaced", "hooked", "overruled"])
def test_changed_layers_are_refused(how):
    model = tiny_models.build("llama").to(torch.bfloat16)
    mlp = model.model.layers[0].mlp
    if how == "replaced":
        sizes = (mlp.down_proj.in_features, mlp.down_proj.out_features)
        mlp.down_proj = Adapted(*sizes, bias=False, dtype=torch.bfloat16)
    elif how == "hooked":
        mlp.down_proj.register_forward_hook(lambda *_: None)
    else:
        mlp.down_proj.forward = mlp.down_proj.forward
    assert refused(model) == "its linear layers are not plain nn.Linear layers"


@pytest.mark.parametrize("kind", ["gpt-neox", "cohere", "glm4"])
def test_each_output_has_one_place_in_c(kind):
    layer = layers_of(tiny_models.build(kind))[0]
    order = architectures.order(layer)
    assert order is not None
    parts = architectures.linears(layer)["qkv"]
    outputs = list(range(sum(architectures.shape(part)[0] for part in parts)))
    assert order.sort().values.tolist() == outputs
    assert order.tolist() != outputs
