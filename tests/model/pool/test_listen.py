"""Hidden states overheard while a model is read, however it is driven: those that
transformers itself reports.
"""

import pytest
import torch
from transformers import CLIPVisionConfig, LlavaConfig

import starter
import tiny_models
from foreword.errors import ModelError
from foreword.model import Mode, Model, Read
from foreword.model.cache_backend import CacheBackend
from foreword.model.pool.hooks import layers_of
from foreword.train.methods.lm import load

LAYERS = (0, 3, 8)
TEXT = list(range(40, 80))


@pytest.fixture(scope="module")
def truth() -> list[torch.Tensor]:
    hf = load(starter.target(), torch.float32).eval()
    with torch.inference_mode():
        states = hf(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    return [states[layer][0] for layer in LAYERS]


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_every_token_read_is_heard_whatever_is_kept(truth, dtype, error):
    model = Model.load(starter.target(), dtype=dtype)
    model.open(1, 64)
    model.open(2, 64)
    reads = [Read(1, 0, TEXT, keep=2), Read(2, 0, TEXT[:7], keep=0)]
    logits, heard = model.read_hidden(reads, LAYERS)
    assert logits.shape == (2, model.vocab)
    assert heard.shape == (47, 3 * 384)
    for rows, length in ((heard[:40], 40), (heard[40:], 7)):
        for found, wanted in zip(rows.float().chunk(3, -1), truth, strict=True):
            assert (found - wanted[:length]).norm() < error * wanted[:length].norm()
    torch.testing.assert_close(
        model.read([Read(1, 0, TEXT, keep=2)]), logits, atol=0, rtol=0
    )
    # a forward of one row may be padded
    _, alone = model.read_hidden([Read(2, 0, TEXT[:1])], LAYERS)
    torch.testing.assert_close(alone, heard[:1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_head_reads_it_says(dtype):
    model = Model.load(starter.target(), dtype=dtype)
    model.open(1, 64)
    logits, heard = model.read_hidden([Read(1, 0, TEXT, keep=len(TEXT))], (8,))
    torch.testing.assert_close(model.lm_head(heard), logits, atol=1e-4, rtol=1e-4)


def test_the_cache_of_transformers_is_overheard_too_even_when_it_reads_again(truth):
    backend = CacheBackend(load(starter.target(), torch.float32).eval(), Mode.CACHE)
    backend.open(1, 64)
    _, first = backend.read_hidden([Read(1, 0, TEXT[:20])], LAYERS)
    # guesses, all of them wrong
    backend.read_hidden([Read(1, 20, [5, 6, 7], keep=3)], LAYERS)
    _, rest = backend.read_hidden([Read(1, 20, TEXT[20:])], LAYERS)
    for found, wanted in zip(torch.cat([first, rest]).chunk(3, -1), truth, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "opt", "cohere"])
def test_models_that_are_built_otherwise_are_heard_too(kind):
    hf = tiny_models.build(kind).eval()
    with torch.inference_mode():
        states = hf(torch.tensor([TEXT[:9]]), output_hidden_states=True).hidden_states
    model = Model(hf)
    model.open(1, 32)
    last = len(states) - 1
    _, heard = model.read_hidden([Read(1, 0, TEXT[:9])], (1, last))
    torch.testing.assert_close(
        heard, torch.cat([states[1][0], states[last][0]], -1), atol=1e-4, rtol=1e-4
    )


def test_of_a_model_that_sees_the_text_is_heard_though_its_eyes_have_as_many_layers():
    text = tiny_models.build("mistral").config
    eyes = dict(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=2,
    )
    hf = tiny_models.random(
        LlavaConfig(
            text_config=text, vision_config=CLIPVisionConfig(**eyes, image_size=28)
        )
    )
    assert layers_of(hf.eval()) == list(hf.get_decoder().layers)


def test_hidden_states_that_are_not_there_are_refused():
    model = Model.load(starter.target())
    with pytest.raises(ModelError, match="states 0 to 8"):
        model.read_hidden([], (9,))
