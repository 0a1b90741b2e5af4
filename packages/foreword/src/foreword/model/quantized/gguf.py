"""Converts the matrices of a GGUF file to `Coded`, exactly: one function for each type.

Layouts: ggml-org/llama.cpp, ggml/src/ggml-common.h. The package gguf computes the same
weights in float32.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float32, Int16, UInt8
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.quantized.coded import Coded, Scales

Blocks = UInt8[Tensor, "outputs blocks bytes"]
FLOATS = ("F32", "F16", "BF16", "F64")
"""Types that hold numbers, not codes."""
SMALL, LARGE = 32, 16
"""Inputs. Group size of most types, and of some types with 256 inputs a block."""
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers of four bits with an exponent of two."""


def coded(name: str, kind: str, data: UInt8[Tensor, "outputs bytes"]) -> Coded | None:
    """Return a tensor of a GGUF file as a quantized matrix; None for a type that is not
    quantized.

    `kind`: the name of its type. `data`: the bytes of its rows. Raises ModelError for a
    type that is not supported.
    """
    check_kind(name, kind)
    if kind in FLOATS:
        return None
    read, size = KINDS[kind]
    return read(data.unflatten(1, (-1, size)))


def check_kind(name: str, kind: str) -> None:
    """Raise ModelError for a tensor of a type that is not supported."""
    if kind not in KINDS and kind not in FLOATS:
        raise ModelError(
            f"cannot read the tensor {name}: its type {kind} is not supported. Use a "
            "file of another type, such as Q4_K_M; supported are "
            f"{', '.join((*FLOATS, *KINDS))}"
        )


def _half(blocks: Blocks, at: int) -> Float32[Tensor, "outputs blocks"]:
    """Return the float16 at a byte of each block."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def _bits(data: Blocks, width: int, run: int) -> UInt8[Tensor, "outputs blocks codes"]:
    """Return the fields of `width` bits of each `run` bytes: the lowest field of all of
    them, then the next.
    """
    pairs = data.contiguous().view(torch.int16)  # two bytes at a time: twice as fast
    mask = (2**width - 1) * 0x101
    fields = [
        ((pairs >> shift) & mask).view(torch.uint8) for shift in range(0, 8, width)
    ]
    return torch.cat(
        [field.unflatten(-1, (-1, 1, run)) for field in fields], dim=-2
    ).flatten(2)


def _steps(low: int, bits: int) -> Tensor:
    return torch.arange(low, low + 2**bits).to(torch.int8)


def _factors(whole: Tensor) -> Int16[Tensor, "outputs groups"]:
    return whole.to(torch.int16).flatten(1)


def _plain(
    codes: Tensor, levels: Tensor, scale: Tensor, offset: Tensor | None = None
) -> Coded:
    """Return a matrix of blocks with one scale each."""
    return Coded(
        codes.flatten(1),
        levels,
        Scales(scale),
        None if offset is None else Scales(offset),
        SMALL,
    )


def _q4_0(blocks: Blocks) -> Coded:
    return _plain(_bits(blocks[..., 2:], 4, 16), _steps(-8, 4), _half(blocks, 0))


def _q4_1(blocks: Blocks) -> Coded:
    return _plain(
        _bits(blocks[..., 4:], 4, 16), _steps(0, 4), _half(blocks, 0), _half(blocks, 2)
    )


def _five(blocks: Blocks) -> Tensor:
    """Return codes of 5 bits from blocks of 4 bytes with their highest bits, and 16
    with the others.
    """
    return _bits(blocks[..., 4:], 4, 16) | _bits(blocks[..., :4], 1, 1) << 4


def _q5_0(blocks: Blocks) -> Coded:
    return _plain(_five(blocks[..., 2:]), _steps(-16, 5), _half(blocks, 0))


def _q5_1(blocks: Blocks) -> Coded:
    return _plain(
        _five(blocks[..., 4:]), _steps(0, 5), _half(blocks, 0), _half(blocks, 2)
    )


def _q8_0(blocks: Blocks) -> Coded:
    return _plain(blocks[..., 2:] ^ 128, _steps(-128, 8), _half(blocks, 0))


def _iq4_nl(blocks: Blocks) -> Coded:
    return _plain(
        _bits(blocks[..., 2:], 4, 16),
        torch.tensor(NONLINEAR, dtype=torch.int8),
        _half(blocks, 0),
    )


def _mxfp4(blocks: Blocks) -> Coded:
    power = blocks[..., 0].int()
    # 2 ** (power - 128)
    half = torch.where(power < 2, 2**21 << power, power - 1 << 23).view(torch.float32)
    return _plain(
        _bits(blocks[..., 1:], 4, 16), torch.tensor(E2M1, dtype=torch.int8), half
    )


def _iq4_xs(blocks: Blocks) -> Coded:
    high = _bits(blocks[..., 2:4], 2, 1)
    factors = (_bits(blocks[..., 4:8], 4, 1) | high << 4).to(torch.int16) - 32
    codes = _bits(blocks[..., 8:], 4, 16).flatten(1)
    return Coded(
        codes,
        torch.tensor(NONLINEAR, dtype=torch.int8),
        Scales(_half(blocks, 0), _factors(factors)),
        None,
        SMALL,
    )


def _q2_k(blocks: Blocks) -> Coded:
    scale, offset = blocks[..., :16] & 15, blocks[..., :16] >> 4
    return Coded(
        _bits(blocks[..., 16:80], 2, 32).flatten(1),
        _steps(0, 2),
        Scales(_half(blocks, 80), _factors(scale)),
        Scales(-_half(blocks, 82), _factors(offset)),
        LARGE,
    )


def _q3_k(blocks: Blocks) -> Coded:
    codes = _bits(blocks[..., 32:96], 2, 32) | _bits(blocks[..., :32], 1, 32) << 2
    factors = (
        _bits(blocks[..., 96:104], 4, 8) | _bits(blocks[..., 104:108], 2, 4) << 4
    ).to(torch.int16) - 32
    return Coded(
        codes.flatten(1),
        _steps(-4, 3),
        Scales(_half(blocks, 108), _factors(factors)),
        None,
        LARGE,
    )


def _two_level(blocks: Blocks, codes: Tensor, bits: int) -> Coded:
    """Return a matrix of blocks that begin with two float16, and 12 bytes with 8 scales
    and 8 offsets of 6 bits.
    """
    first, second, both = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scale = torch.cat([first & 63, both & 15 | first >> 2 & 48], -1)
    offset = torch.cat([second & 63, both >> 4 | second >> 2 & 48], -1)
    return Coded(
        codes.flatten(1),
        _steps(0, bits),
        Scales(_half(blocks, 0), _factors(scale)),
        Scales(-_half(blocks, 2), _factors(offset)),
        SMALL,
    )


def _q4_k(blocks: Blocks) -> Coded:
    return _two_level(blocks, _bits(blocks[..., 16:], 4, 32), 4)


def _q5_k(blocks: Blocks) -> Coded:
    return _two_level(
        blocks,
        _bits(blocks[..., 48:], 4, 32) | _bits(blocks[..., 16:48], 1, 32) << 4,
        5,
    )


def _q6_k(blocks: Blocks) -> Coded:
    codes = _bits(blocks[..., :128], 4, 64) | _bits(blocks[..., 128:192], 2, 32) << 4
    factors = blocks[..., 192:208].contiguous().view(torch.int8)
    return Coded(
        codes.flatten(1),
        _steps(-32, 6),
        Scales(_half(blocks, 208), _factors(factors)),
        None,
        LARGE,
    )


KINDS: dict[str, tuple[Callable[[Tensor], Coded], int]] = {
    "Q4_0": (_q4_0, 18),
    "Q4_1": (_q4_1, 20),
    "Q5_0": (_q5_0, 22),
    "Q5_1": (_q5_1, 24),
    "Q8_0": (_q8_0, 34),
    "Q2_K": (_q2_k, 84),
    "Q3_K": (_q3_k, 110),
    "Q4_K": (_q4_k, 144),
    "Q5_K": (_q5_k, 176),
    "Q6_K": (_q6_k, 210),
    "IQ4_NL": (_iq4_nl, 18),
    "IQ4_XS": (_iq4_xs, 136),
    "MXFP4": (_mxfp4, 17),
}
"""The reader of each type, and the bytes of its blocks."""
