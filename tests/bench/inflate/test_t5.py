"""An inflated T5 has the logits of the small one, and the sizes of its shape."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, T5Config

import tiny_seq2seq
from foreword.bench.inflate.t5 import T5_SHAPES, T5Shape, inflate_t5
from foreword.errors import ModelError

WIDE = T5Shape("wide", hidden=128, layers=4, intermediate=160)


def small(**changes):
    """Gated, with weights large enough that attention matters; tied as T5 is, or with
    an output matrix of its own.
    """
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=97,
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=2,
    )
    config = T5Config(
        **sizes, feed_forward_proj="gated-gelu", decoder_start_token_id=0, **changes
    )
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    for weight in model.parameters():
        weight.data.mul_(1.5)
    return model


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_logits_are_those_of_the_small_model(scaled, apart):
    model = small(tie_word_embeddings=scaled)
    if apart:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(97, 32))
    large = inflate_t5(model, WIDE)
    inputs = dict(
        input_ids=torch.randint(97, (2, 30)),
        decoder_input_ids=torch.randint(97, (2, 20)),
    )
    with torch.no_grad():
        new, old = (one(**inputs).logits for one in (large, model))
    assert (new - old).abs().max() <= 1e-4 * old.abs().max()
    assert old.std() > 0.2
    assert (
        large.config.num_heads,
        len(large.encoder.block),
        len(large.decoder.block),
    ) == (8, 4, 4)
    assert large.encoder.block[3].layer[1].DenseReluDense.wi_0.weight.shape == (
        160,
        128,
    )


def test_named_shape_has_the_size_of_its_name():
    config = T5Config(
        vocab_size=8192,
        d_model=1024,
        d_kv=32,
        num_heads=32,
        d_ff=2816,
        num_layers=12,
        feed_forward_proj="gated-gelu",
    )
    shape = T5_SHAPES["t5-350m"]
    assert (config.d_model, config.num_layers, config.d_ff) == (
        shape.hidden,
        shape.layers,
        shape.intermediate,
    )
    with torch.device("meta"):
        assert (
            340e6 < AutoModelForSeq2SeqLM.from_config(config).num_parameters() < 380e6
        )


def test_other_models_are_refused():
    with pytest.raises(ModelError, match="gated"):
        inflate_t5(tiny_seq2seq.build("t5"), WIDE)
    with pytest.raises(ModelError, match="gated"):
        inflate_t5(tiny_seq2seq.build("bart"), WIDE)
    with pytest.raises(ModelError, match="larger"):
        inflate_t5(small(), T5Shape("thin", hidden=128, layers=2, intermediate=160))
