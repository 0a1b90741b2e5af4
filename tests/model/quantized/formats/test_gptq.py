"""Codes of 2 and 3 bits are one stream of bits, in both versions, any order."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantizing.packed
from foreword.errors import ModelError
from foreword.model.quantized.layer import Layer, unpack
from foreword.registry import WEIGHT_FORMATS
from quantizing import loaded, requantized, saved

NAME = "model.layers.0.mlp.up_proj"


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
    folder = saved("llama-gqa", tmp_path)
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
    folder = saved("llama-gqa", tmp_path)
    plain = quantizing.packed.gptq(folder, 3)
    requantized(folder, checkpoint_format="gptq_v2")
    found = loaded(folder).get_submodule(NAME).weight
    assert not torch.isclose(found, plain[f"{NAME}.weight"], atol=1e-4).any()


def test_another_layout_is_refused(tmp_path):
    folder = saved("llama-gqa", tmp_path)
    quantizing.packed.gptq(folder, 3)
    requantized(folder, checkpoint_format=None, format="planar")
    with pytest.raises(ModelError, match="checkpoint_format='planar' of its quant"):
        loaded(folder)


def test_words_that_end_within_a_code_are_refused(tmp_path):
    folder = saved("llama-gqa", tmp_path)
    quantizing.packed.gptq(folder, 3)
    held = load_file(folder / "model.safetensors")
    held[f"{NAME}.qweight"] = held[f"{NAME}.qweight"][:5].contiguous()
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"{NAME}\.qweight has 5 words, which are no"):
        loaded(folder)
