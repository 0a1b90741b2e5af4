"""K-quants that are written: blocks are those of the format bit for bit, and weights
are rounded as well as llama.cpp rounds them.
"""

import gguf
import pytest
import torch

from foreword.model.quantized.gguf import coded
from foreword.model.quantized.gguf_writing.blocks import KINDS, blocks

ROWS, DEPTH = 64, 1024
LLAMA_CPP = {
    "Q2_K": 0.2967,
    "Q3_K": 0.15138,
    "Q4_K": 0.07132,
    "Q5_K": 0.03597,
    "Q6_K": 0.01769,
}
"""Relative error, RMS. Of `normal()` rounded by quantize_q2_K … of ggml, commit
d99724f2, and dequantized by the package gguf.
"""
WORSE = 1.02
"""Times that error. Ours weighs weights otherwise, which moves the plain error by 1.4 %
at most; a wrong scale or a lost bit moves it by a tenth or more.
"""
COARSER = {"Q4_K": "Q4_0", "Q5_K": "Q5_0", "Q6_K": "Q5_1"}
"""An older type of as many bits, or fewer."""


def normal() -> torch.Tensor:
    """Weights as they are in most matrices."""
    noise = torch.Generator().manual_seed(5)
    return torch.randn(ROWS, DEPTH, generator=noise)


def read(data: torch.Tensor, kind: str) -> torch.Tensor:
    """The weights of written blocks, by the package gguf and by our reader."""
    type_ = gguf.GGMLQuantizationType[kind]
    theirs = torch.from_numpy(gguf.quants.dequantize(data.numpy(), type_))
    found = coded("some.weight", kind, data)
    assert found is not None
    assert torch.equal(found.dense(), theirs)
    return theirs


def error(weight: torch.Tensor, kind: str) -> float:
    """The error of a rounded matrix, relative to the weights."""
    apart = read(blocks(weight, kind), kind) - weight
    return float(apart.norm() / weight.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_rounded_as_well_as_by_llama_cpp(kind):
    assert 0 < error(normal(), kind) < WORSE * LLAMA_CPP[kind]


@pytest.mark.parametrize("kind", COARSER)
@pytest.mark.parametrize("power", [1, 3])
def test_weights_are_nearer_than_in_the_older_types(kind, power):
    weight = normal() ** power  # the third power has outliers in every group
    assert error(weight, kind) < error(weight, COARSER[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros(kind):
    weight = normal()
    weight[:, :256] = 0
    found = read(blocks(weight, kind), kind)
    assert not found[:, :256].any()
    assert found[:, 256:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [torch.abs, lambda weight: -weight.abs() - 3])
def test_weights_of_one_sign_are_rounded_too(kind, change):
    weight = change(normal())
    assert error(weight, kind) < 0.3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e6, 1e30])
def test_weights_of_any_size_stay_finite(kind, size):
    found = read(blocks(normal() * size, kind), kind)
    assert found.isfinite().all()
    assert found.abs().max() <= 65504 * 128 * 32


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_matrix_is_rounded_as_its_parts_are(kind):
    weight = normal().repeat(8, 1)
    found = blocks(weight, kind)
    assert torch.equal(found, blocks(normal(), kind).repeat(8, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_rounded_as_float32(kind):
    weight = normal().bfloat16()
    assert torch.equal(blocks(weight, kind), blocks(weight.float(), kind))
