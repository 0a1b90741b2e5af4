"""Hidden states captured on any backend are those of transformers."""

import pytest
import torch
from transformers import CLIPVisionConfig, LlavaConfig

import starter
import tiny_models
from foreword.errors import ModelError
from foreword.model import Mode, Model, Read
from foreword.model.executors.cache.backend import CacheBackend
from foreword.model.layers import layers_of
from foreword_train.methods.lm import load
from running import target
from tiny_sizes import sizes

LAYERS = (0, 3, 8)
TEXT = list(range(40, 80))


@pytest.fixture(scope="module")
def truth() -> list[torch.Tensor]:
    hf = load(starter.target(), torch.float32).eval()
    with torch.inference_mode():
        states = hf(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    return [states[layer][0] for layer in LAYERS]


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_states_of_every_token_are_captured(truth, dtype, error):
    model = target(dtype)
    model.open(1, 64)
    model.open(2, 64)
    reads = [Read(1, 0, TEXT, keep=2), Read(2, 0, TEXT[:7], keep=0)]
    logits, hidden = model.read_hidden(reads, LAYERS)
    assert logits.shape == (2, model.vocab)
    assert hidden.shape == (47, 3 * 384)
    for rows, length in ((hidden[:40], 40), (hidden[40:], 7)):
        for found, wanted in zip(rows.float().chunk(3, -1), truth, strict=True):
            assert (found - wanted[:length]).norm() < error * wanted[:length].norm()
    torch.testing.assert_close(
        model.read([Read(1, 0, TEXT, keep=2)]), logits, atol=0, rtol=0
    )
    # a forward of one row may be padded
    _, alone = model.read_hidden([Read(2, 0, TEXT[:1])], LAYERS)
    torch.testing.assert_close(alone, hidden[:1], atol=1e-4, rtol=1e-4)
    for opened in (1, 2):
        model.close(opened)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lm_head_of_states_gives_the_logits(dtype):
    model = target(dtype)
    model.open(1, 64)
    logits, hidden = model.read_hidden([Read(1, 0, TEXT, keep=len(TEXT))], (8,))
    torch.testing.assert_close(model.lm_head(hidden), logits, atol=1e-4, rtol=1e-4)
    model.close(1)


def test_cache_backend_captures_states_of_repeated_reads(truth):
    backend = CacheBackend(load(starter.target(), torch.float32).eval(), Mode.CACHE)
    backend.open(1, 64)
    _, first = backend.read_hidden([Read(1, 0, TEXT[:20])], LAYERS)
    # draft tokens, all of them wrong
    backend.read_hidden([Read(1, 20, [5, 6, 7], keep=3)], LAYERS)
    _, rest = backend.read_hidden([Read(1, 20, TEXT[20:])], LAYERS)
    for found, wanted in zip(torch.cat([first, rest]).chunk(3, -1), truth, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "opt", "cohere"])
def test_states_of_other_architectures_are_captured(kind):
    hf = tiny_models.build(kind).eval()
    with torch.inference_mode():
        states = hf(torch.tensor([TEXT[:9]]), output_hidden_states=True).hidden_states
    model = Model(hf)
    model.open(1, 32)
    last = len(states) - 1
    _, hidden = model.read_hidden([Read(1, 0, TEXT[:9])], (1, last))
    torch.testing.assert_close(
        hidden, torch.cat([states[1][0], states[last][0]], -1), atol=1e-4, rtol=1e-4
    )


def test_layers_are_those_of_the_text_decoder():
    text = tiny_models.build("mistral").config
    eyes = sizes(32, 32, 2, layers=text.num_hidden_layers)
    hf = tiny_models.random(
        LlavaConfig(
            text_config=text, vision_config=CLIPVisionConfig(**eyes, image_size=28)
        )
    )
    assert layers_of(hf.eval()) == list(hf.get_decoder().layers)


def test_hidden_states_that_are_not_there_are_refused():
    with pytest.raises(ModelError, match="states 0 to 8"):
        target("float32").read_hidden([], (9,))
