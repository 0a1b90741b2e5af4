"""A GGUF file of each family is read as its model: config, scores and codes."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig

import gguf_files
from foreword.errors import ModelError
from foreword.model.architectures import loader
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from gguf_files.families import FAMILIES, SIZES, TEXT, random


@pytest.fixture(params=FAMILIES)
def family(request):
    architecture, config, fields = FAMILIES[request.param]
    return architecture, random(config), fields


@torch.inference_mode()
def test_scores_are_those_of_the_model_that_was_written(family, tmp_path):
    architecture, model, fields = family
    path = gguf_files.write(model, tmp_path / "model.gguf", architecture, **fields)
    config = read_config(path)
    assert config.architectures == [type(model).__name__]
    read = load_weights(path, config, torch.float32).eval()
    torch.testing.assert_close(
        read(TEXT).logits, model(TEXT).logits, rtol=1e-4, atol=1e-4
    )


@pytest.mark.sample(2)
def test_codes_are_in_the_order_of_rows(family, tmp_path):
    architecture, model, fields = family
    path = gguf_files.write(
        model, tmp_path / "model.gguf", architecture, "Q4_0", **fields
    )
    read = load_weights(path, read_config(path), torch.bfloat16)
    linear = {
        name: layer
        for name, layer in read.named_modules()
        if type(layer) is nn.Linear and layer.out_features > 1
    }
    assert len(linear) > 5
    for name, layer in linear.items():
        assert torch.equal(
            layer.coded.read().dense().to(torch.bfloat16), layer.weight
        ), name


def test_a_tensor_without_a_place_is_named(tmp_path):
    torch.manual_seed(1)
    model = loader(LlamaConfig(**SIZES)).from_config(LlamaConfig(**SIZES))
    extra = {"blk.0.attn_q_norm": np.ones(16, dtype=np.float32)}
    path = gguf_files.write(
        model, tmp_path / "model.gguf", "llama", rope__dimension_count=16, **extra
    )
    with pytest.raises(ModelError, match=r"place for its tensor blk\.0\.attn_q_norm"):
        load_weights(path, read_config(path), torch.float32)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (dict(rope_freqs=np.linspace(1, 9, 8, dtype=np.float32)), "other frequencies"),
        (dict(rope__scaling__type="spiral"), "of the kind 'spiral'"),
    ],
)
def test_other_rotary_positions_are_refused(fields, reason, tmp_path):
    torch.manual_seed(1)
    model = loader(LlamaConfig(**SIZES)).from_config(LlamaConfig(**SIZES))
    path = gguf_files.write(
        model, tmp_path / "model.gguf", "llama", rope__dimension_count=16, **fields
    )
    with pytest.raises(
        ModelError, match=f"has rotary positions .*{reason}.*safetensors"
    ):
        read_config(path)
