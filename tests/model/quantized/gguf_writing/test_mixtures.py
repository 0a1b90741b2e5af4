"""A form such as Q4_K_M gives matrices the types that llama-quantize gives them."""

from collections import Counter

import pytest

from foreword.model.quantized.gguf_writing import mixtures

LLAMA_3_8B = mixtures.Sizes(layers=32, shared=4, tied=False)
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output")
MATRICES += ("ffn_gate", "ffn_up", "ffn_down")
PUBLISHED = {
    "Q2_K": dict(Q2_K=129, Q3_K=64, Q4_K=32, Q6_K=1),
    "Q3_K_S": dict(Q3_K=225, Q6_K=1),
    "Q3_K_M": dict(Q3_K=129, Q4_K=92, Q5_K=4, Q6_K=1),
    "Q3_K_L": dict(Q3_K=129, Q5_K=96, Q6_K=1),
    "Q4_K_S": dict(Q4_K=217, Q5_K=8, Q6_K=1),
    "Q4_K_M": dict(Q4_K=193, Q6_K=33),
    "Q5_K_S": dict(Q5_K=225, Q6_K=1),
    "Q5_K_M": dict(Q5_K=193, Q6_K=33),
    "Q6_K": dict(Q6_K=226),
}
"""Form -> matrices of each type in a Llama of 32 layers, as files of Llama 3 8B by
llama-quantize have them.
"""


def names(sizes: mixtures.Sizes) -> list[str]:
    """The matrices of a Llama."""
    found = ["token_embd.weight"] + ["output.weight"] * (not sizes.tied)
    for layer in range(sizes.layers):
        found += [f"blk.{layer}.{name}.weight" for name in MATRICES]
    return found


def kind(
    form: str, name: str, depth: int = 4096, sizes: mixtures.Sizes = LLAMA_3_8B
) -> str:
    found = mixtures.choice(form, name, depth, sizes)
    assert found is not None
    return found.kind


@pytest.mark.parametrize("form", mixtures.MIXTURES)
def test_matrices_of_llama_3_have_the_types_of_published_files(form):
    found = Counter(kind(form, name) for name in names(LLAMA_3_8B))
    assert found == PUBLISHED[form]


def test_first_and_last_layers_and_each_third_between_get_more_bits():
    for name in ("attn_v", "ffn_down"):
        kinds = [kind("Q4_K_M", f"blk.{layer}.{name}.weight") for layer in range(32)]
        more = [layer for layer in range(32) if kinds[layer] == "Q6_K"]
        assert more == [*range(4), *range(6, 28, 3), *range(28, 32)]


def test_embeddings_that_are_the_lm_head_are_rounded_as_it():
    tied = mixtures.Sizes(layers=8, shared=2, tied=True)
    assert kind("Q4_K_M", "token_embd.weight", sizes=tied) == "Q6_K"
    assert kind("Q4_K_M", "token_embd.weight") == "Q4_K"


def test_values_of_the_deepest_models_get_five_bits():
    deep = mixtures.Sizes(layers=80, shared=8, tied=False)
    assert kind("Q4_K_S", "blk.40.attn_v.weight", sizes=deep) == "Q5_K"
    assert kind("Q3_K_S", "blk.40.attn_v.weight", sizes=deep) == "Q5_K"
    assert kind("Q4_K_S", "blk.40.attn_k.weight", sizes=deep) == "Q4_K"


@pytest.mark.parametrize(
    ("form", "instead"),
    [
        ("Q2_K", "Q4_0"),
        ("Q3_K_S", "Q4_0"),
        ("Q4_K_S", "Q5_0"),
        ("Q5_K_S", "Q5_1"),
        ("Q6_K", "Q8_0"),
    ],
)
def test_rows_of_other_lengths_have_an_older_type(form, instead):
    found = mixtures.choice(form, "blk.9.attn_q.weight", 384, LLAMA_3_8B)
    assert found is not None
    assert (found.kind, found.instead) == (instead, mixtures.MIXTURES[form].kind)
    head = mixtures.choice(form, "output.weight", 384, LLAMA_3_8B)
    assert head is not None
    assert (head.kind, head.instead) == ("Q8_0", "Q6_K")


@pytest.mark.parametrize("form", mixtures.FORMS)
def test_rows_that_fit_no_type_have_none(form):
    assert mixtures.choice(form, "blk.0.attn_q.weight", 48, LLAMA_3_8B) is None
