"""Checkpoints that each method's library wrote (README.md) are read as by it."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.quantized.layer import Layer
from foreword.registry import WEIGHT_FORMATS

RECORDED = Path(__file__).parent / "recorded"
EXACT = [
    *(
        "gptq-2 gptq-3-asym gptq-4 gptq-4-asym gptq-4-v2 gptq-8-asym "
        "gptq-4-act-order awq bitsandbytes-8"
    ).split(),
    *(
        "compressed-w4a16 compressed-w4a16-asym compressed-w8a16 compressed-w8a8 "
        "compressed-fp8 compressed-nvfp4 compressed-mxfp4"
    ).split(),
    *("modelopt-nvfp4", "modelopt-fp8"),
    *("torchao-int4", "torchao-int8"),
]
DENSE = ["gptq-4-act-order", "compressed-fp8", "modelopt-fp8"]
"""Checkpoints whose weights are dequantized on the CPU's backends."""
ROUNDED = {"bitsandbytes-nf4": 0.0039, "bitsandbytes-fp4": 0.0032}
"""Tables that are rounded to whole numbers where codes are multiplied -> the largest
difference, as a share of the block's largest weight."""
SCORES = {"bitsandbytes-8": 0.003, "torchao-int4": 0.001, "torchao-int8": 0.001}
SCORES |= dict.fromkeys(ROUNDED, 0.0005)
"""Nats a token from transformers' own loading: it quantizes activations to 8 bits, or
computes in bfloat16. Of the others the scores are those of the dequantized weights."""


@cache
def loaded(name: str, dtype: torch.dtype | str) -> nn.Module:
    folder = RECORDED / name
    return load_weights(folder, read_config(folder), dtype).eval()


def quantized(model: nn.Module) -> dict[str, nn.Linear]:
    return {
        name: layer for name, layer in model.named_modules() if hasattr(layer, "coded")
    }


def test_every_recorded_checkpoint_is_tested():
    assert sorted([*EXACT, *ROUNDED]) == sorted(
        path.name for path in RECORDED.iterdir() if not path.name.startswith("gguf-")
    )


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_weights_are_those_of_the_library(name):
    model = loaded(name, torch.float32)
    expected = load_file(RECORDED / name / "expected.safetensors")
    weights = {
        part.removeprefix("weight."): tensor
        for part, tensor in expected.items()
        if part.startswith("weight.")
    }
    assert len(weights) == 2
    for part, weight in weights.items():
        found = model.get_submodule(part).weight
        if name in EXACT:
            torch.testing.assert_close(found, weight, rtol=2**-22, atol=0)
        else:
            assert torch.equal(found, weight)


@pytest.mark.parametrize("name", ROUNDED)
def test_codes_are_off_by_the_rounding_of_the_table_alone(name):
    weight = load_file(RECORDED / name / "expected.safetensors")[
        "weight.model.layers.0.self_attn.q_proj"
    ]
    coded = (
        loaded(name, torch.float32)
        .get_submodule("model.layers.0.self_attn.q_proj")
        .coded.read()
    )
    largest = weight.unflatten(1, (-1, 64)).abs().amax(-1, keepdim=True)
    apart = (coded.dense() - weight).unflatten(1, (-1, 64)).abs() / largest
    assert 0 < apart.max() <= ROUNDED[name]


def test_blocks_across_outputs_are_dequantized_exactly():
    folder, part = RECORDED / "bitsandbytes-nf4", "model.layers.0.self_attn.q_proj"
    held = {
        name.removeprefix(part): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    state = ".weight.quant_state.bitsandbytes__nf4"
    settings = json.loads(bytes(held[state].tolist())) | dict(shape=[128, 32])
    held[state] = torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)
    found = WEIGHT_FORMATS["bitsandbytes"].read(Layer("", part, held, {}))
    assert torch.equal(
        found,
        load_file(folder / "expected.safetensors")[f"weight.{part}"].view(128, 32),
    )


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_scores_are_those_of_the_library(name):
    model = loaded(name, torch.float32)
    expected = load_file(RECORDED / name / "expected.safetensors")
    with torch.inference_mode():
        found = model(expected["tokens"][None]).logits[0]
    if name in SCORES:
        whole = expected["logits"].log_softmax(-1)
        assert (whole.exp() * (whole - found.log_softmax(-1))).sum(-1).mean() < SCORES[
            name
        ]
    else:
        torch.testing.assert_close(found, expected["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_every_layer_holds_its_few_bits_beside_its_weight(name, dtype):
    model = loaded(name, dtype)
    layers = quantized(model)
    assert len(layers) == (0 if name in DENSE else 7)
    for layer in layers.values():
        assert torch.equal(layer.coded.weights(dtype), layer.weight)
        assert name in ROUNDED or torch.equal(
            layer.coded.read().dense().to(dtype), layer.weight
        )
        coded = layer.coded.read()
        assert int(coded.codes.max()) < len(coded.levels)
        numbers = [
            part.values for part in (coded.scale, coded.offset) if part is not None
        ]
        assert all(part.is_contiguous() for part in (coded.codes, *numbers))
        assert coded.group * coded.groups == layer.in_features
    assert model.dtype == dtype
    assert getattr(model.config, "quantization_config", None) is None
    assert model.config.name_or_path == str(RECORDED / name)


def test_codes_are_as_few_as_the_checkpoint_says():
    few = {
        name: next(iter(quantized(loaded(name, torch.float32)).values())).coded.read()
        for name in EXACT
        if name not in DENSE
    }
    odd = {"gptq-2": 4, "gptq-3-asym": 8}
    assert {name: len(coded.levels) for name, coded in few.items()} == {
        name: 256 if "8" in name.removeprefix("compressed-").removesuffix("a8") else 16
        for name in few
    } | odd
    zero = set(
        (
            "gptq-3-asym gptq-4-asym gptq-4-v2 gptq-8-asym awq compressed-w4a16-asym "
            "torchao-int4"
        ).split()
    )
    assert {name for name, coded in few.items() if coded.offset is not None} == zero


def test_the_dtype_of_the_config_is_the_usual_one():
    config = json.loads((RECORDED / "awq" / "config.json").read_text(encoding="utf-8"))
    assert config["dtype"] == "float16"
    assert loaded("awq", "auto").dtype == torch.float16
