"""Codes of bitsandbytes are multiplied where that rounds less than activations do."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from foreword.model.executors.native.grouped import SIZES
from foreword.model.quantized.coded import Coded
from foreword.model.quantized.formats.bitsandbytes import MOST_BLOCK, STATE, exact, read
from foreword.model.quantized.layer import Layer

RECORDED = Path(__file__).parent / "recorded"
DEPTH, OUTPUTS, ROWS = 4096, 64, 32


def table(kind: str) -> Tensor:
    held = load_file(RECORDED / f"bitsandbytes-{kind}" / "model.safetensors")
    return next(
        tensor for name, tensor in held.items() if name.endswith(".weight.quant_map")
    )


def layer(kind: str, block: int) -> Layer:
    """A matrix of normal weights, as the library quantizes it."""
    blocks = torch.randn(
        OUTPUTS * DEPTH // block, block, generator=torch.Generator().manual_seed(7)
    )
    largest = blocks.abs().amax(1)
    codes = (
        (blocks[..., None] / largest[:, None, None] - table(kind))
        .abs()
        .argmin(-1)
        .flatten()
    )
    state = json.dumps(
        {"shape": [OUTPUTS, DEPTH], "blocksize": block, "quant_type": kind}
    ).encode()
    tensors = {
        ".weight": (codes[::2] << 4 | codes[1::2]).to(torch.uint8)[:, None],
        ".weight.absmax": largest,
        ".weight.quant_map": table(kind),
        STATE + kind: torch.tensor(list(state), dtype=torch.uint8),
    }
    return Layer("", "part", tensors, {})


def in_8_bits(rows: Tensor, group: int) -> Tensor:
    groups = rows.unflatten(1, (-1, group))
    step = groups.abs().amax(-1, keepdim=True) / 127
    return ((groups / step).round() * step).flatten(1)


@pytest.mark.parametrize("block", [64, 128, 256, 512])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_whole_levels_round_less_than_8_bit_activations(kind, block):
    held = layer(kind, block)
    weights, coded = exact(held), read(held)
    assert isinstance(coded, Coded)
    rows = torch.randn(ROWS, DEPTH, generator=torch.Generator().manual_seed(8))
    whole = rows @ weights.T
    of_levels = (rows @ coded.dense().T - whole).std()
    of_activations = (in_8_bits(rows, min(block, SIZES[0])) @ weights.T - whole).std()
    assert of_levels < of_activations


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_large_blocks_have_exact_weights_and_no_codes(kind):
    held = layer(kind, 2 * MOST_BLOCK)
    found = read(held)
    assert isinstance(found, Tensor)
    assert torch.equal(found, exact(held))
