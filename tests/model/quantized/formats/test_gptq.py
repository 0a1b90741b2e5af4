"""Codes of 2 and 3 bits are one stream of bits, in both versions, any order."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import quantizing.packed
import tiny_models
from foreword.errors import ModelError
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.quantized.layer import Layer, unpack
from foreword.registry import WEIGHT_FORMATS

NAME = "model.layers.0.mlp.up_proj"


def loaded(folder: Path) -> nn.Module:
    return load_weights(folder, read_config(folder), torch.float32).eval()


def saved(folder: Path) -> Path:
    tiny_models.build("llama-gqa").to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_are_one_stream_of_bits(bits):
    codes = torch.randint(2**bits, (3, 96), dtype=torch.uint8)
    rows = []
    for row in codes.tolist():
        stream = sum(code << bits * place for place, code in enumerate(row))
        octets = stream.to_bytes(len(row) * bits // 8, "little")
        rows.append(torch.frombuffer(bytearray(octets), dtype=torch.int32))
    words = torch.stack(rows)
    assert torch.equal(quantizing.packed.words(codes, bits), words)
    assert torch.equal(unpack(words, bits), codes)


@pytest.mark.parametrize("order", [False, True], ids=["runs", "act-order"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 3])
def test_weights_are_those_of_the_definition(tmp_path, bits, version, order):
    folder = saved(tmp_path)
    plain = quantizing.packed.gptq(folder, bits, version=version, order=order)
    found = loaded(folder)
    weights = {
        name: one for name, one in plain.items() if name.endswith("_proj.weight")
    }
    assert len(weights) > 5
    for name, weight in weights.items():
        layer = found.get_submodule(name.removesuffix(".weight"))
        torch.testing.assert_close(layer.weight, weight, rtol=2**-22, atol=1e-7)
        assert hasattr(layer, "coded") == (not order)
        if not order:
            assert len(layer.coded.read().levels) == 2**bits


@pytest.mark.parametrize("bits", [2, 3])
def test_zero_as_a_zero_point(bits):
    """The first version stores it minus one, which is the largest code."""
    weight = torch.rand(32, 32) + 0.1
    parts, dense = quantizing.packed.matrix(weight, bits, 1, order=False)
    assert torch.equal(parts["qzeros"], torch.full((1, bits), -1, dtype=torch.int32))
    held = {f".{name}": one for name, one in parts.items()}
    found = WEIGHT_FORMATS["gptq"].read(Layer("here", NAME, held, {}))
    assert torch.equal(found.dense(), dense)


def test_a_wrong_version_shifts_every_weight(tmp_path):
    folder = saved(tmp_path)
    plain = quantizing.packed.gptq(folder, 3)
    settings = read_config(folder).quantization_config | dict(
        checkpoint_format="gptq_v2"
    )
    quantizing.configured(folder, quantization_config=settings)
    found = loaded(folder).get_submodule(NAME).weight
    assert not torch.isclose(found, plain[f"{NAME}.weight"], atol=1e-4).any()


def test_another_layout_is_refused(tmp_path):
    folder = saved(tmp_path)
    quantizing.packed.gptq(folder, 3)
    settings = dict(read_config(folder).quantization_config)
    settings["format"] = settings.pop("checkpoint_format").replace("gptq", "planar")
    quantizing.configured(folder, quantization_config=settings)
    with pytest.raises(ModelError, match="checkpoint_format='planar' of its quant"):
        loaded(folder)


def test_words_that_end_within_a_code_are_refused(tmp_path):
    folder = saved(tmp_path)
    quantizing.packed.gptq(folder, 3)
    held = load_file(folder / "model.safetensors")
    held[f"{NAME}.qweight"] = held[f"{NAME}.qweight"][:5].contiguous()
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"{NAME}\.qweight has 5 words, which are no"):
        loaded(folder)
